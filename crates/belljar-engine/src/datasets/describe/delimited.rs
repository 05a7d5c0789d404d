//! Tables as text: records of fields with a delimiter between them, the first of them the names.
//! Read as `pandas` and Python's `csv` do it.

use std::mem;
use std::ops::ControlFlow;

use super::{FileContent, MAX_COLUMNS, MAX_COUNTED, MAX_NAME_BYTES, column_name};

/// In the order of preference.
const DELIMITERS: [u8; 4] = *b",;\t|";

/// Of a file too large to count, the header is looked for in the beginning only.
const MAX_HEADER: u64 = 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The one that stands most often in the header, outside of quotes. In a file that is said to have
/// tabs, they win if there are any.
pub(super) fn delimiter(head: &[u8], prefers_tabs: bool) -> u8 {
    let mut found = [0; DELIMITERS.len()];
    let mut in_quotes = false;
    let mut starts_field = true;
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    // Blank lines are no header; a tab may be the end of a first name that is empty.
    for byte in head.iter().skip_while(|byte| matches!(byte, b' ' | b'\n' | b'\r')) {
        if *byte == b'"' && (in_quotes || starts_field) {
            // A doubled quote ends the quotes and begins them again.
            in_quotes = !in_quotes;
            starts_field = !in_quotes;
            continue;
        }
        let delimiter = DELIMITERS.iter().position(|delimiter| delimiter == byte);
        match delimiter {
            _ if in_quotes => {}
            Some(which) => found[which] += 1,
            None if matches!(byte, b'\n' | b'\r') => break,
            None => {}
        }
        starts_field = delimiter.is_some();
    }
    if prefers_tabs && found[2] > 0 {
        return b'\t';
    }
    // Of the best, `max_by_key` takes the last.
    let best = (0..DELIMITERS.len()).rev().max_by_key(|which| found[*which]);
    best.map_or(b',', |which| DELIMITERS[which])
}

/// The names in the first record, and how many follow it.
pub(super) fn columns_and_rows(
    content: &FileContent<'_>,
    delimiter: u8,
) -> (Option<Vec<String>>, Option<u64>) {
    let counted = content.size <= MAX_COUNTED;
    let length = if counted { content.size } else { MAX_HEADER };
    let mut records = Records::new(delimiter);
    let mut is_first = true;
    let whole = content.each_chunk(length, |chunk| {
        let mark = if mem::take(&mut is_first) { BYTE_ORDER_MARK } else { b"" };
        for byte in chunk.strip_prefix(mark).unwrap_or(chunk) {
            records.see(*byte);
        }
        if !counted && records.header_is_known() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    let rows = if whole && counted { records.end() } else { None };
    let columns = (rows.is_some() || records.header_is_known()).then_some(records.names);
    (columns, rows)
}

#[derive(Clone, Copy, PartialEq)]
enum At {
    FieldStart,
    Bare,
    Quoted,
    /// Behind a quote that ends the quotes, unless there is another.
    QuoteInQuotes,
}

struct Records {
    delimiter: u8,
    at: At,
    /// Nothing but spaces in this record up to here.
    is_blank: bool,
    /// How many have ended.
    count: u64,
    names: Vec<String>,
    /// The beginning of a name that has not ended.
    name: Vec<u8>,
}

impl Records {
    fn new(delimiter: u8) -> Records {
        let (names, name) = (Vec::new(), Vec::new());
        Records { delimiter, at: At::FieldStart, is_blank: true, count: 0, names, name }
    }

    fn see(&mut self, byte: u8) {
        match (self.at, byte) {
            (At::Quoted, b'"') => self.at = At::QuoteInQuotes,
            (At::Quoted, _) => self.keep(byte),
            (At::QuoteInQuotes, b'"') => {
                self.keep(byte);
                self.at = At::Quoted;
            }
            (At::FieldStart, b'"') => {
                self.is_blank = false;
                self.at = At::Quoted;
            }
            // Of a line that ends with both, the second ends a blank one.
            (_, b'\n' | b'\r') => self.end_record(),
            (_, _) if byte == self.delimiter => {
                self.is_blank = false;
                self.end_name();
                self.at = At::FieldStart;
            }
            (_, _) => {
                self.is_blank &= matches!(byte, b' ' | b'\t');
                self.keep(byte);
                self.at = At::Bare;
            }
        }
    }

    /// How many records there were behind the header. A quote that was never closed may have
    /// swallowed any number of them.
    fn end(&mut self) -> Option<u64> {
        if self.at == At::Quoted {
            return None;
        }
        self.end_record();
        Some(self.count.saturating_sub(1))
    }

    fn header_is_known(&self) -> bool {
        self.count > 0 || self.names.len() == MAX_COLUMNS
    }

    fn keep(&mut self, byte: u8) {
        if !self.header_is_known() && self.name.len() < MAX_NAME_BYTES {
            self.name.push(byte);
        }
    }

    fn end_name(&mut self) {
        if !self.header_is_known() {
            self.names.push(column_name(&mem::take(&mut self.name)));
        }
    }

    fn end_record(&mut self) {
        if !self.is_blank {
            self.end_name();
            self.count += 1;
        }
        self.name.clear();
        self.is_blank = true;
        self.at = At::FieldStart;
    }
}
