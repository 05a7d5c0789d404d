//! Packs and unpacks archives. Names that lead out of the directory are refused.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::OwnedFd;

use belljar_proto::guest::{Refusal, RefusalCode};
use belljar_proto::job::{ArchiveFormat, JobReport};
use belljar_sys::tree::Root;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};
use zip::write::{SimpleFileOptions, StreamWriter};
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::tree::{self, Tree};
use super::{Item, Moving, Outcome, Target};
use crate::reply::refuse;

/// The size of buffers for the pipe.
pub(super) const PIECE: usize = 256 * 1024;

/// The longest target of a link: no path is longer.
const MAX_TARGET: u64 = 4096;

/// The most bytes between the contents of two entries: headers, long names and attributes, which are kept in memory.
/// Archives that a sandbox packed may be unpacked outside of it.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// How many times larger than its stored data a sparse file may be, and the size from which on this is checked.
/// Holes are written as zeros.
const MAX_RATIO: u64 = 200;
const RATIO_MATTERS: u64 = 64 << 20;

/// Packs everything below `root`.
pub(super) fn pack(root: &Root, to: OwnedFd, format: ArchiveFormat) -> Outcome {
    let to = BufWriter::with_capacity(PIECE, File::from(to));
    let mut target: Box<dyn Target> = match format {
        ArchiveFormat::Tar => Box::new(Tar::new(to)),
        ArchiveFormat::TarGz => {
            let packed = GzEncoder::new(to, Compression::fast());
            Box::new(Tar::new(packed))
        }
        ArchiveFormat::Zip => Box::new(Zip(Some(ZipWriter::new_stream(to)))),
    };
    let mut moving = Moving { target: &mut *target, report: JobReport::default() };
    if let Err(refusal) = tree::walk(root, &mut moving) {
        // The end is not written, so that half an archive does not look complete.
        std::mem::forget(target);
        return Err(refusal);
    }
    moving.finish()
}

/// Unpacks into `root`.
pub(super) fn unpack(from: OwnedFd, root: &Root, format: ArchiveFormat) -> Outcome {
    let from = BufReader::with_capacity(PIECE, File::from(from));
    let mut target = Tree::new(root);
    let mut moving = Moving { target: &mut target, report: JobReport::default() };
    match format {
        ArchiveFormat::Tar => unpack_tar(from, &mut moving)?,
        ArchiveFormat::TarGz => unpack_tar(MultiGzDecoder::new(from), &mut moving)?,
        ArchiveFormat::Zip => unpack_zip(from, &mut moving)?,
    }
    moving.finish()
}

pub(super) struct Tar<W: Write + Finish>(Option<tar::Builder<W>>);

impl<W: Write + Finish> Tar<W> {
    pub(super) fn new(to: W) -> Tar<W> {
        Tar(Some(tar::Builder::new(to)))
    }
}

/// Writers that must be completed.
pub(super) trait Finish {
    fn end(self) -> io::Result<()>;
}

impl Finish for BufWriter<File> {
    fn end(mut self) -> io::Result<()> {
        self.flush()
    }
}

impl Finish for GzEncoder<BufWriter<File>> {
    fn end(self) -> io::Result<()> {
        self.finish()?.flush()
    }
}

