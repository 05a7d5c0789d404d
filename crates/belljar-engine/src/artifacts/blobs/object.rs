//! Contents in S3, with copies of some of them on this machine ([`BlobCache`]).
//!
//! ```text
//! PREFIX/blobs/t<tenant>/<sha256>      complete, never written again with other content
//! ```
//!
//! Several servers share the objects. An object can be removed only when it is older than [`KEPT`]; a server that
//! uses an object older than half of that stores it again, so that it counts as new before the catalog refers to it.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::runtime::Handle;

use super::cache::BlobCache;
use super::directory::{IncomingFile, chunk_size, copy, foreign_copy, read_chunk};
use super::hash;
use super::store::{BlobName, BlobReader, BlobRemoval, BlobStore, ReadAt, StagedBlob};
use crate::clock;
use crate::objects::{ObjectError, ObjectInfo, Objects};
use crate::store::Digest;
use crate::tenant_dir::TenantDir;

/// The prefix of all contents.
const PREFIX: &str = "blobs";

/// How long a content stays that is not in use.
pub(super) const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Contents that are sent at the same time.
const SENT_AT_ONCE: usize = 8;

/// Contents up to this size are sent without the question whether S3 has them: one request instead of two.
const SENT_ANYWAY: u64 = 64 * 1024;

/// Contents up to this size are copied whole when they are opened. Of larger ones only the parts that are read.
const COPIED_WHOLE: u64 = 8 << 20;

/// The first read of a part fetches at least this much. Reads that follow each other fetch more and more.
const FIRST_PART: u64 = 256 * 1024;
const LARGEST_PART: u64 = 8 << 20;

#[derive(Debug)]
pub(super) struct ObjectBlobStore(Arc<ObjectBlobs>);

#[derive(Debug)]
struct ObjectBlobs {
    objects: Objects,
    runtime: Handle,
    /// `None` in a store that is only looked at.
    cache: Option<BlobCache>,
    /// Contents that are being removed. They count as not there, and commits of them wait.
    removing: Mutex<HashSet<BlobName>>,
    removed: Condvar,
    /// [`KEPT`], except in tests.
    kept: Duration,
}

impl ObjectBlobStore {
    /// Opens the store with copies in `directory`, which only one server may use. Requests run on `runtime`; the
    /// methods of the store must be called on threads that may block.
    pub(super) fn open(
        objects: Objects,
        directory: &Path,
        runtime: Handle,
    ) -> io::Result<ObjectBlobStore> {
        let cache = Some(BlobCache::open(directory)?);
        Ok(ObjectBlobStore::new(objects, runtime, cache, KEPT))
    }

    /// A store that is only read, and not through copies.
    pub(super) fn look_at(objects: Objects, runtime: Handle) -> ObjectBlobStore {
        ObjectBlobStore::new(objects, runtime, None, KEPT)
    }

    #[cfg(test)]
    pub(super) fn with_kept(
        objects: Objects,
        directory: &Path,
        runtime: Handle,
        kept: Duration,
    ) -> ObjectBlobStore {
        let cache = BlobCache::open(directory).unwrap();
        ObjectBlobStore::new(objects, runtime, Some(cache), kept)
    }

    fn new(
        objects: Objects,
        runtime: Handle,
        cache: Option<BlobCache>,
        kept: Duration,
    ) -> ObjectBlobStore {
        let (removing, removed) = Default::default();
        ObjectBlobStore(Arc::new(ObjectBlobs { objects, runtime, cache, removing, removed, kept }))
    }
}

impl BlobStore for ObjectBlobStore {
    fn stage(
        &self,
        tenant: TenantDir,
        from: &File,
        size: u64,
        pin: &mut dyn FnMut(BlobName),
    ) -> io::Result<StagedBlob> {
        let cache = self.0.cache()?;
        let mut chunk = vec![0; chunk_size(size)];
        let length = read_chunk(from, 0, size, &mut chunk)?;
        if length as u64 == size || length < chunk.len() {
            let content = &chunk[..length];
            let name = BlobName { tenant, digest: Digest::of(content) };
            let size = length as u64;
            pin(name);
            if cache.has(name, size)? {
                return Ok(StagedBlob { name, size, copy: None });
            }
            let (copy, mut to) = IncomingFile::create(&cache.incoming)?;
            to.write_all(content)?;
            return Ok(StagedBlob { name, size, copy: Some(Box::new(copy)) });
        }
        let (incoming, mut to) = IncomingFile::create(&cache.incoming)?;
        let (digest, size) = copy(from, size, &mut chunk, &mut to)?;
        let name = BlobName { tenant, digest };
        pin(name);
        Ok(StagedBlob { name, size, copy: Some(Box::new(incoming)) })
    }

