//! Copies of contents on this machine, of which S3 has the originals.
//!
//! ```text
//! BLOBSTORE_DIR/incoming/<random>             copies that are not complete; removed when a server starts
//! BLOBSTORE_DIR/cache/t<tenant>-<sha256>      copies that are complete
//! ```
//!
//! When the copies take too much space, those that were used least recently are removed. A copy with more than one link
//! is the content of a file that is linked by name; removing it would free nothing.

use std::fs::{self, DirBuilder, File, FileTimes};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use super::directory::{IncomingFile, make_incoming, make_root};
use super::store::BlobName;
use super::unless_gone;

/// When the copies have more bytes than this, some are removed.
const LIMIT: u64 = 4 << 30;

/// A copy that was used more recently than this is not removed: a commit may need it.
const IN_USE: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct BlobCache {
    directory: PathBuf,
    pub(super) incoming: PathBuf,
    limit: u64,
    /// Bytes of all copies, counted when some were removed and after that with each new copy.
    bytes: Mutex<u64>,
}

impl BlobCache {
    pub(super) fn open(root: &Path) -> io::Result<BlobCache> {
        let root = make_root(root)?;
        let (incoming, directory) = (make_incoming(&root)?, root.join("cache"));
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let cache = BlobCache { directory, incoming, limit: LIMIT, bytes: Mutex::default() };
        cache.evict(&mut crate::lock(&cache.bytes))?;
        Ok(cache)
    }

    pub(super) fn path(&self, name: BlobName) -> PathBuf {
        self.directory.join(format!("{}-{}", name.tenant, name.digest))
    }

    /// Opens a copy, and notes that it is in use.
    pub(super) fn get(&self, name: BlobName) -> io::Result<Option<File>> {
        let Some(file) = unless_gone(File::open(self.path(name)))? else { return Ok(None) };
        file.set_times(FileTimes::new().set_accessed(SystemTime::now()))?;
        Ok(Some(file))
    }

    pub(super) fn has(&self, name: BlobName, size: u64) -> io::Result<bool> {
        let found = self.get(name)?;
        Ok(found.map(|file| file.metadata()).transpose()?.is_some_and(|found| found.len() == size))
    }

    /// Keeps a complete copy.
    pub(super) fn put(&self, name: BlobName, copy: IncomingFile, size: u64) -> io::Result<()> {
        copy.move_to(&self.path(name))?;
        let mut bytes = crate::lock(&self.bytes);
        *bytes += size;
        if *bytes > self.limit { self.evict(&mut bytes) } else { Ok(()) }
    }

    pub(super) fn remove(&self, name: BlobName) -> io::Result<()> {
        unless_gone(fs::remove_file(self.path(name))).map(drop)
    }

    fn evict(&self, bytes: &mut u64) -> io::Result<()> {
        let mut copies = Vec::new();
        *bytes = 0;
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let Some(found) = unless_gone(entry.metadata())? else { continue };
            if found.nlink() == 1 {
                *bytes += found.len();
                copies.push((found.accessed()?, found.len(), entry.path()));
            }
        }
        if *bytes <= self.limit {
            return Ok(());
        }
        copies.sort();
        // More than necessary is removed, so that not each new copy needs a look at all of them.
        let target = self.limit - self.limit / 10;
        let in_use = SystemTime::now() - IN_USE;
        for (used, size, path) in copies {
            if *bytes <= target || used > in_use {
                break;
            }
            unless_gone(fs::remove_file(path))?;
            *bytes -= size;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Digest;
    use crate::tenant_dir::TenantDir;
    use std::io::Write;

    #[test]
    fn old_copies_without_links_are_removed_when_there_are_too_many() {
        let root = tempfile::tempdir().unwrap();
        let cache = BlobCache { limit: 1000, ..BlobCache::open(root.path()).unwrap() };
        let put = |content: &[u8], age_s: u64| {
            let name = BlobName { tenant: TenantDir::of("a"), digest: Digest::of(content) };
            let (copy, mut file) = IncomingFile::create(&cache.incoming).unwrap();
            file.write_all(content).unwrap();
            let used = SystemTime::now() - Duration::from_secs(age_s);
            file.set_times(FileTimes::new().set_accessed(used)).unwrap();
            cache.put(name, copy, content.len() as u64).unwrap();
            name
        };
        let linked = put(&[1; 400], 9000);
        fs::hard_link(cache.path(linked), root.path().join("shown")).unwrap();
        let oldest = put(&[2; 400], 5000);
        let older = put(&[3; 400], 4000);
        let recent = put(&[4; 400], 100);
        let there = [linked, oldest, older, recent].map(|name| cache.path(name).exists());
        assert_eq!(there, [true, false, true, true]);
        assert!(cache.has(older, 400).unwrap() && !cache.has(older, 1).unwrap());
        assert_eq!(fs::read_dir(&cache.incoming).unwrap().count(), 0);
    }
}
