//! Arrow's stream format, which Arrow files contain too. The first message is the schema, a flatbuffer. Only the names
//! of top-level columns are read.

use super::{FileContent, MAX_COLUMNS, MAX_METADATA, column_name};

/// The magic bytes and two bytes of padding.
const FILE_MAGIC: &[u8] = b"ARROW1\0\0";

/// The bytes before the length of a message.
const CONTINUATION: &[u8] = &[0xFF; 4];

/// The type of a message that is a schema.
const SCHEMA: u8 = 1;

pub(super) fn columns(content: &FileContent<'_>, head: &[u8]) -> Option<Vec<String>> {
    let stream = head.strip_prefix(FILE_MAGIC).unwrap_or(head);
    let (length, message) = stream.strip_prefix(CONTINUATION)?.split_first_chunk()?;
    let length = usize::try_from(i32::from_le_bytes(*length)).ok()?;
    if length > MAX_METADATA {
        return None;
    }
    let message_at = head.len() - message.len();
    let message = content.read_all(message_at as u64, length)?;
    names(&Flatbuffer(&message))
}

/// `Message { version, header_type, header }`, `Schema { endianness, fields }`, `Field { name }`
fn names(buffer: &Flatbuffer<'_>) -> Option<Vec<String>> {
    let message = buffer.follow(0)?;
    if buffer.byte(buffer.slot(message, 1)?)? != SCHEMA {
        return None;
    }
    let schema = buffer.follow(buffer.slot(message, 2)?)?;
    let fields = buffer.follow(buffer.slot(schema, 1)?)?;
    let length = usize::try_from(buffer.unsigned(fields)?).ok()?;
    (0..length.min(MAX_COLUMNS))
        .map(|which| {
            let field = buffer.follow(fields + 4 + 4 * which)?;
            // A field without a name has no slot for the name.
            let Some(name) = buffer.slot(field, 0) else {
                return Some(String::new());
            };
            Some(column_name(buffer.text(buffer.follow(name)?)?))
        })
        .collect()
}

/// Positions count from the beginning of the buffer. Each is checked before it is read.
struct Flatbuffer<'a>(&'a [u8]);

impl<'a> Flatbuffer<'a> {
    /// The position that the offset at `at` refers to.
    fn follow(&self, at: usize) -> Option<usize> {
        at.checked_add(usize::try_from(self.unsigned(at)?).ok()?)
    }

    /// The position of a field in the table at `table`, from the table's vtable; `None` if it has no such field.
    fn slot(&self, table: usize, which: usize) -> Option<usize> {
        let back = i64::from(self.unsigned(table)?.cast_signed());
        let list = usize::try_from(i64::try_from(table).ok()?.checked_sub(back)?).ok()?;
        let entry = 4 + 2 * which;
        if entry + 2 > self.short(list)? {
            return None;
        }
        let offset = self.short(list.checked_add(entry)?)?;
        if offset == 0 { None } else { table.checked_add(offset) }
    }

    fn text(&self, at: usize) -> Option<&'a [u8]> {
        let length = usize::try_from(self.unsigned(at)?).ok()?;
        self.0.get(at.checked_add(4)?..)?.get(..length)
    }

    fn unsigned(&self, at: usize) -> Option<u32> {
        self.0.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn short(&self, at: usize) -> Option<usize> {
        self.0.get(at..)?.first_chunk().map(|bytes| usize::from(u16::from_le_bytes(*bytes)))
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }
}
