//! The engine: every session of this server, and what they share.
//!
//! ```text
//!   API, command line
//!         │ one method for each thing that can be asked, on behalf of a Principal
//!         ▼
//!      Engine ──────▶ Pool: warm sandboxes, until somebody takes one
//!         │ └───────▶ Audit: who asked for what
//!         ▼
//!      EngineState ──────▶ Store, Runtime, Admission, Metrics, Usage
//!         ▲ └───────▶ Registry ──▶ Session: the handle of a live session
//!         │                           │ commands   ▲ view
//!         │ also held by              ▼            │
//!         ├──────────────────────── driver ────────┘ ──▶ sandbox, queues, phase, Reservation
//!         └── the pool's maker, the books
//! ```
//!
//! The engine owns nothing of a session: it looks its handle up in the registry and asks. What has
//! no handle any more has a row in the store, and is answered from there.
//!
//! [`create`] makes sessions or finds them, [`life`] starts them again, prolongs and stops them, [`forget`] removes them,
//! [`execs`] executes in them, [`artifacts`] is what they left, [`datasets`], [`files`] and [`archives`] what they
//! work on, [`terminals`] what people sit at in them, [`volumes`] what outlives them, [`runs`] does without them; [`views`] is what is told about all that.
//! [`recovery`] begins with what an earlier server left, [`upkeep`] forgets what is old; [`shared`] and [`sandboxes`] are below the
//! verbs, and the drivers use them too.

mod archives;
mod artifacts;
mod create;
mod datasets;
mod execs;
mod files;
mod forget;
mod life;
mod recovery;
mod runs;
mod sandboxes;
mod snapshots;
mod state;
mod terminals;
mod upkeep;
mod views;
mod volumes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_runtime::Runtime;
use tokio::sync::watch;

pub use archives::{ArchiveDownload, ArchiveUpload};
pub use create::{Created, How};
pub use datasets::Upload;
pub use execs::{Accepted, Beyond};
pub use files::{FileUpload, Watching};
use recovery::Left;
pub use runs::{CheckedRun, RunAsk};
pub use snapshots::{Checkpoint, MAX_FORKS};
pub(crate) use state::{EngineState, durability};
pub use terminals::{Attached, Shown, TerminalAsk, TerminalControl};
pub use views::{ExecInfo, SessionInfo};

use crate::admission::Quota;
use crate::artifacts::{ArtifactStore, ArtifactStoreConfig};
use crate::audit::Audit;
use crate::datasets::source::Sources;
use crate::error::{EngineError, in_full};
use crate::metrics::Snapshot;
use crate::network::{Network, Traffic};
use crate::pool::Pool;
use crate::record::{DiskConfig, Record};
use crate::session::Session;
use crate::session::rules::{self, Phase};
use crate::snapshots::SnapshotConfig;
use crate::spec::SessionSpec;
use crate::store::{KeyLimits, SessionRow, Store};
use crate::usage;
use crate::volumes::VolumesConfig;
use crate::workspaces::WorkspacesConfig;

/// A disk with less room than this, in bytes, is full: little more than a page of the database can be
/// written to it.
const LEAST_ROOM: u64 = 256 * 1024;

/// Every session of this server; everything is asked of it.
#[derive(Debug)]
pub struct Engine {
    pub(crate) shared: Arc<EngineState>,
    audit: Audit,
    /// Becomes true when everything an earlier server left is taken over or cleaned up.
    recovered: watch::Sender<bool>,
    /// Charge what sessions use and forget what is old, for as long as the engine is open.
    chores: [tokio::task::JoinHandle<()>; 2],
}

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    pub defaults: SessionSpec,
    /// Patterns of images that sessions may ask for besides the default.
    pub images: Vec<String>,
    pub sessions_root: PathBuf,
    /// What `LOCAL_RO` shows at `/data`.
    pub datasets_dir: Option<PathBuf>,
    /// Where the server itself fetches datasets from.
    pub dataset_sources: Arc<Sources>,
    /// Where content of datasets is kept for the next session, and how much of it.
    pub dataset_cache: PathBuf,
    pub dataset_cache_bytes: u64,
    /// The largest dataset.
    pub dataset_bytes: u64,
    /// How sandboxes get out, where they do.
    pub network: Arc<Network>,
    /// How the files of sessions with storage BIND are kept.
    pub disk: DiskConfig,
    /// How files are kept that outlive sessions.
    pub volumes: VolumesConfig,
    /// Directories of the host that sessions may have at `/workspace`.
    pub workspaces: WorkspacesConfig,
    /// Where artifacts are kept.
    pub artifact_store: ArtifactStoreConfig,
    /// Warm sandboxes to keep.
    pub pool: usize,
    pub total: Quota,
    /// How long sandboxes wait for a server to come back.
    pub alone_for_s: u64,
    /// The longest life that can be asked for.
    pub max_ttl_s: u64,
    /// When idle sessions move their large values to disk; none: never.
    pub spill: Option<SpillPolicy>,
    /// Sessions as files.
    pub snapshots: SnapshotConfig,
}