    fn commit(&self, staged: Vec<StagedBlob>) -> io::Result<()> {
        let cache = self.0.cache()?;
        let (mut seen, mut copies) = (HashSet::new(), Vec::new());
        for StagedBlob { name, size, copy } in staged {
            if !seen.insert(name) {
                continue;
            }
            let copy = copy.map(|copy| copy.downcast::<IncomingFile>().map_err(|_| foreign_copy()));
            let copy = copy.transpose()?;
            let file = match &copy {
                Some(copy) => File::open(&copy.0)?,
                None => cache.get(name)?.ok_or_else(lost_copy)?,
            };
            copies.push((name, size, copy, Arc::new(file)));
        }
        self.0.wait_for_removals(&seen);
        let sending =
            copies.iter().map(|(name, size, _, file)| self.0.send(*name, Arc::clone(file), *size));
        let sending = futures_util::stream::iter(sending).buffer_unordered(SENT_AT_ONCE);
        // Not cancelled at the first error: that would leave pieces of the others in the bucket.
        let sent: Vec<Result<(), ObjectError>> = self.0.runtime.block_on(sending.collect());
        sent.into_iter().collect::<Result<(), ObjectError>>()?;
        for (name, size, copy, _) in copies {
            if let Some(copy) = copy {
                cache.put(name, *copy, size)?;
            }
        }
        Ok(())
    }

