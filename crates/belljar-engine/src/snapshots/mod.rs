//! Snapshots: sessions as files, from which sessions are restored, forked and woken.
//!
//! ```text
//! SNAPSHOTS/<session id>/        the snapshots of one session
//!     ID.json                    the manifest of a snapshot, written last
//!     ID.index, ID.pages         its Python kernel: an index, and a layer of memory
//!     ID.files                   an archive of its files, which only a guest unpacks
//! ```
//!
//! A snapshot exists if its `ID.json` does. Its layers may belong to earlier snapshots; a file to which no manifest
//! refers is removed. Sessions that share a file have hard links to it, so that each can be removed independently.
//! Kernels have layers open for reading. An open layer stays in its directory, and is counted ([`disk_usage`]), until
//! it is closed or the session ends.
//!
//! [`files`] reads and writes these directories and blocks; [`SessionSnapshots`] does the same for async code.
//! [`capture`] takes a snapshot of a sandbox, [`revive`] restores one into a fresh sandbox. [`remote`] copies snapshots
//! to S3 and back, if the server has such a store.

mod cached;
mod capture;
mod copy;
mod disk_usage;
mod files;
mod pointer;
mod remote;
mod revive;
mod session_snapshots;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use capture::{CaptureRequest, capture};
pub use copy::{CopiedSnapshot, SnapshotCopier};
pub(crate) use files::{SnapshotFiles, SnapshotManifest};
pub(crate) use pointer::{Resume, SnapshotPointer};
pub(crate) use remote::{RemoteSnapshots, checkpoints_of};
pub(crate) use revive::revive;
pub(crate) use session_snapshots::{ForkSource, SessionSnapshots};

use cached::Cached;
use disk_usage::{SnapshotUsage, Tally, UsageLimits};

use crate::clock;
use crate::error::EngineError;
use crate::objects::{Objects, ObjectsConfig};

/// The directory of layers that sessions share.
const COMMONS: &str = "commons";

/// The directory of shared layers that other nodes made.
const FETCHED_COMMONS: &str = "fetched-commons";

/// Random bits of an id, so that two nodes do not make the same one.
const RANDOM_BITS: u32 = 20;

/// The directory of snapshots, and their limits.
#[derive(Debug, Clone)]
pub struct SnapshotConfig {
    pub directory: PathBuf,
    /// The most bytes of all snapshots together; `None` means no limit.
    pub total_bytes: Option<u64>,
    /// The most bytes of all snapshots of a tenant; `None` means no limit.
    pub tenant_bytes: Option<u64>,
    /// The most hibernated sessions of a tenant whose key has no limit of its own; `None` means no limit.
    pub tenant_sleeping: Option<u64>,
    /// How long a session must be idle to be hibernated; `None` means only on request.
    pub hibernate_after: Option<std::time::Duration>,
    /// Where snapshots are copied to, so that sessions can wake on other nodes; `None` means nowhere.
    pub remote: Option<RemoteSnapshotConfig>,
}

#[derive(Debug, Clone)]
pub struct RemoteSnapshotConfig {
    pub objects: ObjectsConfig,
    /// The class of this node (`belljar_sys::wake_class::NodeClass`), which says what can restore memory from its snapshots.
    pub class: String,
}

/// The snapshots of all sessions. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotStore {
    config: Arc<SnapshotConfig>,
    /// The last id that was used. Ids grow, also across restarts, and are unique among all sessions, because a fork
    /// uses the layers of another session.
    last: Arc<AtomicU64>,
    usage: SnapshotUsage,
    remote: Option<RemoteSnapshots>,
    cached: Arc<Cached>,
}

impl SnapshotStore {
    /// Opens the directory. Blocks; call it at the start.
    pub(crate) fn open(config: SnapshotConfig) -> io::Result<SnapshotStore> {
        files::make_directory(&config.directory)?;
        let limits = UsageLimits { total: config.total_bytes, tenant: config.tenant_bytes };
        let usage = SnapshotUsage::new(limits);
        let last = Arc::default();
        let remote = config.remote.as_ref().map(|remote| {
            let objects = Objects::open(&remote.objects)?;
            let [commons, fetched] =
                [COMMONS, FETCHED_COMMONS].map(|name| config.directory.join(name));
            let (class, last) = (remote.class.clone(), Arc::clone(&last));
            Ok::<_, io::Error>(RemoteSnapshots::new(objects, class, commons, fetched, last))
        });
        let remote = remote.transpose()?;
        Ok(SnapshotStore { config: Arc::new(config), last, usage, remote, cached: Arc::default() })
    }

