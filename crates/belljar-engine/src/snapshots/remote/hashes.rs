//! The SHA-256 of files that do not change. A file is hashed once.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;

use sha2::{Digest as _, Sha256};

use crate::artifacts::ReadAt;
use crate::store::Digest;

/// Bytes that are hashed at a time.
const CHUNK: usize = 256 * 1024;

/// How many hashes are remembered.
const REMEMBERED: usize = 20_000;

#[derive(Debug, Default)]
pub(super) struct Hashes(Mutex<HashMap<FileIdentity, Digest>>);

/// Two states of a file differ in one of these.
#[derive(Debug, PartialEq, Eq, Hash)]
struct FileIdentity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Hashes {
    pub(super) fn of(&self, file: &File, metadata: &Metadata) -> io::Result<Digest> {
        let identity = FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        };
        if let Some(digest) = crate::lock(&self.0).get(&identity) {
            return Ok(*digest);
        }
        let digest = hash(file)?;
        let mut known = crate::lock(&self.0);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(identity, digest);
        Ok(digest)
    }

    /// Whether there is a file at `path` with this size and content.
    pub(super) fn matches(&self, path: &Path, size: u64, digest: &Digest) -> io::Result<bool> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        let metadata = file.metadata()?;
        Ok(metadata.len() == size && self.of(&file, &metadata)? == *digest)
    }
}

/// Hashes the whole content.
pub(super) fn hash(content: &File) -> io::Result<Digest> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut done = 0;
    loop {
        match ReadAt::read_at(content, &mut chunk, done) {
            Ok(0) => return Ok(hasher.into()),
            Ok(length) => {
                hasher.update(&chunk[..length]);
                done += length as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
