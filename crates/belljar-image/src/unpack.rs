//! Unpacks layers, one on top of the other, into a root file system.
//!
//! Archives are untrusted. No path leads out of the root, not even through links ([`belljar_sys::rootfs`]); devices
//! and pipes are skipped and counted; set-user-id bits, extended attributes and owners are dropped. All files belong
//! to the user that unpacks, and are mounted read-only and without set-user-id. Code in a sandbox never runs as that
//! user.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_sys::rootfs::{self, Rootfs, Standing};
use serde::{Deserialize, Serialize};

use crate::archive::{ArchiveEntry, Kind, Reader, show};
use crate::{ImageError, UnpackLimits, limits};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Metadata files of aufs, an obsolete file system.
const WHITEOUT_INTERNAL: &[u8] = b".wh..wh.";

/// Counts of what was unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// Bytes of files, including those that a later layer replaced or removed.
    pub bytes: u64,
    pub entries: u64,
    /// Devices, pipes and the like, which are skipped.
    pub skipped: u64,
}

impl Unpacked {
    fn take(&mut self, bytes: u64, limits: UnpackLimits) -> Result<(), ImageError> {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.entries > limits.entries {
            let message = format!("it has more than {} entries", limits.entries);
            return Err(ImageError::TooMuch(message));
        }
        if self.bytes > limits.bytes {
            return Err(ImageError::TooMuch(format!(
                "it unpacks to more than {} bytes (BELLJAR_IMAGE_LIMIT)",
                limits.bytes
            )));
        }
        Ok(())
    }
}

/// Unpacks a layer, already decompressed, on top of the content of `root`. Returns the rest of the
/// input.
pub(crate) fn apply<R: Read>(
    root: &Rootfs,
    layer: R,
    so_far: &mut Unpacked,
    limits: UnpackLimits,
) -> Result<R, ImageError> {
    let mut reader = Reader::new(layer);
    let mut top = OpenLayer::new(root);
    while let Some(entry) = reader.next_entry()? {
        let size = if entry.kind == Kind::File { entry.size } else { 0 };
        so_far.take(size, limits)?;
        if matches!(entry.kind, Kind::Special(_)) {
            so_far.skipped += 1;
            continue;
        }
        let path = plain(&entry.path)?;
        let failed = |cause| ImageError::Entry { path: show(&entry.path), cause };
        if !top.whiteout(&path).map_err(failed)? {
            top.place(&entry, path, &mut reader)?;
        }
        if top.remembered > limits::MAX_REMEMBERED {
            let message = "the paths of a layer take more memory than is allowed".to_owned();
            return Err(ImageError::TooMuch(message));
        }
    }
    top.finish();
    Ok(reader.into_inner())
}

/// A layer that is being unpacked.
struct OpenLayer<'a> {
    root: &'a Rootfs,
    /// Paths of this layer: whiteouts apply only to the layers below.
    own: HashSet<PathBuf>,
    /// Directories from which everything of lower layers was removed.
    cleared: HashSet<PathBuf>,
    /// Their times are set last, because creating files in them changes the times.
    directories: Vec<(PathBuf, u64)>,
    /// Bytes of all paths in these three.
    remembered: usize,
}

/// Memory for each path besides its bytes.
const PER_PATH: usize = 48;

