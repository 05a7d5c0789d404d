//! Detects the format, the columns and the number of rows of a dataset, where that is cheap.
//!
//! Files are untrusted. They are read only at given offsets, never beyond the given size, and every reader limits what
//! it reads and keeps. Malformed content gives a shorter description and is never an error.
//!
//! Metadata in a file is not verified: a Parquet footer may claim any number of rows.

mod arrow;
mod delimited;
mod parquet;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use serde::Serialize;

/// Bytes from the beginning that are used to detect the format, and the delimiter of a table.
const HEAD: usize = 64 * 1024;

/// Text is read in chunks of this size.
const CHUNK: usize = 64 * 1024;

/// Rows of larger text files are not counted.
const MAX_COUNTED: u64 = 16 * 1024 * 1024;

/// The largest metadata of Parquet and Arrow files that is read.
const MAX_METADATA: usize = 8 * 1024 * 1024;

const MAX_COLUMNS: usize = 1000;

const MAX_NAME_CHARACTERS: usize = 200;

/// A character has at most four bytes.
const MAX_NAME_BYTES: usize = 4 * MAX_NAME_CHARACTERS;

/// A description of a dataset's content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Description {
    /// One of `parquet`, `csv`, `tsv`, `json`, `jsonl`, `arrow`, `feather`, `excel`, `npy`, `npz`,
    /// `sqlite`, `hdf5`, `avro`, `pickle`, `zip`, `gzip`, `xz`, `zstd`, `text` and `binary`.
    pub format: &'static str,
    /// Names of the first 1,000 columns, each cut at 200 characters. Empty for an empty CSV, which is known to have no
    /// columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// Records after the header, lines of JSON, or the number in the file's metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
}

/// Describes `file`, which has `size` bytes and this name. Reads at most 25 MiB, keeps at most 8 MiB of it in memory,
/// and does not move the cursor. May block on the disk.
#[must_use]
pub fn describe(name: &str, file: &File, size: u64) -> Description {
    let content = FileContent { file, size };
    let head = content.read(0, HEAD);
    let extension = extension(name);
    let only = |format| Description { format, ..Description::default() };

    match by_magic(&content, &head, &extension) {
        Some("parquet") => {
            let (columns, rows) = parquet::columns_and_rows(&content).unzip();
            return Description { format: "parquet", columns, rows };
        }
        Some(format @ ("arrow" | "feather")) => {
            return Description { columns: arrow::columns(&content, &head), ..only(format) };
        }
        Some("npy") => return Description { rows: npy_rows(&head), ..only("npy") },
        Some(format) => return only(format),
        None => {}
    }
    // An Arrow stream has no magic bytes: it begins with the length of a schema.
    if let Some(columns) = arrow::columns(&content, &head) {
        return Description { columns: Some(columns), ..only("arrow") };
    }

    let is_wide_text = head.starts_with(b"\xFF\xFE") || head.starts_with(b"\xFE\xFF");
    match by_extension(&extension) {
        Some("pickle") => only("pickle"),
        // UTF-16, as Excel saves tables, is not parsed here.
        Some(format) if is_wide_text => only(format),
        Some(_) if head.contains(&0) => only("binary"),
        Some(format @ ("csv" | "tsv")) => {
            let delimiter = delimited::delimiter(&head, format == "tsv");
            let (columns, rows) = delimited::columns_and_rows(&content, delimiter);
            Description { format, columns, rows }
        }
        Some("jsonl") => Description { rows: lines(&content), ..only("jsonl") },
        Some(format) => only(format),
        None if is_wide_text || head.iter().all(|&byte| is_of_text(byte)) => only("text"),
        None => only("binary"),
    }
}

/// Detects the format by its first bytes. Formats with the same first bytes are distinguished by the extension. Magic
/// bytes that could be text are also compared with the end of the file.
fn by_magic(content: &FileContent<'_>, head: &[u8], extension: &str) -> Option<&'static str> {
    let begins = |magic: &[u8]| head.starts_with(magic);
    let begins_and_ends = |magic: &[u8]| {
        let last_at = content.size.saturating_sub(magic.len() as u64);
        begins(magic) && last_at > 0 && content.read(last_at, magic.len()) == magic
    };
    // PARE is Parquet with an encrypted footer.
    if begins_and_ends(b"PAR1") || begins_and_ends(b"PARE") {
        return Some("parquet");
    }
    // FEA1 is the first version of Feather, which was not based on Arrow.
    if begins(b"ARROW1\0\0") || begins_and_ends(b"FEA1") {
        return Some(if begins(b"FEA1") || extension == "feather" { "feather" } else { "arrow" });
    }
    // The second one is an empty archive.
    if begins(b"PK\x03\x04") || begins(b"PK\x05\x06") {
        return Some(zip_by_extension(extension));
    }
    // Documents of old Office versions.
    if begins(b"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1") {
        return Some(if extension == "xls" { "excel" } else { "binary" });
    }
    let others: [(&[u8], &str); 7] = [
        (b"\x93NUMPY", "npy"),
        (b"SQLite format 3\0", "sqlite"),
        (b"\x89HDF\r\n\x1A\n", "hdf5"),
        (b"Obj\x01", "avro"),
        (b"\x1F\x8B", "gzip"),
        (b"\xFD7zXZ\0", "xz"),
        (b"\x28\xB5\x2F\xFD", "zstd"),
    ];
    others.iter().find(|(magic, _)| begins(magic)).map(|(_, format)| *format)
}

fn zip_by_extension(extension: &str) -> &'static str {
    match extension {
        "xlsx" | "xlsm" | "xlsb" => "excel",
        "npz" => "npz",
        _ => "zip",
    }
}

