//! A cache of dataset content on disk, per tenant.
//!
//! ```text
//! <cache>/incoming/<random>            content that is being received
//! <cache>/t<tenant>/<sha256>           content; its modification time is when it was last used
//! <cache>/t<tenant>/ids/<hash of id>   which content a source had for an id
//! ```
//!
//! Nothing is synced to disk. Content is compared with its hash whenever it is used again, and damaged content is
//! fetched again.

use std::fs::{self, DirBuilder, File, FileTimes};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::store::Digest;
use crate::tenant_dir::tenant_dir;

/// Bytes that are read, hashed and written in one step.
const CHUNK: usize = 256 * 1024;

#[derive(Debug)]
pub(crate) struct Cache {
    root: PathBuf,
    /// The limit for all content, in bytes.
    limit: u64,
    /// Held during an eviction.
    evicting: Mutex<()>,
}

/// The content that a source had for an id at the last fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) sha256: Digest,
    pub(crate) etag: Option<String>,
    pub(crate) file_name: String,
    pub(crate) fetched_ms: i64,
}

/// Content that is being received. It is removed unless [`Cache::keep`] takes it.
#[derive(Debug)]
pub(crate) struct Arriving {
    file: File,
    path: PathBuf,
    hash: Sha256,
    size: u64,
}

/// Content that can be copied into a session.
#[derive(Debug)]
pub(crate) struct Content {
    file: File,
    pub(crate) sha256: Digest,
    pub(crate) size: u64,
    /// The content was hashed while this file was written, so it need not be hashed again.
    just_arrived: bool,
}

impl Drop for Arriving {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Arriving {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The hash of the content so far.
    pub(crate) fn sha256(&self) -> Digest {
        Digest::from(self.hash.clone())
    }
}

impl Cache {
    /// Opens the cache, and removes content that an earlier server received only in part.
    pub(crate) fn open(root: &Path, limit: u64) -> io::Result<Cache> {
        let cache = Cache { root: root.to_owned(), limit, evicting: Mutex::default() };
        make_directory(&cache.incoming())?;
        for entry in fs::read_dir(cache.incoming())? {
            fs::remove_file(entry?.path())?;
        }
        Ok(cache)
    }

    fn incoming(&self) -> PathBuf {
        self.root.join("incoming")
    }

    fn of_tenant(&self, tenant: &str) -> PathBuf {
        self.root.join(tenant_dir(tenant))
    }

    pub(crate) fn begin(&self) -> io::Result<Arriving> {
        let path = self.incoming().join(belljar_sys::process::random_name());
        let file =
            File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Arriving { file, path, hash: Sha256::new(), size: 0 })
    }

    /// Adds content, evicts older content, and returns whether it was cached before. Content that is larger than the
    /// cache is not kept, but can be read once.
    pub(crate) fn keep(&self, tenant: &str, arrived: Arriving) -> io::Result<(Content, bool)> {
        let sha256 = arrived.sha256();
        let file = arrived.file.try_clone()?;
        let path = self.content_file(tenant, &sha256);
        path.parent().map_or(Ok(()), make_directory)?;
        let was_there = path.exists();
        fs::rename(&arrived.path, path)?;
        self.evict();
        let size = arrived.size;
        Ok((Content { sha256, file, size, just_arrived: true }, was_there))
    }

    /// Cached content.
    pub(crate) fn find(&self, tenant: &str, sha256: &Digest) -> Option<Content> {
        let file = File::open(self.content_file(tenant, sha256)).ok()?;
        let size = file.metadata().ok()?.len();
        // The modification time is when the content was last used; eviction begins with the oldest.
        let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        Some(Content { sha256: *sha256, file, size, just_arrived: false })
    }

    /// Removes damaged content.
    pub(crate) fn forget(&self, tenant: &str, sha256: &Digest) {
        let _ = fs::remove_file(self.content_file(tenant, sha256));
    }

    fn content_file(&self, tenant: &str, sha256: &Digest) -> PathBuf {
        self.of_tenant(tenant).join(sha256.to_string())
    }

    pub(crate) fn known(&self, tenant: &str, id: &str) -> Option<Known> {
        serde_json::from_slice(&fs::read(self.id_file(tenant, id)).ok()?).ok()
    }

    pub(crate) fn remember(&self, tenant: &str, id: &str, known: &Known) -> io::Result<()> {
        let path = self.id_file(tenant, id);
        path.parent().map_or(Ok(()), make_directory)?;
        let fresh = self.incoming().join(belljar_sys::process::random_name());
        fs::write(&fresh, serde_json::to_vec(known)?)?;
        fs::rename(fresh, path)
    }

    fn id_file(&self, tenant: &str, id: &str) -> PathBuf {
        self.of_tenant(tenant).join("ids").join(Digest::of(id.as_bytes()).to_string())
    }

