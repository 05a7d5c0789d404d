//! [`BlobStore`]: where the content of artifacts is stored.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use crate::store::Digest;
use crate::tenant_dir::TenantDir;

/// Contents by tenant and SHA-256. A content is written once and never changed.
///
/// [`Blobs`](super::Blobs) knows which contents are in use; the store does not. All methods block on the disk or the
/// network: call them on threads that may block.
pub(super) trait BlobStore: fmt::Debug + Send + Sync {
    /// Copies and hashes `from`, from its beginning to `size` or to its end. The copy cannot be read
    /// until it is committed.
    ///
    /// Calls `pin` with the name as soon as it is known, and before it checks whether the content exists already:
    /// pinned content is not removed.
    fn stage(
        &self,
        tenant: TenantDir,
        from: &File,
        size: u64,
        pin: &mut dyn FnMut(BlobName),
    ) -> io::Result<StagedBlob>;

    /// Makes contents readable. When this returns they survive a power cut. If the store has the content already, the
    /// new copy is dropped. If it fails, some contents may be readable.
    fn commit(&self, staged: Vec<StagedBlob>) -> io::Result<()>;

    /// Opens a content, or fails with `NotFound`.
    fn open(&self, name: BlobName) -> io::Result<BlobReader>;

    /// The size of a content in bytes; `None` if it does not exist.
    fn size(&self, name: BlobName) -> io::Result<Option<u64>>;

    /// The path at which programs on this host can read a content. An implementation that stores contents elsewhere has
    /// a copy there after the commit, and may remove the copy when it needs the space.
    fn path(&self, name: BlobName) -> PathBuf;

    /// Makes a content unreadable. This is quick; the returned value frees its storage. One of the two fails with
    /// `NotFound` if there is no such content, or if it was stored again since a sweep listed it.
    fn remove(&self, name: BlobName) -> io::Result<BlobRemoval>;

    /// Calls `visit` with every content, tenant by tenant, until it fails.
    fn list(&self, visit: &mut dyn FnMut(BlobName) -> io::Result<()>) -> io::Result<()>;

    /// As `list`, but only contents that a sweep may remove if they are not in use. A store that several servers share
    /// leaves out new contents, because their users may not be in the catalog yet.
    fn list_removable(&self, visit: &mut dyn FnMut(BlobName) -> io::Result<()>) -> io::Result<()> {
        self.list(visit)
    }
}

/// A content that is copied but not committed.
#[derive(Debug)]
pub(super) struct StagedBlob {
    pub(super) name: BlobName,
    pub(super) size: u64,
    /// The copy, of a type that the store chooses. It is discarded when this is dropped. `None` if the store had the
    /// same content already.
    pub(super) copy: Option<Box<dyn Any + Send + Sync>>,
}

/// Frees the storage of a removed content and returns how many bytes it had.
pub(super) type BlobRemoval = Box<dyn FnOnce() -> io::Result<u64> + Send>;

/// A content that is open for reading.
pub type BlobReader = Box<dyn ReadAt>;

/// Reads at any offset.
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// Reads into `buffer`, and returns the number of bytes; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Fills `buffer`, or fails with `UnexpectedEof`.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match fill(self, buffer, offset)? {
            filled if filled == buffer.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }
}

/// Reads until `buffer` is full or the content ends, and returns the number of bytes.
pub(super) fn fill(
    from: &(impl ReadAt + ?Sized),
    buffer: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The tenant and the hash of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BlobName {
    pub(super) tenant: TenantDir,
    pub(super) digest: Digest,
}
