//! Copies all contents of a directory to S3, for the move of a server to several machines.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt};

use super::directory::DirectoryStore;
use super::hash;
use super::object::key;
use super::store::{BlobName, BlobStore};
use crate::error::EngineError;
use crate::objects::Objects;

/// Contents that are copied at the same time.
const AT_ONCE: usize = 4;

/// What [`copy_blobs`] did so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopiedBlobs {
    /// Contents that were sent.
    pub copied: u64,
    /// Contents that S3 had already.
    pub skipped: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Contents that do not match their names, which are hashes. They are not copied.
    pub damaged: Vec<String>,
}

/// Copies all contents below `directory` (`BLOBSTORE_DIR`) and calls `progress` after each. No server may use the
/// directory meanwhile. A second call continues where the first one failed.
///
/// Each file is hashed before it is sent, and S3 checks the hash of each request. An object is complete or not there,
/// so one with the same name and size has the same content.
pub async fn copy_blobs(
    directory: &Path,
    objects: &Objects,
    mut progress: impl FnMut(&CopiedBlobs),
) -> Result<CopiedBlobs, EngineError> {
    let store = Arc::new(
        DirectoryStore::look_at(directory)
            .map_err(|cause| EngineError::Directory { path: directory.to_owned(), cause })?,
    );
    let names = names(Arc::clone(&store)).await.map_err(EngineError::KeepArtifacts)?;
    let copying = names.into_iter().map(|name| copy_one(Arc::clone(&store), objects, name));
    let mut copying = futures_util::stream::iter(copying).buffer_unordered(AT_ONCE);
    let mut copied = CopiedBlobs::default();
    while let Some((how, bytes)) = copying.try_next().await.map_err(EngineError::KeepArtifacts)? {
        match how {
            How::Copied => copied.copied += 1,
            How::Skipped => copied.skipped += 1,
            How::Damaged(path) => copied.damaged.push(path),
        }
        copied.bytes += bytes;
        progress(&copied);
    }
    Ok(copied)
}

enum How {
    Copied,
    Skipped,
    Damaged(String),
}

async fn names(store: Arc<DirectoryStore>) -> io::Result<Vec<BlobName>> {
    let listing = tokio::task::spawn_blocking(move || {
        let mut names = Vec::new();
        let mut add = |name| {
            names.push(name);
            Ok(())
        };
        store.list(&mut add)?;
        Ok(names)
    });
    listing.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

async fn copy_one(
    store: Arc<DirectoryStore>,
    objects: &Objects,
    name: BlobName,
) -> io::Result<(How, u64)> {
    let path = store.path(name);
    let at = path.clone();
    let opening = tokio::task::spawn_blocking(move || {
        let file = File::open(&at)?;
        let (size, intact) = (file.metadata()?.len(), hash(&file)? == name.digest);
        Ok((file, size, intact))
    });
    let opened: io::Result<_> = opening.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
    let (file, size, intact) = opened?;
    if !intact {
        return Ok((How::Damaged(path.display().to_string()), 0));
    }
    let key = key(name);
    if objects.head(&key).await?.is_some_and(|there| there.size == size) {
        return Ok((How::Skipped, size));
    }
    objects.put_file(&key, Arc::new(file), size).await?;
    Ok((How::Copied, size))
}