    /// The snapshots in S3, if this server has them.
    pub(crate) fn remote(&self) -> Option<&RemoteSnapshots> {
        self.remote.as_ref()
    }

    pub(crate) fn config(&self) -> &SnapshotConfig {
        &self.config
    }

    pub(crate) fn of_session(&self, session: &str) -> SessionSnapshots {
        SessionSnapshots::new(self.files_of(session))
    }

    fn files_of(&self, session: &str) -> SnapshotFiles {
        SnapshotFiles::new(self.config.directory.join(session))
    }

    /// Layers that snapshots of many sessions share; a session has links to those that it needs.
    fn commons(&self) -> PathBuf {
        self.config.directory.join(COMMONS)
    }

    /// An id that no snapshot has, also none of another node: milliseconds, then random bits. It is less than 2^62.
    pub(crate) fn next_id(&self) -> u64 {
        let random = u64::from(u32::from_ne_bytes(belljar_sys::process::random_bytes()));
        let now = u64::try_from(clock::now_ms()).unwrap_or(0) << RANDOM_BITS;
        let now = now | random >> (u32::BITS - RANDOM_BITS);
        // Two ids of one millisecond, or a clock that went back. The step is random too, see above.
        let next = |last: u64| now.max(last + 1 + random % 1024);
        let before =
            self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        next(before.unwrap_or(0))
    }

    /// Counts a snapshot while it is taken. Refused if there is no room.
    fn meter(&self, tenant: &str, room: u64) -> Result<Arc<Tally>, EngineError> {
        self.usage.meter(tenant, room)
    }

    /// Counts the present disk space of the snapshots of a session.
    pub(crate) async fn count(&self, session: &str, tenant: &str) {
        if let Ok(files) = self.of_session(session).run(|files| Ok(files.on_disk())).await {
            self.usage.set(session, tenant, files);
        }
    }

    /// Removes the snapshots of a session that has ended.
    pub(crate) async fn remove(&self, session: &str) {
        if let Err(error) = self.of_session(session).run(SnapshotFiles::remove).await {
            tracing::warn!(session.id = session, "failed to remove its snapshots: {error}");
        }
        self.usage.remove(session);
    }

    /// Removes unfinished files of an earlier server, and the snapshots of all sessions except these (id and tenant). Those
    /// of a session that came back, and whose files here were not renewed yet, are in S3. Call it before any snapshot is taken.
    pub(crate) async fn tidy(&self, sessions: Vec<(String, String)>) -> io::Result<()> {
        let store = self.clone();
        let tidying = tokio::task::spawn_blocking(move || store.tidy_blocking(&sessions));
        tidying.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }

    fn tidy_blocking(&self, sessions: &[(String, String)]) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.config.directory)? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            let files = self.files_of(&name);
            if name == COMMONS {
                // Sessions have links to the layers that they need. New shared layers are made when needed.
                std::fs::remove_dir_all(self.commons())?;
            } else if name == FETCHED_COMMONS {
                remote::remove_parts(&self.config.directory.join(FETCHED_COMMONS))?;
            } else if let Some((_, tenant)) = sessions.iter().find(|(id, _)| *id == name)
                && !files.is_cache()
            {
                if let Err(error) = files.sweep() {
                    tracing::warn!(session.id = name, "failed to tidy up its snapshots: {error}");
                }
                self.usage.set(&name, tenant, files.on_disk());
            } else if let Err(error) = files.remove() {
                tracing::warn!(session.id = name, "failed to remove its snapshots: {error}");
            }
        }
        Ok(())
    }

    /// A copy of a snapshot from which other sessions begin. It exists until this is dropped.
    pub(crate) async fn fork_source(
        &self,
        snapshots: &SessionSnapshots,
        manifest: &SnapshotManifest,
    ) -> io::Result<ForkSource> {
        let own = self.files_of(&format!("fork_{}", self.next_id()));
        let manifest = manifest.clone();
        snapshots.run(move |files| ForkSource::new(own, files, manifest)).await
    }
}

fn too_large(room: u64) -> EngineError {
    EngineError::TooLarge(format!("what is to be kept of this session is more than {room} bytes"))
}
