//! Packs a directory as a layer. The same files give the same bytes: names are sorted, and the
//! times of the build, device numbers and user names are left out.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use belljar_sys::xattr;

use crate::digest::HashingWriter;
use crate::store::Writer;
use crate::{ImageError, OciDigest, limits};

/// The modification time of all files that a build created: a constant, so that builds are
/// reproducible.
const BUILD_TIME: u64 = 1_767_225_600;

/// How a directory is packed.
#[derive(Debug, Default)]
pub(crate) struct Rules<'a> {
    /// When the build began, in seconds since the epoch. Newer files were created by the build.
    pub(crate) build_began: Option<u64>,
    /// The directory is the upper directory of an overlay, in which a device 0,0 marks a removed
    /// file.
    pub(crate) is_overlay: bool,
    /// Directories that are packed without their content.
    pub(crate) emptied: &'a [&'a str],
    /// Paths that are left out.
    pub(crate) omitted: &'a [&'a str],
}

#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) digest: OciDigest,
    pub(crate) size: u64,
}

/// Packs a directory and stores the layer.
pub(crate) fn directory(
    writer: &Writer<'_>,
    root: &Path,
    rules: &Rules<'_>,
) -> Result<Packed, ImageError> {
    let path = writer.scratch()?.join("layer");
    let file = File::create_new(&path).map_err(ImageError::file(&path))?;
    let hashing = HashingWriter::new(BufWriter::with_capacity(256 << 10, file));
    let mut packing =
        Packing { root, rules, tar: tar::Builder::new(hashing), seen: HashMap::new() };
    packing.below(Path::new(""), 0)?;
    let finished = packing.tar.into_inner().map_err(ImageError::file(&path))?;
    let (mut file, digest, size) = finished.finish();
    file.flush().map_err(ImageError::file(&path))?;
    drop(file);
    if writer.has_blob(&digest).is_none() {
        writer.adopt_blob(&path, &digest)?;
    }
    Ok(Packed { digest, size })
}

struct Packing<'a, W: Write> {
    root: &'a Path,
    rules: &'a Rules<'a>,
    tar: tar::Builder<W>,
    /// Files with several names, by device and inode, with the first name.
    seen: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Packing<'_, W> {
    fn below(&mut self, directory: &Path, depth: usize) -> Result<(), ImageError> {
        let full = self.root.join(directory);
        if depth > limits::MAX_DEPTH {
            return Err(ImageError::TooMuch(format!("`{}` is too deep", full.display())));
        }
        let entries = fs::read_dir(&full).map_err(ImageError::file(&full))?;
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry.map_err(ImageError::file(&full))?.file_name());
        }
        names.sort();
        for name in names {
            let path = directory.join(name);
            if self.rules.omitted.iter().any(|omitted| path == Path::new(omitted)) {
                continue;
            }
            let full = self.root.join(&path);
            let metadata = fs::symlink_metadata(&full).map_err(ImageError::file(&full))?;
            self.entry(&path, &full, &metadata).map_err(ImageError::file(&full))?;
            let emptied = self.rules.emptied.iter().any(|emptied| path == Path::new(emptied));
            if metadata.is_dir() && !emptied {
                self.below(&path, depth + 1)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, full: &Path, metadata: &Metadata) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(metadata.mode() & 0o7777);
        header.set_uid(metadata.uid().into());
        header.set_gid(metadata.gid().into());
        header.set_mtime(self.time(metadata));
        header.set_size(0);
        let kind = metadata.file_type();
        if kind.is_dir() {
            header.set_entry_type(tar::EntryType::Directory);
            let name = [path.as_os_str().as_bytes(), b"/"].concat();
            self.tar.append_data(&mut header, OsStr::from_bytes(&name), io::empty())?;
            if self.rules.is_overlay && is_opaque(full)? {
                self.marker(&path.join(".wh..wh..opq"))?;
            }
            return Ok(());
        }
        if kind.is_symlink() {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_mode(0o777);
            return self.tar.append_link(&mut header, path, fs::read_link(full)?);
        }
        if kind.is_char_device() && self.rules.is_overlay && metadata.rdev() == 0 {
            let mut hidden = b".wh.".to_vec();
            hidden.extend_from_slice(path.file_name().unwrap_or_default().as_bytes());
            return self.marker(&path.with_file_name(OsStr::from_bytes(&hidden)));
        }
        if !kind.is_file() {
            // Images do not contain devices, pipes and sockets.
            return Ok(());
        }
        if metadata.nlink() > 1 {
            let identity = (metadata.dev(), metadata.ino());
            if let Some(first) = self.seen.get(&identity) {
                header.set_entry_type(tar::EntryType::Link);
                return self.tar.append_link(&mut header, path, first.clone());
            }
            self.seen.insert(identity, path.to_owned());
        }
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(metadata.len());
        // If the file grows meanwhile, the extra bytes are not packed: they would shift all later
        // entries.
        let content = io::Read::take(File::open(full)?, metadata.len());
        self.tar.append_data(&mut header, path, content)
    }

    fn marker(&mut self, path: &Path) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_mtime(BUILD_TIME);
        header.set_size(0);
        header.set_entry_type(tar::EntryType::Regular);
        self.tar.append_data(&mut header, path, io::empty())
    }

    fn time(&self, metadata: &Metadata) -> u64 {
        let modified = u64::try_from(metadata.mtime()).unwrap_or(0);
        match self.rules.build_began {
            Some(began) if modified >= began => BUILD_TIME,
            _ => modified,
        }
    }
}

/// Whether the directory hides the content of the same directory in lower layers.
fn is_opaque(directory: &Path) -> io::Result<bool> {
    Ok(xattr::get(directory, "trusted.overlay.opaque")?.as_deref() == Some(b"y"))
}
