//! Snapshots in S3, so that a session can wake on another node.
//!
//! ```text
//! snapshots/<session>/<number>-<random>/<file>   files of one session
//! snapshots/common/<sha256>                     layers that several sessions share
//! snapshots/common/<class>/<sha256>             layers that sessions share with the zygote of their node
//! ```
//!
//! A snapshot exists when the row of its session has its pointer ([`RemoteSnapshots::upload`] returns it): the manifest,
//! and the key, size and SHA-256 of each file. Objects never change, and two uploads never use the same key, so a node
//! that lost the session cannot change what the row points to. A later upload refers to objects of an earlier one if
//! the session still has the same files.

mod checkpoints;
mod common_cache;
mod hashes;
mod read_back;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use belljar_runtime::common_layer;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::files::{SnapshotFiles, SnapshotManifest};
use super::session_snapshots::SessionSnapshots;
use crate::clock;
use crate::error::EngineError;
use crate::objects::{ObjectError, Objects};
use crate::store::Digest;
use checkpoints::RemoteCheckpoint;
pub(crate) use checkpoints::checkpoints_of;
use common_cache::CommonCache;
pub(super) use common_cache::remove_parts;
use hashes::Hashes;

/// The version of a pointer.
const VERSION: u32 = 1;

/// The prefix of layers that sessions share.
const COMMON: &str = "snapshots/common";

/// Files of one snapshot that are sent or fetched at the same time.
const FILES_AT_ONCE: usize = 4;

/// How many sessions are remembered with the objects that they have.
const REMEMBERED: usize = 10_000;

/// Shared layers that no session refers to are removed after this time.
const COMMON_KEPT_MS: i64 = 24 * 3600 * 1000;

/// A shared layer that is older than this is sent again instead of referred to, because a sweep could be removing it.
const COMMON_TRUSTED_MS: i64 = COMMON_KEPT_MS / 2;

/// Layers of zygotes are fetched before a session needs them, the newest first, while all of them together have at most
/// this many bytes. The cache has room for more.
const ZYGOTE_LAYERS: u64 = 2 << 30;

/// The snapshots of all sessions in S3. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct RemoteSnapshots(Arc<RemoteState>);

#[derive(Debug)]
struct RemoteState {
    objects: Objects,
    /// What a node needs to restore memory from this one's snapshots, see `class` of [`Pointer`].
    class: String,
    /// Layers of this node's own zygotes.
    commons: PathBuf,
    /// Layers of other nodes.
    cache: CommonCache,
    hashes: Hashes,
    /// The objects of sessions whose snapshots were sent or fetched here.
    known: Mutex<HashMap<String, Vec<RemoteFile>>>,
    /// The last id of a snapshot, see `SnapshotStore`.
    last_id: Arc<AtomicU64>,
}