impl<W: Write + Finish> Target for Tar<W> {
    fn put(&mut self, path: &[u8], mode: u32, modified: i64, item: Item<'_>) -> io::Result<()> {
        let Some(builder) = &mut self.0 else { return Ok(()) };
        let mut header = Header::new_gnu();
        header.set_mode(mode);
        header.set_mtime(u64::try_from(modified).unwrap_or(0));
        header.set_size(0);
        let name = as_path(path);
        match item {
            Item::Directory => {
                header.set_entry_type(EntryType::Directory);
                builder.append_data(&mut header, as_path(&[path, b"/"].concat()), io::empty())
            }
            Item::File { size, content } => {
                header.set_entry_type(EntryType::Regular);
                header.set_size(size);
                builder.append_data(&mut header, name, content)
            }
            Item::Link { target } => {
                header.set_entry_type(EntryType::Symlink);
                builder.append_link(&mut header, name, as_path(&target))
            }
            Item::HardLink { existing } => {
                header.set_entry_type(EntryType::Link);
                builder.append_link(&mut header, name, as_path(&existing))
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.take().map_or(Ok(()), |builder| builder.into_inner()?.end())
    }
}

struct Zip(Option<ZipWriter<StreamWriter<BufWriter<File>>>>);

impl Target for Zip {
    fn put(&mut self, path: &[u8], mode: u32, _: i64, item: Item<'_>) -> io::Result<()> {
        let Some(writer) = &mut self.0 else { return Ok(()) };
        let name = std::str::from_utf8(path).map_err(|_| {
            let why = "the name is not UTF-8, which zip archives do not support; use tar";
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(1))
            .unix_permissions(mode);
        match item {
            Item::Directory => Ok(writer.add_directory(name, options)?),
            Item::File { size, content } => {
                writer.start_file(name, options.large_file(size >= u64::from(u32::MAX)))?;
                io::copy(content, writer).map(|_| ())
            }
            Item::Link { target } | Item::HardLink { existing: target } => {
                let target = String::from_utf8_lossy(&target).into_owned();
                Ok(writer.add_symlink(name, target, options)?)
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        let Some(writer) = self.0.take() else { return Ok(()) };
        writer.finish()?.into_inner().flush()
    }
}

pub(super) fn unpack_tar(from: impl Read, moving: &mut Moving<'_>) -> Result<(), Refusal> {
    let left = Cell::new(None);
    let mut archive = tar::Archive::new(HeaderLimit { inner: from, left: &left });
    let mut entries = archive.entries().map_err(|error| broken(&error))?;
    loop {
        left.set(Some(MAX_HEADER_BYTES));
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(|error| broken(&error))?;
        left.set(None);
        unpack_entry(&mut entry, moving)?;
        // Skip content that was not read, so that only headers follow.
        io::copy(&mut entry, &mut io::sink()).map_err(|error| broken(&error))?;
    }
    Ok(())
}

/// Limits how many bytes of an archive are read, while a limit is set.
struct HeaderLimit<'a, R> {
    inner: R,
    left: &'a Cell<Option<u64>>,
}

impl<R: Read> Read for HeaderLimit<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(left) = self.left.get() else { return self.inner.read(buffer) };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 && !buffer.is_empty() {
            return Err(io::Error::other(format!(
                "the header of an entry exceeds {MAX_HEADER_BYTES} bytes"
            )));
        }
        let read = self.inner.read(&mut buffer[..most])?;
        self.left.set(Some(left - read as u64));
        Ok(read)
    }
}

fn unpack_entry<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    moving: &mut Moving<'_>,
) -> Result<(), Refusal> {
    let raw = entry.path_bytes().into_owned();
    let Some(path) = plain(&raw)? else { return Ok(()) };
    let header = entry.header();
    let mode = header.mode().unwrap_or(0o644) & 0o777;
    let modified = header.mtime().ok().and_then(|time| i64::try_from(time).ok()).unwrap_or(0);
    let kind = header.entry_type();
    let stored = header.entry_size().unwrap_or(0);
    let link = entry.link_name_bytes().map(std::borrow::Cow::into_owned);
    match (kind, link) {
        (EntryType::Directory, _) => moving.put(&path, mode, modified, Item::Directory),
        (EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse, _) => {
            let size = entry.size();
            let is_hole = size > RATIO_MATTERS && size / MAX_RATIO > stored;
            if kind == EntryType::GNUSparse && is_hole {
                return Err(broken(&"a file in it consists almost entirely of holes"));
            }
            let content = &mut Whole { entry, left: size };
            moving.put(&path, mode, modified, Item::File { size, content })
        }
        (EntryType::Symlink, Some(target)) => {
            moving.put(&path, mode, modified, Item::Link { target })
        }
        (EntryType::Link, Some(existing)) => {
            let existing = plain(&existing)?.ok_or_else(|| leads_out(&raw))?;
            moving.put(&path, mode, modified, Item::HardLink { existing })
        }
        (kind, _) if kind.is_pax_global_extensions() => Ok(()),
        _ => {
            moving.report.skipped += 1;
            Ok(())
        }
    }
}

/// The content of an entry; an error if the archive ends before it is complete.
struct Whole<'a, R: Read> {
    entry: &'a mut R,
    left: u64,
}