    /// Removes the least recently used content until the rest is within the limit. Open files stay readable.
    fn evict(&self) {
        let _only_one = crate::lock(&self.evicting);
        let tenants = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let files = tenants
            .filter(|tenant| tenant.file_name() != "incoming")
            .flat_map(|tenant| fs::read_dir(tenant.path()).into_iter().flatten().flatten());
        let mut contents: Vec<(SystemTime, u64, PathBuf)> = files
            .filter_map(|file| {
                let metadata = file.metadata().ok().filter(fs::Metadata::is_file)?;
                Some((metadata.modified().ok()?, metadata.len(), file.path()))
            })
            .collect();
        let mut total: u64 = contents.iter().map(|(_, size, _)| size).sum();
        contents.sort();
        for (_, size, path) in contents {
            if total <= self.limit {
                return;
            }
            if fs::remove_file(path).is_ok() {
                total -= size;
            }
        }
    }
}

impl Content {
    /// Copies the content to a new file. Fails if the content does not match its hash.
    pub(crate) fn copy_to(&self, to: &File) -> io::Result<()> {
        if !self.just_arrived {
            return copy_verified(&self.file, to, &self.sha256);
        }
        // `io::copy` lets the kernel copy, which is several times faster.
        (&self.file).rewind()?;
        let copied = io::copy(&mut &self.file, &mut &*to)?;
        if copied == self.size { Ok(()) } else { Err(damaged()) }
    }
}

fn copy_verified(mut from: &File, mut to: &File, sha256: &Digest) -> io::Result<()> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        to.write_all(&buffer[..length])?;
        hash.update(&buffer[..length]);
    }
    if Digest::from(hash) == *sha256 { Ok(()) } else { Err(damaged()) }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the cached content is damaged")
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn arrive(cache: &Cache, tenant: &str, text: &str) -> Digest {
        let mut arriving = cache.begin().unwrap();
        arriving.write(text.as_bytes()).unwrap();
        let (kept, _) = cache.keep(tenant, arriving).unwrap();
        assert_eq!(copied(&kept).unwrap(), text);
        kept.sha256
    }

    fn copied(content: &Content) -> io::Result<String> {
        let mut to = tempfile::tempfile().unwrap();
        content.copy_to(&to)?;
        to.rewind().unwrap();
        io::read_to_string(to)
    }

    #[test]
    fn content_is_found_by_its_tenant_only_and_the_oldest_goes_first() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path(), 10).unwrap();
        let first = arrive(&cache, "a", "1111");
        std::thread::sleep(Duration::from_millis(20));
        let second = arrive(&cache, "a", "2222");
        assert!(cache.find("b", &first).is_none());
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(cache.find("a", &first).unwrap().size, 4, "and it was used last now");
        std::thread::sleep(Duration::from_millis(20));
        let third = arrive(&cache, "a", "3333");
        assert!(cache.find("a", &second).is_none());
        assert!(cache.find("a", &first).is_some() && cache.find("a", &third).is_some());
    }

    #[test]
    fn content_larger_than_the_cache_can_be_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path(), 3).unwrap();
        let mut arriving = cache.begin().unwrap();
        arriving.write(b"large").unwrap();
        let (content, was_there) = cache.keep("a", arriving).unwrap();
        assert!(!was_there && cache.find("a", &content.sha256).is_none());
        assert_eq!(copied(&content).unwrap(), "large");
    }

    #[test]
    fn incomplete_content_is_removed_and_damage_is_detected() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path(), 100).unwrap();
        let mut broken = cache.begin().unwrap();
        broken.write(b"half").unwrap();
        drop(broken);
        std::mem::forget(cache.begin().unwrap());
        let cache = Cache::open(directory.path(), 100).unwrap();
        assert_eq!(fs::read_dir(cache.incoming()).unwrap().count(), 0);

        let sha256 = arrive(&cache, "a", "whole");
        let path = cache.of_tenant("a").join(sha256.to_string());
        let copy = || copied(&cache.find("a", &sha256).unwrap());
        assert_eq!(copy().unwrap(), "whole");
        fs::write(path, "other").unwrap();
        assert_eq!(copy().unwrap_err().kind(), io::ErrorKind::InvalidData);
        cache.forget("a", &sha256);
        assert!(cache.find("a", &sha256).is_none());
    }

    #[test]
    fn the_content_of_a_source_is_stored_per_tenant() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path(), 100).unwrap();
        let known = Known {
            sha256: Digest::of(b"x"),
            etag: Some("\"1\"".into()),
            file_name: "x.csv".into(),
            fetched_ms: 1,
        };
        cache.remember("a", "../x", &known).unwrap();
        assert_eq!(cache.known("a", "../x"), Some(known));
        assert_eq!(cache.known("b", "../x"), None);
    }
}