/// What the row of a session has about its snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Pointer {
    version: u32,
    session: String,
    /// See [`SnapshotPointer::number`](super::SnapshotPointer::number).
    number: i64,
    /// The class of the node that made it. Nodes that cannot wake this class restore only its files.
    class: String,
    manifest: SnapshotManifest,
    /// Of the snapshot and of all checkpoints.
    files: Vec<RemoteFile>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    checkpoints: Vec<RemoteCheckpoint>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RemoteFile {
    /// The number and the kind of the file in the directory of snapshots.
    id: u64,
    kind: FileKind,
    key: String,
    bytes: u64,
    sha256: Digest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileKind {
    Pages,
    Index,
    Files,
}

impl FileKind {
    fn name(self) -> &'static str {
        match self {
            FileKind::Pages => "pages",
            FileKind::Index => "index",
            FileKind::Files => "files",
        }
    }

    fn of(name: &str) -> Option<FileKind> {
        [FileKind::Pages, FileKind::Index, FileKind::Files]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

impl RemoteFile {
    fn is_common(&self) -> bool {
        self.key.starts_with(COMMON)
    }
}

/// A file that is open for sending.
struct LocalFile {
    id: u64,
    kind: FileKind,
    file: Arc<File>,
    bytes: u64,
    sha256: Digest,
    sharing: Sharing,
}

/// Who has the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    OneSession,
    SeveralSessions,
    /// The zygote from which the kernels of a node are forked, so nearly all sessions of the node.
    Zygote,
}

impl RemoteSnapshots {
    /// `directory` is the directory of snapshots of this node, and `commons` that of its shared layers.
    pub(super) fn new(
        objects: Objects,
        class: String,
        commons: PathBuf,
        cache: PathBuf,
        last_id: Arc<AtomicU64>,
    ) -> RemoteSnapshots {
        RemoteSnapshots(Arc::new(RemoteState {
            cache: CommonCache::new(cache),
            objects,
            class,
            commons,
            hashes: Hashes::default(),
            known: Mutex::default(),
            last_id,
        }))
    }

    /// Sends a snapshot and returns its pointer for the row of the session. Files that S3 has already are not sent.
    pub(crate) async fn upload(
        &self,
        session: &str,
        number: i64,
        snapshots: &SessionSnapshots,
        manifest: &SnapshotManifest,
    ) -> Result<Value, EngineError> {
        let local =
            self.open_files(snapshots, manifest).await.map_err(EngineError::KeepSnapshot)?;
        let directory =
            format!("snapshots/{session}/{number}-{}", belljar_sys::process::random_name());
        let known = self.known(session);
        let sending = local.into_iter().map(|file| self.send(file, &directory, &known));
        let sending = futures_util::stream::iter(sending).buffered(FILES_AT_ONCE);
        // Not cancelled at the first error: that would leave pieces of the others in the bucket.
        let sent: Vec<Result<RemoteFile, ObjectError>> = sending.collect().await;
        let files = sent.into_iter().collect::<Result<Vec<_>, _>>().map_err(failed)?;
        self.remember(session, &files);
        let pointer = Pointer {
            version: VERSION,
            session: session.to_owned(),
            number,
            class: self.0.class.clone(),
            manifest: manifest.clone(),
            files,
            checkpoints: Vec::new(),
        };
        serde_json::to_value(pointer).map_err(|error| EngineError::KeepSnapshot(error.into()))
    }

    /// Fetches a snapshot, checks its content, and makes it visible in `into`. Files that are there already are not
    /// fetched, so a call after a failed one fetches only the rest.
    pub(crate) async fn fetch(
        &self,
        pointer: &Value,
        into: &SessionSnapshots,
    ) -> Result<SnapshotManifest, EngineError> {
        let pointer = read(pointer).map_err(EngineError::KeepSnapshot)?;
        into.run(SnapshotFiles::make).await.map_err(EngineError::KeepSnapshot)?;
        let is_part = |file: &&RemoteFile| {
            pointer.manifest.parts().any(|part| part == (file.id, file.kind.name()))
        };
        // Checkpoints are fetched when they are needed.
        let parts = pointer.files.iter().filter(is_part).cloned();
        let fetching = parts.map(|file| self.receive(file, into));
        let fetching = futures_util::stream::iter(fetching).buffer_unordered(FILES_AT_ONCE);
        // Not cancelled at the first error, so that the next call finds the others.
        let fetched: Vec<io::Result<()>> = fetching.collect().await;
        fetched.into_iter().collect::<io::Result<()>>().map_err(EngineError::KeepSnapshot)?;
        let manifest = pointer.manifest.clone();
        // S3 has the snapshot too, so it need not survive a power cut here.
        let publish = move |files: &SnapshotFiles| files.publish(&manifest);
        into.run(publish).await.map_err(EngineError::KeepSnapshot)?;
        // Another node's clock may be ahead; later snapshots must have higher ids.
        let highest = pointer.files.iter().filter(|file| !file.is_common()).map(|file| file.id);
        let highest = highest.chain([pointer.manifest.id]).max().unwrap_or(0);
        self.0.last_id.fetch_max(highest, Ordering::Relaxed);
        self.remember(&pointer.session, &pointer.files);
        Ok(pointer.manifest)
    }

    /// Removes the objects of a session that its pointer does not refer to. Call it when the row has this pointer.
    /// Objects of later uploads may belong to another owner and stay.
    pub(crate) async fn prune(&self, pointer: &Value) -> Result<(), EngineError> {
        let pointer = read(pointer).map_err(EngineError::KeepSnapshot)?;
        let below = format!("snapshots/{}", pointer.session);
        let there = self.0.objects.list_all(&below).await.map_err(failed)?;
        let keys = there.into_iter().map(|object| object.key);
        let unused = keys.filter(|key| {
            let number = key[below.len()..].trim_start_matches('/').split_once('-');
            let number = number.and_then(|(number, _)| number.parse::<i64>().ok());
            number.is_some_and(|number| number <= pointer.number)
                && !pointer.files.iter().any(|file| file.key == *key)
        });
        self.0.objects.remove_all(unused.collect()).await.map_err(failed)
    }

    /// Removes all snapshots of a session that has ended.
    pub(crate) async fn remove(&self, session: &str) -> Result<(), EngineError> {
        crate::lock(&self.0.known).remove(session);
        let there = self.0.objects.list_all(&format!("snapshots/{session}")).await;
        let keys = there.map_err(failed)?.into_iter().map(|object| object.key).collect();
        self.0.objects.remove_all(keys).await.map_err(failed)
    }

    /// The shared layers that a pointer refers to.
    pub(crate) fn common_layers(
        pointer: &Value,
    ) -> Result<impl Iterator<Item = String> + use<>, EngineError> {
        let files = read(pointer).map_err(EngineError::KeepSnapshot)?.files;
        Ok(files.into_iter().filter(RemoteFile::is_common).map(|file| file.key))
    }

    /// Removes shared layers that are not `used` and that are older than a day. `used` are those of all sessions of all
    /// nodes, read after `now_ms`. Only one node may sweep at a time.
    pub(crate) async fn sweep_common(
        &self,
        now_ms: i64,
        used: &HashSet<String>,
    ) -> Result<u64, EngineError> {
        let there = self.0.objects.list_all(COMMON).await.map_err(failed)?;
        let unused = there.into_iter().filter(|object| {
            object.put_ms < now_ms - COMMON_KEPT_MS && !used.contains(&object.key)
        });
        let unused: Vec<String> = unused.map(|object| object.key).collect();
        let count = unused.len() as u64;
        self.0.objects.remove_all(unused).await.map_err(failed)?;
        Ok(count)
    }

    /// Fetches layers that sessions of other nodes of this class share with a zygote. A wake then fetches only what is the
    /// session's own.
    pub(crate) async fn fetch_zygote_layers(&self) -> Result<(), EngineError> {
        let mut there = self.0.objects.list_all(&self.0.zygote_layers()).await.map_err(failed)?;
        there.sort_by_key(|object| std::cmp::Reverse(object.put_ms));
        let mut bytes = 0;
        let newest = there.into_iter().take_while(|object| {
            bytes += object.size;
            bytes <= ZYGOTE_LAYERS
        });
        for object in newest {
            let sha256 = object.key.rsplit('/').next().and_then(|name| name.parse().ok());
            if let Some(sha256) = sha256.filter(|_| !self.is_known(&object.key)) {
                let (key, bytes) = (object.key, object.size);
                let layer = RemoteFile { id: 0, kind: FileKind::Pages, key, bytes, sha256 };
                self.0.cache.get(&self.0, &layer).await.map_err(EngineError::KeepSnapshot)?;
            }
        }
        Ok(())
    }

    /// Whether a session of this node has a file with this key.
    fn is_known(&self, key: &str) -> bool {
        crate::lock(&self.0.known).values().flatten().any(|file| file.key == key)
    }

    /// Opens and hashes the files of a snapshot.
    async fn open_files(
        &self,
        snapshots: &SessionSnapshots,
        manifest: &SnapshotManifest,
    ) -> io::Result<Vec<LocalFile>> {
        let (state, manifest) = (Arc::clone(&self.0), manifest.clone());
        let open = move |files: &SnapshotFiles| {
            let parts: Vec<(u64, &str)> = manifest.parts().collect();
            let open = |(id, kind): (u64, &str)| {
                let file = File::open(files.path(id, kind))?;
                let metadata = file.metadata()?;
                let sha256 = state.hashes.of(&file, &metadata)?;
                let sharing = match common_layer(&state.commons, id) {
                    Some(_) => Sharing::Zygote,
                    None if metadata.nlink() > 1 => Sharing::SeveralSessions,
                    None => Sharing::OneSession,
                };
                let kind = FileKind::of(kind).ok_or(io::ErrorKind::InvalidInput)?;
                let (file, bytes) = (Arc::new(file), metadata.len());
                Ok(LocalFile { id, kind, file, bytes, sha256, sharing })
            };
            parts.into_iter().map(open).collect()
        };
        snapshots.run(open).await
    }

    async fn send(
        &self,
        local: LocalFile,
        directory: &str,
        known: &[RemoteFile],
    ) -> Result<RemoteFile, ObjectError> {
        let LocalFile { id, kind, file, bytes, sha256, sharing } = local;
        let is_same = |other: &&RemoteFile| other.sha256 == sha256 && other.bytes == bytes;
        // A shared layer may be gone: the row has perhaps never referred to it.
        if let Some(same) = known.iter().find(is_same)
            && (!same.is_common() || self.has_common(&same.key, bytes).await?)
        {
            return Ok(RemoteFile { id, kind, key: same.key.clone(), bytes, sha256 });
        }
        let key = match sharing {
            Sharing::OneSession => format!("{directory}/{id}.{}", kind.name()),
            Sharing::SeveralSessions => format!("{COMMON}/{sha256}"),
            Sharing::Zygote => format!("{}/{sha256}", self.0.zygote_layers()),
        };
        if sharing == Sharing::OneSession || !self.has_common(&key, bytes).await? {
            self.0.objects.put_file(&key, file, bytes).await?;
        }
        Ok(RemoteFile { id, kind, key, bytes, sha256 })
    }

    async fn has_common(&self, key: &str, bytes: u64) -> Result<bool, ObjectError> {
        let found = self.0.objects.head(key).await?;
        let trusted = clock::now_ms() - COMMON_TRUSTED_MS;
        Ok(found.is_some_and(|object| object.size == bytes && object.put_ms > trusted))
    }

    /// Makes sure that the directory has a file of a snapshot.
    async fn receive(&self, remote: RemoteFile, into: &SessionSnapshots) -> io::Result<()> {
        let (state, wanted) = (Arc::clone(&self.0), remote.clone());
        let is_there = move |files: &SnapshotFiles| {
            let own = files.path(wanted.id, wanted.kind.name());
            if state.hashes.matches(&own, wanted.bytes, &wanted.sha256)? {
                return Ok(true);
            }
            // This node's own zygote may have made it.
            let common = common_layer(&state.commons, wanted.id);
            match common {
                Some(common) if state.hashes.matches(&common, wanted.bytes, &wanted.sha256)? => {
                    replace_by_link(&common, &own).map(|()| true)
                }
                _ => Ok(false),
            }
        };
        if into.run(is_there).await? {
            return Ok(());
        }
        let wanted = remote.clone();
        if remote.is_common() {
            let cached = self.0.cache.get(&self.0, &remote).await?;
            let link = move |files: &SnapshotFiles| {
                replace_by_link(&cached, &files.path(wanted.id, wanted.kind.name()))
            };
            return into.run(link).await;
        }
        let place = into.run(move |files| Ok(files.path(wanted.id, wanted.kind.name()))).await?;
        self.0.download(&remote, place).await
    }

    fn known(&self, session: &str) -> Vec<RemoteFile> {
        crate::lock(&self.0.known).get(session).cloned().unwrap_or_default()
    }

    fn remember(&self, session: &str, files: &[RemoteFile]) {
        let mut known = crate::lock(&self.0.known);
        if known.len() >= REMEMBERED && !known.contains_key(session) {
            // A session that is forgotten sends all its files again, which is correct and only slower.
            let any = known.keys().next().cloned();
            any.and_then(|any| known.remove(&any));
        }
        known.insert(session.to_owned(), files.to_vec());
    }
}

impl RemoteState {
    /// The prefix of the keys of layers of zygotes of this class. The text of a class may have any character.
    fn zygote_layers(&self) -> String {
        let class = Digest::of(self.class.as_bytes()).to_string();
        format!("{COMMON}/{}", &class[..16])
    }

    /// Fetches an object to a path and checks its content. The path has the whole content or does not change.
    async fn download(&self, remote: &RemoteFile, to: PathBuf) -> io::Result<()> {
        let name = format!("part-{}", belljar_sys::process::random_name());
        let part = PartFile(to.with_extension(name));
        let fetched = self.download_to(remote, part.0.clone()).await;
        let (expected, key) = (remote.sha256, remote.key.clone());
        let finishing = tokio::task::spawn_blocking(move || {
            let found = hashes::hash(&*fetched?)?;
            if found != expected {
                let message = format!("`{key}` has the SHA-256 {found}, not {expected}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            std::fs::rename(&part.0, &to)
        });
        finishing.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }

    async fn download_to(&self, remote: &RemoteFile, part: PathBuf) -> io::Result<Arc<File>> {
        let creating = tokio::task::spawn_blocking(move || super::files::create(&part));
        let created = creating.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        let file = Arc::new(created?);
        self.objects.get_file(&remote.key, Arc::clone(&file), remote.bytes).await?;
        Ok(file)
    }
}

/// A file that is being fetched. Unless it was renamed, it is removed when this is dropped.
struct PartFile(PathBuf);

impl Drop for PartFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn replace_by_link(from: &std::path::Path, to: &std::path::Path) -> io::Result<()> {
    match std::fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::hard_link(from, to)
}

/// Reads a pointer. It must name each file of its manifest.
fn read(pointer: &Value) -> io::Result<Pointer> {
    let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
    let pointer = Pointer::deserialize(pointer).map_err(|error| {
        invalid(format!("the pointer to the snapshot is not readable: {error}"))
    })?;
    if pointer.version != VERSION {
        let version = pointer.version;
        return Err(invalid(format!("the pointer to the snapshot has the version {version}")));
    }
    let has =
        |id, kind: &str| pointer.files.iter().any(|file| file.id == id && file.kind.name() == kind);
    if !pointer.manifest.parts().all(|(id, kind)| has(id, kind)) {
        return Err(invalid("the pointer to the snapshot lacks some of its files".into()));
    }
    Ok(pointer)
}

fn failed(error: ObjectError) -> EngineError {
    EngineError::KeepSnapshot(error.into())
}