    fn open(&self, name: BlobName) -> io::Result<BlobReader> {
        if self.0.is_removing(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let cache = self.0.cache.as_ref();
        if let Some(file) = cache.map(|cache| cache.get(name)).transpose()?.flatten() {
            return Ok(Box::new(file));
        }
        let Some(object) = self.0.head(name)? else { return Err(io::ErrorKind::NotFound.into()) };
        match cache {
            Some(cache) if object.size <= COPIED_WHOLE => self.0.fetch(name, &object, cache),
            _ => Ok(Box::new(ObjectReader {
                blobs: Arc::clone(&self.0),
                object,
                part: Mutex::default(),
            })),
        }
    }

    fn size(&self, name: BlobName) -> io::Result<Option<u64>> {
        if self.0.is_removing(name) {
            return Ok(None);
        }
        Ok(self.0.head(name)?.map(|object| object.size))
    }

    /// The path of the copy. There may be none.
    fn path(&self, name: BlobName) -> PathBuf {
        match &self.0.cache {
            Some(cache) => cache.path(name),
            None => PathBuf::from(format!("{}/{}", self.0.objects.place(), key(name))),
        }
    }

    fn remove(&self, name: BlobName) -> io::Result<BlobRemoval> {
        if !crate::lock(&self.0.removing).insert(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let removing = Removing { blobs: Arc::clone(&self.0), name };
        Ok(Box::new(move || removing.finish()))
    }

    fn list(&self, visit: &mut dyn FnMut(BlobName) -> io::Result<()>) -> io::Result<()> {
        self.0.list(&mut |name, _| visit(name))
    }

    fn list_removable(&self, visit: &mut dyn FnMut(BlobName) -> io::Result<()>) -> io::Result<()> {
        self.0.list(&mut |name, object| if self.0.is_old(object, 1) { visit(name) } else { Ok(()) })
    }
}

impl ObjectBlobs {
    fn cache(&self) -> io::Result<&BlobCache> {
        self.cache.as_ref().ok_or_else(|| io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn is_removing(&self, name: BlobName) -> bool {
        crate::lock(&self.removing).contains(&name)
    }

    fn wait_for_removals(&self, names: &HashSet<BlobName>) {
        let removing = crate::lock(&self.removing);
        let waiting = self.removed.wait_while(removing, |removing| !removing.is_disjoint(names));
        drop(waiting.unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether an object is older than the time that it is kept, divided by `parts`.
    fn is_old(&self, object: &ObjectInfo, parts: i64) -> bool {
        let kept = i64::try_from(self.kept.as_millis()).unwrap_or(i64::MAX);
        clock::now_ms().saturating_sub(object.put_ms) > kept / parts
    }

    fn head(&self, name: BlobName) -> io::Result<Option<ObjectInfo>> {
        Ok(self.runtime.block_on(self.objects.head(&key(name)))?)
    }

    async fn send(&self, name: BlobName, file: Arc<File>, size: u64) -> Result<(), ObjectError> {
        let key = key(name);
        if size > SENT_ANYWAY
            && let Some(there) = self.objects.head(&key).await?
            && there.size == size
            && !self.is_old(&there, 2)
        {
            return Ok(());
        }
        self.objects.put_file(&key, file, size).await
    }

    /// Copies a content and checks it.
    fn fetch(
        &self,
        name: BlobName,
        object: &ObjectInfo,
        cache: &BlobCache,
    ) -> io::Result<BlobReader> {
        let (copy, file) = IncomingFile::create(&cache.incoming)?;
        let to = Arc::new(file);
        self.runtime.block_on(self.objects.get_file(&object.key, to, object.size))?;
        // Opened again, because the first descriptor can write.
        let file = File::open(&copy.0)?;
        if hash(&file)? != name.digest {
            let message = format!("the object `{}` does not match its hash", object.key);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        cache.put(name, copy, object.size)?;
        Ok(Box::new(file))
    }

    /// Ignores objects whose keys are not names of contents: they are not ours.
    fn list(
        &self,
        visit: &mut dyn FnMut(BlobName, &ObjectInfo) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut last: Option<String> = None;
        loop {
            // `visit` may block too, so it is called outside of the runtime.
            let page = self.runtime.block_on(self.objects.list(PREFIX, last.as_deref()))?;
            for object in &page {
                match parse(&object.key) {
                    Some(name) if !self.is_removing(name) => visit(name, object)?,
                    _ => {}
                }
            }
            match page.into_iter().next_back() {
                Some(object) => last = Some(object.key),
                None => return Ok(()),
            }
        }
    }
}

/// A content that is being removed.
struct Removing {
    blobs: Arc<ObjectBlobs>,
    name: BlobName,
}

impl Removing {
    fn finish(self) -> io::Result<u64> {
        let object = self.blobs.head(self.name)?.ok_or(io::ErrorKind::NotFound)?;
        if !self.blobs.is_old(&object, 1) {
            // Another server has stored it again.
            return Err(io::ErrorKind::NotFound.into());
        }
        if let Some(cache) = &self.blobs.cache {
            cache.remove(self.name)?;
        }
        self.blobs.runtime.block_on(self.blobs.objects.remove(&object.key))?;
        Ok(object.size)
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        crate::lock(&self.blobs.removing).remove(&self.name);
        self.blobs.removed.notify_all();
    }
}

/// Reads parts of an object.
#[derive(Debug)]
struct ObjectReader {
    blobs: Arc<ObjectBlobs>,
    object: ObjectInfo,
    /// The part that was fetched last.
    part: Mutex<Part>,
}

#[derive(Debug, Default)]
struct Part {
    start: u64,
    content: bytes::Bytes,
}

impl Part {
    fn end(&self) -> u64 {
        self.start + self.content.len() as u64
    }
}

impl ReadAt for ObjectReader {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let size = self.object.size;
        if offset >= size || buffer.is_empty() {
            return Ok(0);
        }
        let mut part = crate::lock(&self.part);
        if offset < part.start || offset >= part.end() {
            let follows = offset == part.end() && !part.content.is_empty();
            let length = if follows { 2 * part.content.len() as u64 } else { FIRST_PART };
            let length = length.max(buffer.len() as u64).min(LARGEST_PART);
            let range = offset..size.min(offset + length);
            let fetching = self.blobs.objects.get_range(&self.object.key, range);
            let content = self.blobs.runtime.block_on(fetching)?;
            *part = Part { start: offset, content };
        }
        let from = usize::try_from(offset - part.start).unwrap_or(usize::MAX);
        let found = &part.content[from..];
        let length = found.len().min(buffer.len());
        buffer[..length].copy_from_slice(&found[..length]);
        Ok(length)
    }
}

fn lost_copy() -> io::Error {
    io::Error::other("the local copy of the content is gone; store it again")
}

pub(super) fn key(name: BlobName) -> String {
    format!("{PREFIX}/{}/{}", name.tenant, name.digest)
}

fn parse(key: &str) -> Option<BlobName> {
    let (tenant, digest) = key.strip_prefix(PREFIX)?.strip_prefix('/')?.split_once('/')?;
    Some(BlobName { tenant: tenant.parse().ok()?, digest: digest.parse().ok()? })
}
