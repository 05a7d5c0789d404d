//! The snapshots of one session for async code: blocking work runs on blocking threads.

use std::fs::File;
use std::io;

use belljar_runtime::MemorySnapshot;

use super::files::{Draft, SnapshotFiles, SnapshotManifest};

#[derive(Debug, Clone)]
pub(crate) struct SessionSnapshots {
    files: SnapshotFiles,
}

impl SessionSnapshots {
    pub(super) fn new(files: SnapshotFiles) -> SessionSnapshots {
        SessionSnapshots { files }
    }

    /// Works on the files of the snapshots, on a blocking thread.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&SnapshotFiles) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let files = self.files.clone();
        let working = tokio::task::spawn_blocking(move || work(&files));
        working.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }

    /// All snapshots, the oldest first.
    pub(crate) async fn list(&self) -> Vec<SnapshotManifest> {
        self.run(|files| Ok(files.list())).await.unwrap_or_default()
    }

    /// All snapshots, the oldest first; none if they may be old because another node had the session since.
    pub(crate) async fn current(&self) -> Vec<SnapshotManifest> {
        let list =
            |files: &SnapshotFiles| Ok(if files.is_cache() { Vec::new() } else { files.list() });
        self.run(list).await.unwrap_or_default()
    }

    /// The last snapshot that is not a checkpoint.
    pub(crate) async fn last(&self) -> Option<SnapshotManifest> {
        self.run(|files| Ok(files.last())).await.ok().flatten()
    }

    /// The checkpoint of an execution.
    pub(crate) async fn checkpoint(&self, exec: &str) -> Option<SnapshotManifest> {
        let exec = exec.to_owned();
        self.run(move |files| Ok(files.checkpoint(&exec))).await.ok().flatten()
    }

    /// The Python kernel of a snapshot, if it has one.
    pub(super) async fn kernel(
        &self,
        manifest: &SnapshotManifest,
    ) -> io::Result<Option<MemorySnapshot>> {
        let manifest = manifest.clone();
        self.run(move |files| files.kernel(&manifest)).await
    }

    /// The archive of a snapshot, if it has one.
    pub(super) async fn archive(&self, manifest: &SnapshotManifest) -> io::Result<Option<File>> {
        let manifest = manifest.clone();
        self.run(move |files| files.archive(&manifest)).await
    }

    pub(super) async fn begin(&self, id: u64) -> io::Result<Draft> {
        self.run(move |files| files.begin(id)).await
    }
}

/// A copy of a snapshot from which sessions begin, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ForkSource {
    files: SnapshotFiles,
    pub(crate) manifest: SnapshotManifest,
}

impl ForkSource {
    pub(super) fn new(
        own: SnapshotFiles,
        source: &SnapshotFiles,
        manifest: SnapshotManifest,
    ) -> io::Result<ForkSource> {
        let fork = ForkSource { files: own, manifest };
        source.share(&fork.manifest, &fork.files)?;
        Ok(fork)
    }

    /// Makes this snapshot the first one of another session.
    pub(crate) async fn share(&self, with: &SessionSnapshots) -> io::Result<()> {
        let (source, manifest) = (self.files.clone(), self.manifest.clone());
        with.run(move |files| source.share(&manifest, files)).await
    }
}

impl Drop for ForkSource {
    fn drop(&mut self) {
        let files = self.files.clone();
        let remove = move || {
            if let Err(error) = files.remove() {
                tracing::warn!("failed to remove the snapshot of a fork: {error}");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}
