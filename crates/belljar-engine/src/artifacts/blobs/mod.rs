//! The content of artifacts, found by its SHA-256. Identical content of a tenant is stored once.
//!
//! ```text
//!   Blobs: which contents are in use ──▶ dyn BlobStore: where they are stored
//!                                            ├── DirectoryStore: a directory
//!                                            └── ObjectBlobStore: S3, with a local cache
//! ```
//!
//! Tenants share no content. Otherwise a tenant could find out, from the duration of an upload, what content another
//! tenant has.
//!
//! The life of a blob: [`Blobs::take`] copies and hashes a file; [`BlobIngest::keep`] puts a batch of
//! copies in place; the caller adds them to the catalog and only then drops the [`BlobIngest`];
//! [`Blobs::sweep`] removes contents that the catalog does not have. A server that is killed
//! half-way leaves a copy, which [`Blobs::open`] removes, or a blob that is not in the catalog,
//! which the next sweep removes.
//!
//! All of these operations block on the disk: call them on threads that may block.

mod cache;
mod copy;
mod directory;
mod object;
mod store;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;

pub use copy::{CopiedBlobs, copy_blobs};
use directory::DirectoryStore;
pub(super) use directory::make_root;
use object::ObjectBlobStore;
use store::{BlobName, BlobRemoval, BlobStore, StagedBlob, fill};
pub use store::{BlobReader, ReadAt};

use super::pins::Pins;
use crate::objects::Objects;
use crate::store::Digest;
use crate::tenant_dir::TenantDir;

/// Bytes that are read, hashed and written at a time. Larger chunks fall out of the cache between the hash and the
/// write; smaller ones cost more calls. A second thread that writes while this one hashes was measured and is not
/// faster: the disk already works in parallel.
const CHUNK: usize = 256 * 1024;

/// How many blobs a sweep looks up in the catalog at a time.
const SWEEP_BATCH: usize = 128;

/// The contents of all tenants. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Blobs(Arc<BlobsState>);

#[derive(Debug)]
struct BlobsState {
    store: Box<dyn BlobStore>,
    pins: Pins<BlobName>,
    /// Locked by a sweep, so that there is only one at a time.
    sweeping: Mutex<()>,
}

/// A copy of a file that is not in place yet. It is removed when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it removes the copy"]
pub(super) struct TakenBlob {
    pinned: Pinned,
    staged: StagedBlob,
}

impl TakenBlob {
    #[must_use]
    pub(super) fn digest(&self) -> Digest {
        self.staged.name.digest
    }

    /// How many bytes were copied.
    #[must_use]
    pub(super) fn size(&self) -> u64 {
        self.staged.size
    }
}

/// Protects the contents that were kept with it from sweeps until it is dropped. (A [`TakenBlob`] protects itself.)
/// Drop it when the catalog has all of them, and not before. It may be sent between threads and held across an `await`,
/// and several may exist at a time.
#[derive(Debug)]
#[must_use = "what is kept is safe only while this lives"]
pub(super) struct BlobIngest {
    blobs: Blobs,
    pinned: Vec<Pinned>,
}

/// What a sweep removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Swept {
    pub(super) blobs: u64,
    pub(super) bytes: u64,
}

/// A blob that [`Blobs::walk`] found.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) tenant: TenantDir,
    pub(super) digest: Digest,
    pub(super) size: u64,
    content: io::Result<BlobReader>,
}

impl Stored {
    /// Whether its content still matches its name, which is the hash.
    pub(super) fn check(self) -> io::Result<bool> {
        Ok(hash(&*self.content?)? == self.digest)
    }
}

impl Blobs {
    /// Opens the contents in `directory`, which is created if it is missing, and removes copies that a killed server
    /// left. Only one server may have it open.
    pub(super) fn open(directory: &Path) -> io::Result<Blobs> {
        Ok(Blobs::new(DirectoryStore::open(directory)?))
    }

    /// Opens the contents in `directory` read-only: a server may have it open.
    pub(super) fn look_at(directory: &Path) -> io::Result<Blobs> {
        Ok(Blobs::new(DirectoryStore::look_at(directory)?))
    }

    /// Opens the contents in S3. `directory` has copies of some of them; only one server may use it. Call it in a Tokio
    /// runtime, which all requests use.
    pub(super) fn open_objects(objects: Objects, directory: &Path) -> io::Result<Blobs> {
        Ok(Blobs::new(ObjectBlobStore::open(objects, directory, Handle::current())?))
    }

    /// Opens the contents in S3 read-only and without copies. Call it in a Tokio runtime.
    pub(super) fn look_at_objects(objects: Objects) -> Blobs {
        Blobs::new(ObjectBlobStore::look_at(objects, Handle::current()))
    }

    fn new(store: impl BlobStore + 'static) -> Blobs {
        let (store, pins) = (Box::new(store), Pins::new());
        Blobs(Arc::new(BlobsState { store, pins, sweeping: Mutex::default() }))
    }