impl<'a> OpenLayer<'a> {
    fn new(root: &'a Rootfs) -> OpenLayer<'a> {
        let (own, cleared, directories) = Default::default();
        OpenLayer { root, own, cleared, directories, remembered: 0 }
    }

    /// If this entry is a whiteout, removes what it names. Returns whether it is one.
    fn whiteout(&mut self, path: &Path) -> std::io::Result<bool> {
        let name = path.file_name().map_or(&b""[..], OsStr::as_bytes);
        let parent = path.parent().unwrap_or(Path::new(""));
        if name == OPAQUE {
            self.remove_below(parent)?;
        } else if name.starts_with(WHITEOUT_INTERNAL) {
            // Metadata of aufs is ignored.
        } else if let Some(gone) = name.strip_prefix(WHITEOUT) {
            if matches!(gone, b"" | b"." | b"..") {
                return Err(std::io::Error::other("a whiteout of nothing"));
            }
            self.remove_lower(&parent.join(OsStr::from_bytes(gone)))?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn remove_lower(&mut self, path: &Path) -> std::io::Result<()> {
        if !self.own.contains(path) {
            return self.root.remove(path);
        }
        match self.root.standing(path)? {
            Some(Standing::Directory) => self.remove_below(path),
            _ => Ok(()),
        }
    }

    fn remove_below(&mut self, directory: &Path) -> std::io::Result<()> {
        // Once is enough: everything added later belongs to this layer.
        if !self.cleared.insert(directory.to_owned()) {
            return Ok(());
        }
        self.remembered += directory.as_os_str().len() + PER_PATH;
        for name in self.root.names(directory)? {
            self.remove_lower(&directory.join(OsStr::from_bytes(&name)))?;
        }
        Ok(())
    }

    fn place<R: Read>(
        &mut self,
        entry: &ArchiveEntry,
        path: PathBuf,
        reader: &mut Reader<R>,
    ) -> Result<(), ImageError> {
        let failed = |cause| ImageError::Entry { path: show(&entry.path), cause };
        match &entry.kind {
            Kind::Directory => {
                // We must be able to create files in it.
                self.root.make_directory(&path, mode(entry) | 0o700).map_err(failed)?;
                self.directories.push((path.clone(), entry.modified));
                self.remembered += path.as_os_str().len() + PER_PATH;
            }
            Kind::File => {
                let mut file = self.root.make_file(&path, mode(entry)).map_err(failed)?;
                reader.copy_to(entry, &mut file)?;
                file.set_len(entry.size).map_err(failed)?;
                rootfs::set_modified(&file, entry.modified).map_err(failed)?;
            }
            Kind::Link(to) => {
                if to.is_empty() || to.len() > limits::MAX_PATH || to.contains(&0) {
                    return Err(refused(&entry.path, "a link to no possible path"));
                }
                let to = Path::new(OsStr::from_bytes(to));
                self.root.make_link(&path, to).map_err(failed)?;
            }
            Kind::HardLink(existing) => {
                let existing = plain(existing)?;
                self.root.make_hard_link(&path, &existing).map_err(failed)?;
            }
            Kind::Special(_) => {}
        }
        // Also all its parents: a whiteout of a directory keeps the files of this layer in it.
        let mut known = path;
        while !known.as_os_str().is_empty() && self.own.insert(known.clone()) {
            self.remembered += known.as_os_str().len() + PER_PATH;
            known.pop();
        }
        Ok(())
    }

    fn finish(self) {
        for (path, modified) in self.directories.iter().rev() {
            // A later layer may have removed it, and a wrong time does no harm.
            let _ = self.root.set_modified(path, *modified);
        }
    }
}

/// Permissions without set-user-id and similar bits. Owners are dropped, so all users get the permissions of an owner
/// other than root: otherwise that user could not use its own files.
fn mode(entry: &ArchiveEntry) -> u32 {
    let mode = entry.mode & 0o1777;
    if entry.uid == 0 { mode } else { mode | (mode >> 6 & 0o7) }
}

/// Checks the path of an entry and makes it relative to the root.
fn plain(path: &[u8]) -> Result<PathBuf, ImageError> {
    if path.len() > limits::MAX_PATH {
        return Err(refused(path, "a path longer than the system allows"));
    }
    let mut plain = PathBuf::new();
    let mut depth = 0;
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => continue,
            b".." => return Err(refused(path, "a path that leads upwards")),
            name if name.len() > limits::MAX_NAME => {
                return Err(refused(path, "a name longer than the system allows"));
            }
            name if name.contains(&0) => return Err(refused(path, "a name with a zero byte")),
            name => plain.push(OsStr::from_bytes(name)),
        }
        depth += 1;
        if depth > limits::MAX_DEPTH {
            return Err(refused(path, "a path through too many directories"));
        }
    }
    Ok(plain)
}

fn refused(path: &[u8], why: &str) -> ImageError {
    ImageError::Refused(format!("it has {why}: `{}`", show(path)))
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "unpack_fuzz.rs"]
mod fuzz;
