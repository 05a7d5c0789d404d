//! Reads untrusted tar archives.
//!
//! The `tar` crate parses one header block at a time. Data that is longer than a block (long names,
//! attributes, maps of sparse files) is read here, within limits: an archive cannot make us hold
//! more in memory than [`limits::MAX_EXTENSION`].

use std::io::{self, Read};

use crate::layer::read_error;
use crate::{ImageError, limits};

const BLOCK: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    /// The target of the link.
    Link(Vec<u8>),
    /// The path of an earlier file of the archive.
    HardLink(Vec<u8>),
    /// A device, a pipe or the like: images do not contain these.
    Special(&'static str),
}

#[derive(Debug)]
pub(crate) struct ArchiveEntry {
    /// As the archive contains it, unchecked.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    /// Seconds since the epoch.
    pub(crate) modified: u64,
    /// The size of the unpacked file.
    pub(crate) size: u64,
    /// For a sparse file: the offset and length of each segment that is stored.
    pieces: Option<Vec<(u64, u64)>>,
}

/// Reads the entries in order; after each entry, its content can be read.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    inner: R,
    /// Unread bytes of the current entry, and the padding of its last block.
    left: u64,
    padding: u64,
    at_end: bool,
}

/// Values of extended headers, which apply to the next entry.
#[derive(Debug, Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    modified: Option<u64>,
    uid: Option<u64>,
    /// GNU sparse files: the version of the format, whether it is an older version, and the size of
    /// the file including its holes.
    sparse_major: Option<Vec<u8>>,
    sparse_minor: Option<Vec<u8>>,
    sparse_old: bool,
    sparse_size: Option<u64>,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(inner: R) -> Reader<R> {
        Reader { inner, left: 0, padding: 0, at_end: false }
    }

    /// The rest of the input, after the archive.
    pub(crate) fn into_inner(self) -> R {
        self.inner
    }

    /// The next entry. Skips the unread content of the current one.
    pub(crate) fn next_entry(&mut self) -> Result<Option<ArchiveEntry>, ImageError> {
        let mut extension = Extension::default();
        loop {
            self.skip(self.left + self.padding)?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = extension.size.take();
            let size = match size {
                Some(size) => size,
                None => header.entry_size().map_err(|error| damaged(&error))?,
            };
            let stored = size.checked_next_multiple_of(BLOCK as u64);
            let stored = stored.ok_or_else(|| damaged("the size of an entry makes no sense"))?;
            (self.left, self.padding) = (size, stored - size);
            match header.as_bytes()[156] {
                b'L' => extension.path = Some(self.long_name()?),
                b'K' => extension.link = Some(self.long_name()?),
                b'x' => {
                    let text = self.extension_bytes()?;
                    read_pax(&text, &mut extension)?;
                }
                // A global header, for all entries that follow. We need nothing from it.
                b'g' => {}
                kind => return self.entry(&header, kind, extension).map(Some),
            }
        }
    }

    /// Writes the content of the current entry; holes of a sparse file are not written.
    pub(crate) fn copy_to(
        &mut self,
        entry: &ArchiveEntry,
        file: &mut (impl io::Write + io::Seek),
    ) -> Result<(), ImageError> {
        let failed = |cause| ImageError::Entry { path: show(&entry.path), cause };
        let Some(pieces) = &entry.pieces else {
            return self.copy_piece(entry.size, file, &failed);
        };
        for (offset, length) in pieces {
            file.seek(io::SeekFrom::Start(*offset)).map_err(failed)?;
            self.copy_piece(*length, file, &failed)?;
        }
        Ok(())
    }

    fn copy_piece(
        &mut self,
        length: u64,
        file: &mut impl io::Write,
        failed: &impl Fn(io::Error) -> ImageError,
    ) -> Result<(), ImageError> {
        let mut buffer = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(128 << 10)];
        let mut rest = length;
        while rest > 0 {
            let want = usize::try_from(rest).unwrap_or(usize::MAX).min(buffer.len());
            let n = self.read(&mut buffer[..want]).map_err(read_error)?;
            if n == 0 {
                return Err(cut_off());
            }
            file.write_all(&buffer[..n]).map_err(failed)?;
            rest -= n as u64;
        }
        Ok(())
    }

    fn header(&mut self) -> Result<Option<tar::Header>, ImageError> {
        if self.at_end {
            return Ok(None);
        }
        let mut header = tar::Header::new_old();
        let mut filled = 0;
        while filled < BLOCK {
            match self.inner.read(&mut header.as_mut_bytes()[filled..]).map_err(read_error)? {
                0 if filled == 0 => {
                    self.at_end = true;
                    return Ok(None);
                }
                0 => return Err(cut_off()),
                n => filled += n,
            }
        }
        let bytes = header.as_bytes();
        if bytes.iter().all(|&byte| byte == 0) {
            self.at_end = true;
            return Ok(None);
        }
        let sum = |range: &[u8]| range.iter().map(|&byte| u32::from(byte)).sum::<u32>();
        // The checksum is computed with spaces in its own field.
        let expected = sum(&bytes[..148]) + 8 * u32::from(b' ') + sum(&bytes[156..]);
        if header.cksum().ok() != Some(expected) {
            return Err(ImageError::Archive("the checksum of an entry is wrong".into()));
        }
        Ok(Some(header))
    }

    fn entry(
        &mut self,
        header: &tar::Header,
        kind: u8,
        extension: Extension,
    ) -> Result<ArchiveEntry, ImageError> {
        let mut path = extension.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = || {
            let own = header.link_name_bytes().map(std::borrow::Cow::into_owned);
            extension.link.clone().or(own).unwrap_or_default()
        };
        let (mut size, mut pieces) = (self.left, None);
        let kind = match kind {
            b'0' | 0 | b'7' if path.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' => {
                let version =
                    (extension.sparse_major.as_deref(), extension.sparse_minor.as_deref());
                if version == (Some(b"1"), Some(b"0")) {
                    pieces = Some(self.pieces_in_data()?);
                    size = extension.sparse_size.unwrap_or(size);
                } else if version != (None, None) || extension.sparse_old {
                    let message = "files with holes in an old format of GNU tar".to_owned();
                    return Err(ImageError::Unsupported(message));
                }
                Kind::File
            }
            b'S' => {
                pieces = Some(self.pieces_in_header(header)?);
                let gnu = header.as_gnu().ok_or_else(|| damaged("a sparse entry without a map"))?;
                size = gnu.real_size().map_err(|error| damaged(&error))?;
                Kind::File
            }
            b'1' => Kind::HardLink(link()),
            b'2' => Kind::Link(link()),
            b'5' => Kind::Directory,
            b'3' | b'4' => Kind::Special("device"),
            b'6' => Kind::Special("named pipe"),
            _ => Kind::Special("entry of an unknown kind"),
        };
        if let Some(pieces) = &pieces {
            check_pieces(pieces, size, self.left)?;
        }
        while path.ends_with(b"/") {
            path.pop();
        }
        Ok(ArchiveEntry {
            path,
            kind,
            mode: header.mode().map_err(|error| damaged(&error))?,
            uid: extension.uid.or(header.uid().ok()).unwrap_or(0),
            modified: extension.modified.or(header.mtime().ok()).unwrap_or(0),
            size,
            pieces,
        })
    }

    fn long_name(&mut self) -> Result<Vec<u8>, ImageError> {
        let mut name = self.extension_bytes()?;
        while name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }

    fn extension_bytes(&mut self) -> Result<Vec<u8>, ImageError> {
        if self.left > limits::MAX_EXTENSION {
            return Err(ImageError::TooMuch(format!(
                "the head of an entry has {} bytes, and {} are allowed",
                self.left,
                limits::MAX_EXTENSION
            )));
        }
        let mut bytes = vec![0; usize::try_from(self.left).unwrap_or(0)];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.read(&mut bytes[filled..]).map_err(read_error)? {
                0 => return Err(cut_off()),
                n => filled += n,
            }
        }
        Ok(bytes)
    }

    /// The old GNU format: four segments in the header, more in the blocks after it.
    fn pieces_in_header(&mut self, header: &tar::Header) -> Result<Vec<(u64, u64)>, ImageError> {
        let gnu = header.as_gnu().ok_or_else(|| damaged("a sparse entry without a map"))?;
        let mut pieces = Vec::new();
        let mut add = |found: &[tar::GnuSparseHeader]| {
            for piece in found.iter().filter(|piece| !piece.is_empty()) {
                let offset = piece.offset().map_err(|error| damaged(&error))?;
                let length = piece.length().map_err(|error| damaged(&error))?;
                pieces.push((offset, length));
            }
            Ok::<usize, ImageError>(pieces.len())
        };
        add(&gnu.sparse)?;
        let mut more = gnu.is_extended();
        while more {
            let mut block = tar::GnuExtSparseHeader::new();
            self.inner.read_exact(block.as_mut_bytes()).map_err(read_error)?;
            if add(&block.sparse)? > limits::MAX_SPARSE_PIECES {
                return Err(ImageError::TooMuch("a file has too many holes".into()));
            }
            more = block.is_extended();
        }
        Ok(pieces)
    }

    /// The newer format (1.0): one number per line, in whole blocks before the content.
    fn pieces_in_data(&mut self) -> Result<Vec<(u64, u64)>, ImageError> {
        let mut numbers: Vec<u64> = Vec::new();
        let (mut line, mut wanted) = (String::new(), 1);
        let mut block = [0; BLOCK];
        while numbers.len() < wanted {
            if self.left < BLOCK as u64 {
                return Err(damaged("the map of a sparse file is cut off"));
            }
            let mut filled = 0;
            while filled < BLOCK {
                match self.read(&mut block[filled..]).map_err(read_error)? {
                    0 => return Err(cut_off()),
                    n => filled += n,
                }
            }
            for &byte in &block {
                if numbers.len() == wanted {
                    break;
                }
                if byte != b'\n' {
                    line.push(char::from(byte));
                    if line.len() > 20 {
                        return Err(damaged("the map of a sparse file makes no sense"));
                    }
                    continue;
                }
                let number: u64 =
                    line.parse().map_err(|_| damaged("the map of a sparse file makes no sense"))?;
                line.clear();
                numbers.push(number);
                if numbers.len() == 1 {
                    let pieces = usize::try_from(number).unwrap_or(usize::MAX);
                    if pieces > limits::MAX_SPARSE_PIECES {
                        return Err(ImageError::TooMuch("a file has too many holes".into()));
                    }
                    wanted = 1 + 2 * pieces;
                }
            }
        }
        Ok(numbers[1..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    fn skip(&mut self, mut count: u64) -> Result<(), ImageError> {
        let mut buffer = [0; 16 << 10];
        while count > 0 {
            let want = usize::try_from(count).unwrap_or(usize::MAX).min(buffer.len());
            match self.inner.read(&mut buffer[..want]).map_err(read_error)? {
                0 => return Err(cut_off()),
                n => count -= n as u64,
            }
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }
}

/// Reads the content of the current entry.
impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let n = self.inner.read(&mut buffer[..want])?;
        self.left -= n as u64;
        Ok(n)
    }
}

/// Parses pax attributes: one `length key=value` per line. The length counts the whole line.
fn read_pax(text: &[u8], extension: &mut Extension) -> Result<(), ImageError> {
    let nonsense = || damaged("the attributes of an entry make no sense");
    let mut rest = text;
    while !rest.is_empty() {
        let space = rest.iter().position(|&byte| byte == b' ').ok_or_else(nonsense)?;
        let length = std::str::from_utf8(&rest[..space]).ok().and_then(|text| text.parse().ok());
        let length: usize = length.ok_or_else(nonsense)?;
        if length <= space + 1 || length > rest.len() || rest[length - 1] != b'\n' {
            return Err(nonsense());
        }
        let record = &rest[space + 1..length - 1];
        rest = &rest[length..];
        let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(nonsense)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        let number = || {
            let text = std::str::from_utf8(value).ok()?;
            // Times may have a fraction, and may be before the epoch.
            let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
            if whole.starts_with('-') { Some(0) } else { whole.parse::<u64>().ok() }
        };
        match key {
            b"path" | b"GNU.sparse.name" => extension.path = Some(value.to_vec()),
            b"linkpath" => extension.link = Some(value.to_vec()),
            b"size" => extension.size = Some(number().ok_or_else(nonsense)?),
            b"mtime" => extension.modified = number(),
            b"uid" => extension.uid = number(),
            b"GNU.sparse.major" => extension.sparse_major = Some(value.to_vec()),
            b"GNU.sparse.minor" => extension.sparse_minor = Some(value.to_vec()),
            b"GNU.sparse.map" | b"GNU.sparse.offset" => extension.sparse_old = true,
            b"GNU.sparse.realsize" => extension.sparse_size = number(),
            _ => {}
        }
    }
    Ok(())
}

/// Segments must be in order, must not overlap, and must contain all stored bytes.
fn check_pieces(pieces: &[(u64, u64)], size: u64, stored: u64) -> Result<(), ImageError> {
    let (mut end, mut sum) = (0u64, 0u64);
    for (offset, length) in pieces {
        let last = offset.checked_add(*length).filter(|last| *offset >= end && *last <= size);
        end = last.ok_or_else(|| damaged("the map of a sparse file makes no sense"))?;
        sum += length;
    }
    if sum != stored {
        return Err(damaged("the map of a sparse file does not fit its bytes"));
    }
    Ok(())
}

fn damaged(why: impl std::fmt::Display) -> ImageError {
    ImageError::Archive(why.to_string())
}

fn cut_off() -> ImageError {
    ImageError::Archive("it ends in the middle of an entry".into())
}

/// A path of an archive, for messages.
pub(crate) fn show(path: &[u8]) -> String {
    const SHOWN: usize = 200;
    let text = String::from_utf8_lossy(path);
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_may_contain_anything_but_nonsense() {
        let mut extension = Extension::default();
        read_pax(b"16 path=a\nb=c d\n11 size=12\n17 mtime=12.5678\n", &mut extension).unwrap();
        assert_eq!(extension.path.unwrap(), b"a\nb=c d");
        assert_eq!((extension.size, extension.modified), (Some(12), Some(12)));
        for wrong in
            [&b"5 a=b"[..], b"99 path=a\n", b"x path=a\n", b"3 a\n", b"0 \n", b"9 size=x\n"]
        {
            assert!(read_pax(wrong, &mut Extension::default()).is_err());
        }
    }

    #[test]
    fn maps_of_holes_must_fit() {
        assert!(check_pieces(&[(0, 4), (8, 4)], 16, 8).is_ok());
        for (pieces, size, stored) in [
            (&[(8u64, 4u64), (0, 4)][..], 16, 8),
            (&[(0, 4)], 2, 4),
            (&[(u64::MAX, 2)], 16, 2),
            (&[(0, 4)], 16, 5),
        ] {
            assert!(check_pieces(pieces, size, stored).is_err());
        }
    }
}