    /// Copies and hashes `from`, from its beginning. A file that has grown beyond `size` is cut there. A file that has
    /// become shorter is copied as it is.
    pub(super) fn take(&self, tenant: &str, from: &File, size: u64) -> io::Result<TakenBlob> {
        let mut pinned = None;
        let mut pin = |name| pinned = Some(Pinned::new(self, name));
        let staged = self.0.store.stage(TenantDir::of(tenant), from, size, &mut pin)?;
        let pinned = pinned.unwrap_or_else(|| Pinned::new(self, staged.name));
        Ok(TakenBlob { pinned, staged })
    }

    /// Begins an ingest, see [`BlobIngest::keep`]. Does not block.
    pub(super) fn ingesting(&self) -> BlobIngest {
        BlobIngest { blobs: self.clone(), pinned: Vec::new() }
    }

    /// The path at which programs on this host can read the content.
    #[must_use]
    pub(super) fn path(&self, tenant: &str, digest: &Digest) -> PathBuf {
        self.0.store.path(name(tenant, digest))
    }

    pub(super) fn open_blob(&self, tenant: &str, digest: &Digest) -> io::Result<BlobReader> {
        self.0.store.open(name(tenant, digest))
    }

    /// Calls `visit` with every blob of every tenant, until it fails.
    pub(super) fn walk(&self, mut visit: impl FnMut(Stored) -> io::Result<()>) -> io::Result<()> {
        let store = &self.0.store;
        store.list(&mut |name| {
            // A sweep may have removed it since.
            let Some(size) = store.size(name)? else { return Ok(()) };
            let BlobName { tenant, digest } = name;
            visit(Stored { tenant, digest, size, content: store.open(name) })
        })
    }

    /// Removes the blobs that are not in use. `is_referenced` is called with a few blobs of one tenant at a time and
    /// returns one answer for each, in the same order. It must read what is committed at that moment, not an older
    /// view.
    pub(super) fn sweep(
        &self,
        mut is_referenced: impl FnMut(TenantDir, &[Digest]) -> io::Result<Vec<bool>>,
    ) -> io::Result<Swept> {
        let _only_one = crate::lock(&self.0.sweeping);
        let mut swept = Swept::default();
        let mut batch: Vec<BlobName> = Vec::with_capacity(SWEEP_BATCH);
        self.0.store.list_removable(&mut |name| {
            let other_tenant = batch.first().is_some_and(|first| first.tenant != name.tenant);
            if other_tenant || batch.len() == SWEEP_BATCH {
                self.sweep_batch(&batch, &mut is_referenced, &mut swept)?;
                batch.clear();
            }
            batch.push(name);
            Ok(())
        })?;
        self.sweep_batch(&batch, &mut is_referenced, &mut swept)?;
        Ok(swept)
    }

    fn sweep_batch(
        &self,
        batch: &[BlobName],
        is_referenced: &mut impl FnMut(TenantDir, &[Digest]) -> io::Result<Vec<bool>>,
        swept: &mut Swept,
    ) -> io::Result<()> {
        let mut chosen = self.0.pins.choose(batch);
        let Some(first) = chosen.first() else { return Ok(()) };
        let digests: Vec<Digest> = chosen.iter().map(|name| name.digest).collect();
        let referenced = is_referenced(first.tenant, &digests)?;
        if referenced.len() != digests.len() {
            let message = "a sweep got no answer about some of its blobs";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut referenced = referenced.into_iter();
        chosen.retain(|_| referenced.next() == Some(false));
        // The pins are locked only while contents are made unreadable. Freeing the storage may take long and happens
        // afterwards.
        let mut removed: Vec<io::Result<BlobRemoval>> = Vec::new();
        self.0.pins.remove_chosen(&chosen, |name| removed.push(self.0.store.remove(name)));
        for removal in removed {
            let Some(bytes) = unless_gone(removal.and_then(|free| free()))? else { continue };
            swept.blobs += 1;
            swept.bytes += bytes;
        }
        Ok(())
    }
}

impl BlobIngest {
    /// Puts copies in place. When this returns they survive a power cut. If the store has the content already, the new
    /// copy is dropped.
    ///
    /// If it fails, some of the copies may be in place; the next sweep removes those.
    pub(super) fn keep(&mut self, taken: Vec<TakenBlob>) -> io::Result<()> {
        let (pinned, staged): (Vec<_>, Vec<_>) =
            taken.into_iter().map(|TakenBlob { pinned, staged }| (pinned, staged)).unzip();
        // The pins are held from here on, even if the commit fails.
        self.pinned.extend(pinned);
        self.blobs.0.store.commit(staged)
    }
}

/// Prevents sweeps from removing a blob, whether or not it exists yet.
#[derive(Debug)]
struct Pinned {
    blobs: Blobs,
    name: BlobName,
}

impl Pinned {
    fn new(blobs: &Blobs, name: BlobName) -> Pinned {
        blobs.0.pins.pin(name);
        Pinned { blobs: blobs.clone(), name }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.blobs.0.pins.unpin(self.name);
    }
}

fn name(tenant: &str, digest: &Digest) -> BlobName {
    BlobName { tenant: TenantDir::of(tenant), digest: *digest }
}

fn hash(content: &dyn ReadAt) -> io::Result<Digest> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut done = 0;
    loop {
        match fill(content, &mut chunk, done)? {
            0 => return Ok(hasher.into()),
            length => {
                hasher.update(&chunk[..length]);
                done += length as u64;
            }
        }
    }
}

fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