impl<R: Read> Read for Whole<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Distinguish errors of the archive from errors of the target.
        let unreadable = |error: io::Error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let read = self.entry.read(buffer).map_err(unreadable)?;
        self.left = self.left.saturating_sub(read as u64);
        match read {
            0 if self.left > 0 && !buffer.is_empty() => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "the archive ends in the middle"))
            }
            read => Ok(read),
        }
    }
}

fn unpack_zip(from: BufReader<File>, moving: &mut Moving<'_>) -> Result<(), Refusal> {
    let mut archive = ZipArchive::new(from).map_err(|error| broken(&error))?;
    // A zip archive has all names in one place: check them before anything is written.
    for name in archive.file_names() {
        plain(name.map_err(|error| broken(&error))?.as_bytes())?;
    }
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| broken(&error))?;
        let name = entry.name().map_err(|error| broken(&error))?.into_owned();
        let Some(path) = plain(name.as_bytes())? else { continue };
        let kinds = entry.unix_mode().unwrap_or(0);
        let mode = if kinds == 0 { 0o644 } else { kinds & 0o777 };
        if entry.is_dir() {
            moving.put(&path, mode | 0o700, 0, Item::Directory)?;
        } else if entry.is_symlink() {
            let mut target = Vec::new();
            let read = (&mut entry).take(MAX_TARGET).read_to_end(&mut target);
            read.map_err(|error| broken(&error))?;
            moving.put(&path, mode, 0, Item::Link { target })?;
        } else {
            let size = entry.size();
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let now = now.ok().and_then(|now| i64::try_from(now.as_secs()).ok()).unwrap_or(0);
            let content = &mut Whole { entry: &mut entry, left: size };
            moving.put(&path, mode, now, Item::File { size, content })?;
        }
    }
    Ok(())
}

/// A name of an archive as a path below the root; `None` for the root itself.
fn plain(name: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
    if name.starts_with(b"/") {
        return Err(leads_out(name));
    }
    let mut names = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(leads_out(name)),
            part => names.push(part),
        }
    }
    Ok((!names.is_empty()).then(|| names.join(&b'/')))
}

fn leads_out(name: &[u8]) -> Refusal {
    let shown = String::from_utf8_lossy(&name[..name.len().min(1000)]).into_owned();
    let message = format!("the archive has an entry `{shown}`, which leads out of the directory");
    refuse(RefusalCode::Invalid, message)
}

fn broken(error: &dyn std::fmt::Display) -> Refusal {
    refuse(
        RefusalCode::Invalid,
        format!("the archive is damaged, incomplete or of another format: {error}"),
    )
}

fn as_path(bytes: &[u8]) -> &std::path::Path {
    use std::os::unix::ffi::OsStrExt;
    std::path::Path::new(std::ffi::OsStr::from_bytes(bytes))
}

#[cfg(test)]
#[path = "archive_fuzz.rs"]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_are_refused() {
        let path = |name: &str| {
            plain(name.as_bytes()).map(|path| path.map(|p| String::from_utf8(p).unwrap()))
        };
        assert_eq!(path("a/b").unwrap().as_deref(), Some("a/b"));
        assert_eq!(path("./a//b/").unwrap().as_deref(), Some("a/b"));
        assert_eq!(path("./").unwrap(), None);
        for bad in ["/etc/passwd", "../x", "a/../../x", "a/..", ".."] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }
}
