//! Unpacked root file systems, shared by all images that have the same layers.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_sys::file_lock::FileLock;
use belljar_sys::rootfs::{self, Rootfs};

use super::{Image, ImageStore, Layer};
use crate::digest::HashingReader;
use crate::{ImageError, OciDigest, Progress, Unpacked, layer, skeleton, unpack};

const LOCK: &str = "lock";
const ROOTFS: &str = "rootfs";
const UNPACKED: &str = "unpacked.json";

/// Keeps a root file system from being removed while this, or the result of [`InUse::keep`], is
/// open.
#[derive(Debug)]
pub struct InUse {
    lock: FileLock,
    path: PathBuf,
}

impl InUse {
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A descriptor that keeps the root from being removed, for a process that outlives us. It has its own lock: a duplicate
    /// would share ours, so that process could release it.
    pub fn keep(&self) -> io::Result<std::os::fd::OwnedFd> {
        let fresh = File::open(self.path.with_file_name(LOCK))?;
        // Our lock keeps the root from being replaced, so the inode must be the same.
        if fresh.metadata()?.ino() != self.lock.file().metadata()?.ino() {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        let lock = FileLock::try_shared(fresh)?;
        lock.map(Into::into).ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))
    }
}

impl ImageStore {
    /// Keeps the root of an image from being removed.
    pub fn hold(&self, image: &Image) -> Result<InUse, ImageError> {
        let directory = self.roots_dir().join(image.root.hex());
        let missing = || ImageError::Missing(image.name.clone());
        let path = directory.join(LOCK);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            opened => opened.map_err(ImageError::file(&path))?,
        };
        // If it is locked exclusively, it is being removed.
        let lock = FileLock::try_shared(file).map_err(ImageError::file(&path))?;
        let lock = lock.ok_or_else(missing)?;
        // It may have been removed between opening and locking.
        let still_there = fs::metadata(&path).map(|now| now.ino()).ok();
        if still_there != lock.file().metadata().map(|own| own.ino()).ok() {
            return Err(missing());
        }
        let path = directory.join(ROOTFS);
        skeleton::catch_up(&path)?;
        Ok(InUse { lock, path })
    }

    /// Unpacks layers, unless they are unpacked already, and returns the result.
    pub(super) fn unpack(
        &self,
        scratch: &Path,
        chain: &OciDigest,
        layers: &[Layer],
        progress: &dyn Progress,
    ) -> Result<Unpacked, ImageError> {
        let place = self.roots_dir().join(chain.hex());
        if let Ok(text) = fs::read(place.join(UNPACKED))
            && let Ok(unpacked) = serde_json::from_slice(&text)
        {
            return Ok(unpacked);
        }
        let fresh = scratch.join("root");
        let path = fresh.join(ROOTFS);
        fs::create_dir_all(&path).map_err(ImageError::file(&path))?;
        let root = Rootfs::open(&path).map_err(ImageError::file(&path))?;
        root.make_directory(Path::new(""), 0o755).map_err(ImageError::file(&path))?;
        let mut unpacked = Unpacked::default();
        for (n, layer) in layers.iter().enumerate() {
            let what = format!("Unpacking layer {} of {}", n + 1, layers.len());
            progress.begin(&what, Some(layer.blob.size));
            self.unpack_layer(&root, layer, &mut unpacked, progress)?;
        }
        skeleton::complete(&root)?;
        let note = serde_json::to_vec(&unpacked).expect("numbers serialize to JSON");
        fs::write(fresh.join(UNPACKED), note).map_err(ImageError::file(&fresh))?;
        let lock = File::create(fresh.join(LOCK)).map_err(ImageError::file(&fresh))?;
        progress.begin("Writing to disk", None);
        belljar_sys::file::sync_file_system(&lock).map_err(ImageError::file(&fresh))?;
        // A root of another version of Belljar, or one that was damaged.
        if place.exists() {
            self.remove_root(chain, scratch)?;
        }
        fs::rename(&fresh, &place).map_err(ImageError::file(&place))?;
        rootfs::sync_directory(&self.roots_dir()).map_err(ImageError::file(self.roots_dir()))?;
        Ok(unpacked)
    }

    fn unpack_layer(
        &self,
        root: &Rootfs,
        layer: &Layer,
        unpacked: &mut Unpacked,
        progress: &dyn Progress,
    ) -> Result<(), ImageError> {
        let left = self.archive_budget() - unpacked.bytes;
        let packed =
            ProgressReader { inner: self.open_blob(&layer.blob.digest)?, bytes: 0, progress };
        let (content, _) = layer::open(packed, left)?;
        let content = HashingReader::new(content);
        let content = unpack::apply(root, content, unpacked, self.limits)?;
        let (found, _) = content.finish().map_err(layer::read_error)?;
        if found != layer.content {
            let what = format!("the content of layer {}", layer.blob.digest);
            return Err(ImageError::Digest { what, expected: layer.content, found });
        }
        Ok(())
    }

    /// Removes a root, unless a sandbox uses it. Returns whether it is removed.
    pub(super) fn remove_root(&self, root: &OciDigest, scratch: &Path) -> Result<bool, ImageError> {
        let place = self.roots_dir().join(root.hex());
        // Locked until it is moved, so that no sandbox can start to use it.
        let _lock = match File::open(place.join(LOCK)) {
            Ok(file) => match FileLock::try_exclusive(file) {
                Ok(Some(lock)) => Some(lock),
                _ => return Ok(false),
            },
            Err(_) => None,
        };
        let aside = scratch.join(format!("gone-{}", root.hex()));
        match fs::rename(&place, &aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            renamed => renamed.map_err(ImageError::file(&place))?,
        }
        rootfs::remove_all(&aside).map_err(ImageError::file(aside))?;
        Ok(true)
    }
}

/// Reports how much of a file was read.
struct ProgressReader<'a> {
    inner: File,
    bytes: u64,
    progress: &'a dyn Progress,
}

impl io::Read for ProgressReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.bytes += n as u64;
        self.progress.at(self.bytes);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UnpackLimits;

    #[test]
    fn a_process_that_keeps_a_root_cannot_release_it_for_others() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().join("images"), UnpackLimits::default());
        let (root, scratch) = (OciDigest::of(b"layers"), directory.path().join("scratch"));
        let place = store.roots_dir().join(root.hex());
        fs::create_dir_all(place.join(ROOTFS)).unwrap();
        fs::create_dir(&scratch).unwrap();
        File::create(place.join(LOCK)).unwrap();
        let is_removed = || store.remove_root(&root, &scratch).unwrap();
        let hold = || {
            let lock = FileLock::try_shared(File::open(place.join(LOCK)).unwrap());
            let lock = lock.unwrap().expect("it is free");
            InUse { lock, path: place.join(ROOTFS) }
        };
        let held = hold();
        let hostile = File::from(held.keep().unwrap());
        hostile.unlock().unwrap();
        assert!(!is_removed(), "we hold it ourselves");
        // A sandbox outlives the process that created it.
        let sandbox = held.keep().unwrap();
        drop(held);
        hostile.unlock().unwrap();
        assert!(!is_removed(), "the sandbox holds it");
        drop(sandbox);
        assert!(is_removed());
    }
}
