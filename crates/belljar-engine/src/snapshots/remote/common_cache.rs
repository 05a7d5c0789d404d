//! A cache of shared layers of other nodes. Each is fetched once, and sessions have hard links to it.

use std::collections::HashMap;
use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use super::super::files::make_directory;
use super::{RemoteFile, RemoteState};
use crate::store::Digest;

/// When the cache has more bytes than this, the layers that were used least recently are removed.
const LIMIT: u64 = 8 << 30;

#[derive(Debug)]
pub(super) struct CommonCache {
    directory: PathBuf,
    /// Locked while a layer is fetched, so that others wait for the same one.
    fetching: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
}

impl CommonCache {
    pub(super) fn new(directory: PathBuf) -> CommonCache {
        CommonCache { directory, fetching: Mutex::default() }
    }

    /// The path of a shared layer, which is fetched if it is not there.
    pub(super) async fn get(
        &self,
        state: &RemoteState,
        remote: &RemoteFile,
    ) -> io::Result<PathBuf> {
        let turn = self.turn(remote.sha256);
        let _only_one = turn.lock().await;
        let path = self.directory.join(remote.sha256.to_string());
        let (directory, looked_up, bytes) = (self.directory.clone(), path.clone(), remote.bytes);
        // It was checked when it was fetched.
        if blocking(move || prepare(&directory, &looked_up, bytes)).await? {
            return Ok(path);
        }
        state.download(remote, path.clone()).await?;
        let (directory, kept) = (self.directory.clone(), path.clone());
        blocking(move || evict(&directory, &kept, LIMIT)).await?;
        Ok(path)
    }

    /// A path for a file that is soon removed.
    pub(super) async fn part(&self) -> io::Result<PathBuf> {
        let directory = self.directory.clone();
        blocking(move || make_directory(&directory)).await?;
        // Files with an extension do not belong to the cache, see `remove_parts`.
        let name = format!("read-back.{}", belljar_sys::process::random_name());
        Ok(self.directory.join(name))
    }

    fn turn(&self, digest: Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut fetching = crate::lock(&self.fetching);
        fetching.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = fetching.get(&digest).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        fetching.insert(digest, Arc::downgrade(&turn));
        turn
    }
}

/// Removes layers that an earlier server did not finish to fetch.
pub(in crate::snapshots) fn remove_parts(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some() {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let working = tokio::task::spawn_blocking(work);
    working.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

/// Makes the directory. Returns whether it has the layer, and notes that the layer is in use.
fn prepare(directory: &Path, path: &Path, bytes: u64) -> io::Result<bool> {
    make_directory(directory)?;
    match File::options().write(true).open(path) {
        Ok(file) if file.metadata()?.len() == bytes => {
            // Not the time of the last change: with it, the hash of the file would count as unknown.
            file.set_times(FileTimes::new().set_accessed(SystemTime::now()))?;
            Ok(true)
        }
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the layers that were used least recently until the rest has at most `limit` bytes; `kept` stays. Sessions
/// that use a removed layer have links to it.
fn evict(directory: &Path, kept: &Path, limit: u64) -> io::Result<()> {
    let mut layers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        layers.push((metadata.accessed()?, metadata.len(), entry.path()));
    }
    layers.sort();
    let mut bytes: u64 = layers.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, size, path) in layers {
        if bytes <= limit {
            break;
        }
        if path != kept && path.extension().is_none() {
            fs::remove_file(&path)?;
            bytes -= size;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_least_recently_used_layers_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for (name, age) in [("old", 3), ("older", 5), ("new", 1), ("kept", 9)] {
            fs::write(path(name), [0; 100]).unwrap();
            let file = File::options().write(true).open(path(name)).unwrap();
            let used = SystemTime::now() - Duration::from_secs(age);
            file.set_times(FileTimes::new().set_accessed(used)).unwrap();
        }
        evict(directory.path(), &path("kept"), 200).unwrap();
        let left = ["kept", "new", "old", "older"].map(|name| path(name).exists());
        assert_eq!(left, [true, true, false, false]);
    }
}
