//! Tables as text: records of fields with a delimiter between them. The first record contains the
//! column names. Parsed like `pandas` and Python's `csv` do.

use std::mem;
use std::ops::ControlFlow;

use super::{FileContent, MAX_COLUMNS, MAX_COUNTED, MAX_NAME_BYTES, column_name};

/// The possible delimiters, in order of preference.
const DELIMITERS: [u8; 4] = *b",;\t|";

/// If a file is too large to be counted, the header is searched only in this many bytes.
const MAX_HEADER: u64 = 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The delimiter that occurs most often in the header, outside of quotes. With `prefers_tabs`, tabs
/// win if there are any.
pub(super) fn delimiter(head: &[u8], prefers_tabs: bool) -> u8 {
    let mut found = [0; DELIMITERS.len()];
    let mut in_quotes = false;
    let mut starts_field = true;
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    // Blank lines before the header are skipped. Tabs are not: a tab may end an empty first name.
    for byte in head.iter().skip_while(|byte| matches!(byte, b' ' | b'\n' | b'\r')) {
        if *byte == b'"' && (in_quotes || starts_field) {
            // A doubled quote toggles this twice, so it has no effect.
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
    // If several have the same count, `max_by_key` returns the last, so the order is reversed.
    let best = (0..DELIMITERS.len()).rev().max_by_key(|which| found[*which]);
    best.map_or(b',', |which| DELIMITERS[which])
}

/// The names in the first record, and the number of records after it.
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
    /// After a quote inside quotes: it ends the quotes, unless another quote follows.
    QuoteInQuotes,
}

struct Records {
    delimiter: u8,
    at: At,
    /// Whether this record has only spaces and tabs so far.
    is_blank: bool,
    /// How many records have ended.
    count: u64,
    names: Vec<String>,
    /// The part of the current name that was read so far.
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
            // If a line ends with both, the second one ends a blank record, which is ignored.
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

    /// The number of records after the header. `None` if a quote was never closed: it may have
    /// hidden any number of records.
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