/// When values go to disk, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpillPolicy {
    /// Without use for this long.
    pub after: Duration,
    /// Bytes of a table or a column, and of an array.
    pub frame_bytes: u64,
    pub array_bytes: u64,
}

/// On whose behalf something is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub tenant: String,
    /// The key that was shown; none where none are needed.
    pub key_id: Option<String>,
    pub limits: KeyLimits,
}

/// The tenant of a server without keys.
pub const DEFAULT_TENANT: &str = "default";

impl Default for Principal {
    fn default() -> Self {
        let limits = KeyLimits::default();
        Principal { tenant: DEFAULT_TENANT.into(), key_id: None, limits }
    }
}

impl EngineConfig {
    /// Refuses an image that the operator did not allow.
    fn check_image(&self, image: &str) -> Result<(), EngineError> {
        let own = &self.defaults.image;
        let is_allowed = |image: &str| {
            tagged(image) == tagged(own) || self.images.iter().any(|pattern| fits(pattern, image))
        };
        // `name` and `name:latest` are one image.
        if is_allowed(image) || is_allowed(&tagged(image)) {
            return Ok(());
        }
        let others = match self.images[..] {
            [] => String::new(),
            _ => format!(", and allows {}", self.images.join(", ")),
        };
        Err(EngineError::Invalid(format!(
            "image `{image}` is not allowed here; this server has `{own}`{others}. Its operator can allow \
             others with BELLJAR_IMAGES (names, or * for all), or make it the default with SANDBOX_IMAGE"
        )))
    }
}

/// The name of an image with its tag, which is `latest` where none is written.
fn tagged(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

/// Whether a name fits a pattern, in which `*` stands for any part of it.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    // Whatever the star takes, the rest must fit what remains.
    (0..=name.len()).any(|at| name.is_char_boundary(at) && fits(rest, &name[at..]))
}

impl Principal {
    fn quota(&self) -> Quota {
        let KeyLimits { sessions, sleeping, memory, pids, .. } = self.limits;
        // Unless told otherwise, no more sleep than may be awake.
        Quota { sessions, sleeping: sleeping.or(sessions), memory, pids }
    }
}

impl Engine {
    /// Starts with what an earlier server left: its sessions appear at once, in phase `creating`,
    /// and are ready when their sandboxes have been found.
    pub async fn start(
        config: EngineConfig,
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        audit: Audit,
    ) -> Result<Arc<Engine>, EngineError> {
        let shared = Arc::new(EngineState::new(config, store, runtime, audit.clone())?);
        let left = shared.store.unended_sessions().await?;
        let traces = Left {
            sandboxes: left
                .iter()
                // What one has that sleeps is not it.
                .filter(|row| !row.phase.is_asleep())
                .filter_map(|row| Some(row.handle.as_ref()?.name.clone()))
                .collect(),
            directories: shared.unclaimed_directories(),
            found_ms: crate::clock::now_ms(),
        };
        shared.give_up_pending_datasets().await;
        shared.recover_volumes().await;
        shared.tidy_session_mounts().await;
        let alive: Vec<(String, String)> =
            left.iter().map(|row| (row.id.clone(), row.tenant.clone())).collect();
        if let Err(error) = shared.snapshot_store.tidy(&alive) {
            tracing::warn!("failed to tidy up the snapshots of sessions: {error}");
        }
        let adopted = shared.take_over(left);
        if shared.config.pool > 0 {
            let next = sandboxes::next_warm(&shared);
            let pool = Pool::start(Arc::clone(&shared.runtime), shared.config.pool, next);
            let _ = shared.pool.set(pool);
        }
        let chores = [
            tokio::spawn(usage::keep_books(Arc::clone(&shared))),
            tokio::spawn(upkeep::keep_up(Arc::clone(&shared))),
        ];
        let engine =
            Arc::new(Engine { shared, audit, recovered: watch::Sender::new(false), chores });
        let recovering = Arc::clone(&engine);
        tokio::spawn(async move { recovering.recover(traces, adopted).await });
        Ok(engine)
    }

