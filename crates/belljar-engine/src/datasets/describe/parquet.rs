//! The footer of a Parquet file: `FileMetaData` in Thrift's compact protocol, its length, and the magic bytes again.
//! Only the schema and the number of rows are read.

use super::{FileContent, MAX_COLUMNS, MAX_METADATA, column_name};

/// Bytes after the metadata: four of length and four of magic.
const TRAILER: usize = 8;

/// Deeper than any real metadata, and safe for the stack.
const MAX_DEPTH: u32 = 32;

/// Names of the top-level columns, and the number of rows that the file claims to have.
pub(super) fn columns_and_rows(content: &FileContent<'_>) -> Option<(Vec<String>, u64)> {
    let trailer_at = content.size.checked_sub(TRAILER as u64)?;
    let trailer = content.read_all(trailer_at, TRAILER)?;
    let (length, magic) = trailer.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    if magic != b"PAR1" || u64::from(length) > MAX_METADATA as u64 {
        return None;
    }
    let metadata_at = trailer_at.checked_sub(u64::from(length))?;
    let metadata = content.read_all(metadata_at, usize::try_from(length).ok()?)?;
    file_metadata(&mut Thrift { rest: &metadata })
}

fn file_metadata(thrift: &mut Thrift<'_>) -> Option<(Vec<String>, u64)> {
    let mut columns = None;
    let mut rows = None;
    let mut id = 0;
    // The rest of the metadata, which holds all row groups, is not read.
    while columns.is_none() || rows.is_none() {
        match thrift.field(&mut id)? {
            (_, kind::STOP) => return None,
            (2, kind::LIST) => columns = Some(schema(thrift)?),
            (3, kind::I64) => rows = Some(u64::try_from(thrift.integer()?).ok()?),
            (_, kind) => thrift.skip(kind, MAX_DEPTH)?,
        }
    }
    columns.zip(rows)
}

/// The names of the children of the root. The schema is a tree stored as a list: every element is followed by its
/// children.
fn schema(thrift: &mut Thrift<'_>) -> Option<Vec<String>> {
    let (kind::STRUCT, length @ 1..) = thrift.list()? else {
        return None;
    };
    let mut columns = Vec::new();
    let mut below_column = 0_u64;
    let root = schema_element(thrift)?;
    for _ in 1..length {
        let element = schema_element(thrift)?;
        if below_column > 0 {
            below_column -= 1;
        } else if columns.len() < MAX_COLUMNS {
            columns.push(column_name(element.name));
        }
        below_column = below_column.checked_add(element.children)?;
    }
    let named = root.children.min(MAX_COLUMNS as u64);
    (below_column == 0 && columns.len() as u64 == named).then_some(columns)
}

struct SchemaElement<'a> {
    name: &'a [u8],
    children: u64,
}

fn schema_element<'a>(thrift: &mut Thrift<'a>) -> Option<SchemaElement<'a>> {
    let mut element = SchemaElement { name: b"", children: 0 };
    let mut id = 0;
    loop {
        match thrift.field(&mut id)? {
            (_, kind::STOP) => return Some(element),
            (4, kind::BINARY) => element.name = thrift.binary()?,
            (5, kind::I32) => element.children = u64::try_from(thrift.integer()?).ok()?,
            (_, kind) => thrift.skip(kind, MAX_DEPTH)?,
        }
    }
}

/// Types of the compact protocol.
mod kind {
    pub(super) const STOP: u8 = 0;
    pub(super) const TRUE: u8 = 1;
    pub(super) const FALSE: u8 = 2;
    pub(super) const BYTE: u8 = 3;
    pub(super) const I16: u8 = 4;
    pub(super) const I32: u8 = 5;
    pub(super) const I64: u8 = 6;
    pub(super) const DOUBLE: u8 = 7;
    pub(super) const BINARY: u8 = 8;
    pub(super) const LIST: u8 = 9;
    pub(super) const SET: u8 = 10;
    pub(super) const MAP: u8 = 11;
    pub(super) const STRUCT: u8 = 12;
    pub(super) const UUID: u8 = 13;
}

/// Reads Thrift's compact protocol. Every element takes at least one byte, whatever length is declared, so a false
/// length cannot make the parser work longer than the bytes last.
struct Thrift<'a> {
    rest: &'a [u8],
}

impl<'a> Thrift<'a> {
    /// The id and the type of the next field. `id` is the id of the previous field.
    fn field(&mut self, id: &mut i64) -> Option<(i64, u8)> {
        let byte = self.byte()?;
        let (step, kind) = (byte >> 4, byte & 0x0F);
        if kind != kind::STOP {
            *id = if step == 0 { self.integer()? } else { id.checked_add(i64::from(step))? };
        }
        Some((*id, kind))
    }

    /// The type and the number of the elements that follow.
    fn list(&mut self) -> Option<(u8, u64)> {
        let byte = self.byte()?;
        let (length, kind) = (byte >> 4, byte & 0x0F);
        let length = if length == 0x0F { self.unsigned()? } else { u64::from(length) };
        Some((kind, length))
    }

    fn binary(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.unsigned()?).ok()?;
        self.bytes(length)
    }

    /// A zigzag integer: the lowest bit is the sign.
    fn integer(&mut self) -> Option<i64> {
        let folded = self.unsigned()?;
        Some((folded >> 1).cast_signed() ^ -(folded & 1).cast_signed())
    }

    /// A varint: seven bits per byte, the lowest first.
    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // The value of a boolean is in its type.
            kind::TRUE | kind::FALSE => {}
            kind::BYTE => _ = self.byte()?,
            kind::I16 | kind::I32 | kind::I64 => _ = self.unsigned()?,
            kind::DOUBLE => _ = self.bytes(8)?,
            kind::UUID => _ = self.bytes(16)?,
            kind::BINARY => _ = self.binary()?,
            kind::LIST | kind::SET => {
                let (kind, length) = self.list()?;
                for _ in 0..length {
                    self.skip_element(kind, depth)?;
                }
            }
            kind::MAP => {
                let length = self.unsigned()?;
                let kinds = if length == 0 { 0 } else { self.byte()? };
                for _ in 0..length {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 0x0F, depth)?;
                }
            }
            kind::STRUCT => {
                let mut id = 0;
                loop {
                    match self.field(&mut id)? {
                        (_, kind::STOP) => break,
                        (_, kind) => self.skip(kind, depth)?,
                    }
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// In a list, a boolean takes one byte.
    fn skip_element(&mut self, kind: u8, depth: u32) -> Option<()> {
        let kind = if matches!(kind, kind::TRUE | kind::FALSE) { kind::BYTE } else { kind };
        self.skip(kind, depth)
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }
}