/// Formats without magic bytes.
fn by_extension(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "csv" => "csv",
        "tsv" | "tab" => "tsv",
        "json" => "json",
        "jsonl" | "ndjson" => "jsonl",
        "pkl" | "pickle" => "pickle",
        _ => return None,
    })
}

fn extension(name: &str) -> String {
    name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default()
}

/// Whether text can contain this byte: all bytes except most control characters. Text need not be UTF-8.
fn is_of_text(byte: u8) -> bool {
    const BACKSPACE_TO_RETURN: std::ops::RangeInclusive<u8> = 0x08..=0x0D;
    const ESCAPE: u8 = 0x1B;
    byte >= b' ' || BACKSPACE_TO_RETURN.contains(&byte) || byte == ESCAPE
}

/// The number of lines that are not blank.
fn lines(content: &FileContent<'_>) -> Option<u64> {
    if content.size > MAX_COUNTED {
        return None;
    }
    let mut lines = 0;
    let mut is_blank = true;
    let whole = content.each_chunk(content.size, |chunk| {
        for byte in chunk {
            if *byte == b'\n' {
                is_blank = true;
            } else if is_blank && !byte.is_ascii_whitespace() {
                is_blank = false;
                lines += 1;
            }
        }
        ControlFlow::Continue(())
    });
    whole.then_some(lines)
}

/// The first dimension. The header is a Python dictionary, as text:
/// `{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }`
fn npy_rows(head: &[u8]) -> Option<u64> {
    let version = *head.get(6)?;
    let (at, length) = match version {
        1 => (10, usize::from(u16::from_le_bytes(*head.get(8..)?.first_chunk()?))),
        _ => (12, usize::try_from(u32::from_le_bytes(*head.get(8..)?.first_chunk()?)).ok()?),
    };
    let header = String::from_utf8_lossy(head.get(at..)?.get(..length)?);
    // The last occurrence counts, because a field of the array may have the same name.
    let (_, shape) = header.rsplit_once("'shape'")?;
    let shape = shape.trim_start().strip_prefix(':')?.trim_start().strip_prefix('(')?;
    let (first, _) = shape.split_once([',', ')'])?;
    first.trim().parse().ok()
}

/// The name of a column, shortened. It is shortened before it is decoded, because each invalid byte becomes three
/// bytes.
fn column_name(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(MAX_NAME_BYTES)];
    String::from_utf8_lossy(bytes).chars().take(MAX_NAME_CHARACTERS).collect()
}

/// A file and the size that it had. Its size may be different now.
struct FileContent<'a> {
    file: &'a File,
    size: u64,
}

impl FileContent<'_> {
    /// Up to `length` bytes from `at`; fewer if the file ends or cannot be read.
    fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let there = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length.min(there)];
        let read = self.read_into(at, &mut bytes);
        bytes.truncate(read);
        bytes
    }

    /// Exactly `length` bytes from `at`, or `None`.
    fn read_all(&self, at: u64, length: usize) -> Option<Vec<u8>> {
        Some(self.read(at, length)).filter(|bytes| bytes.len() == length)
    }

    /// Calls `see` with the first `length` bytes, in chunks of [`CHUNK`] bytes. Returns whether `see` got all of them.
    fn each_chunk(&self, length: u64, mut see: impl FnMut(&[u8]) -> ControlFlow<()>) -> bool {
        let mut at = 0;
        let end = length.min(self.size);
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let chunk = self.read(at, wanted);
            if see(&chunk).is_break() || chunk.len() < wanted {
                return false;
            }
            at += wanted as u64;
        }
        true
    }

    fn read_into(&self, at: u64, bytes: &mut [u8]) -> usize {
        let mut read = 0;
        while read < bytes.len() {
            match self.file.read_at(&mut bytes[read..], at + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        read
    }
}