    /// Ends the server's work: sessions are stopped, or left to the next server.
    pub async fn close(&self, stop_sessions: bool) {
        self.shared.shut();
        self.chores.iter().for_each(tokio::task::JoinHandle::abort);
        self.shared.runtime.close().await;
        if let Some(pool) = self.shared.pool.get() {
            for id in pool.drain().await {
                let _ = Record::of(&self.shared.config.sessions_root, &id).remove();
            }
        }
        let sessions = self.shared.live();
        if stop_sessions {
            for session in &sessions {
                session.stop("the server was stopped");
            }
        } else {
            self.shared.leaving.send_replace(true);
        }
        drop(sessions);
        self.shared.empty().await;
        if let Err(error) = self.shared.usage.flush(&*self.shared.store).await {
            tracing::error!("failed to write down usage: {}", in_full(&error));
        }
        self.shared.artifact_store.close().await;
        self.shared.store.close().await;
    }

    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.shared.store
    }

    #[must_use]
    pub fn artifact_store(&self) -> &ArtifactStore {
        &self.shared.artifact_store
    }

    #[must_use]
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.shared.runtime
    }

    #[must_use]
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Everything there is to know, for Prometheus.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        let mut now = Snapshot::default();
        for session in self.shared.live() {
            let view = session.view();
            if let Some(index) = Phase::ALL.iter().position(|phase| *phase == view.phase) {
                now.sessions[index] += 1;
            }
            now.queued += i64::try_from(view.queued).unwrap_or(i64::MAX);
        }
        if let Some(pool) = self.shared.pool.get() {
            now.pool_ready = i64::try_from(pool.ready()).unwrap_or(i64::MAX);
            (now.pool_hits, now.pool_misses) = pool.hits_and_misses();
        }
        (now.load, now.total) = (self.shared.admission.load(), self.shared.admission.total());
        self.shared.metrics.render(now)
    }

    #[must_use]
    pub fn live_sessions(&self) -> usize {
        self.shared.count()
    }

    /// Whether any session or run is alive.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.shared.admission.load().sessions > 0
    }

    /// Writes down what has come together since the last time.
    pub async fn flush_usage(&self) -> Result<(), EngineError> {
        Ok(self.shared.usage.flush(&*self.shared.store).await?)
    }

    /// The first of the server's directories whose disk has no room, if any.
    #[must_use]
    pub fn full_disk(&self) -> Option<&Path> {
        let config = &self.shared.config;
        let state = config.artifact_store.key_file.parent();
        let database = config.artifact_store.database.parent();
        let others = [
            config.sessions_root.as_path(),
            &config.artifact_store.blobs_dir,
            &config.dataset_cache,
            &config.snapshots.directory,
        ];
        let full = |directory: &&Path| {
            // One that is not there yet is made when it is needed.
            let room = belljar_sys::mount::room(directory);
            room.is_ok_and(|room| room.free < LEAST_ROOM)
        };
        state.into_iter().chain(database).chain(others).find(full)
    }

    /// A live session of this tenant.
    pub fn session(&self, who: &Principal, id: &str) -> Result<Arc<Session>, EngineError> {
        self.shared
            .find(id)
            .filter(|session| session.tenant == who.tenant)
            .ok_or_else(|| EngineError::NoSession(id.to_owned()))
    }

    /// What went out of a live session.
    pub async fn traffic(&self, who: &Principal, id: &str) -> Result<Arc<Traffic>, EngineError> {
        Ok(Arc::clone(&self.live_session(who, id).await?.traffic))
    }

    /// A live session; one that has ended is refused with the reason.
    async fn live_session(&self, who: &Principal, id: &str) -> Result<Arc<Session>, EngineError> {
        match self.session(who, id) {
            Ok(session) => Ok(session),
            Err(_) => {
                let row = self.row(who, id).await?;
                Err(EngineError::not_now(id, rules::Refusal::Ended, row.ended_because))
            }
        }
    }

    async fn row(&self, who: &Principal, id: &str) -> Result<SessionRow, EngineError> {
        let row = self.shared.store.session(id).await?;
        row.filter(|row| row.tenant == who.tenant)
            .ok_or_else(|| EngineError::NoSession(id.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_any_part_of_a_name() {
        for (pattern, name) in
            [("a", "a"), ("*", "a/b:c"), ("team/*", "team/x"), ("*/py:3.*", "x/py:3.12"), ("*", "")]
        {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "ab"), ("team/*", "other/x"), ("*:1", "x:2"), ("", "a")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
