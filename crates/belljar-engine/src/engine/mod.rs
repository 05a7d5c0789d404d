//! The engine: the sessions of this server, and one method for each operation on them.
//!
//! ```text
//!   API, command line
//!         │ on behalf of a Principal
//!         ▼
//!      Engine ──────▶ EngineState: store, runtime, pool, admission, metrics, usage, artifacts, snapshots
//!         │              ▲ also used by drivers and the pool
//!         ▼              │
//!      Registry ──▶ Session: the handle of a live session
//!                     │ commands   ▲ view, live executions, leases of the sandbox
//!                     ▼            │
//!                   driver ────────┘
//! ```
//!
//! The engine owns no session: it finds the handle in the registry and sends it a request. A session without a handle
//! has only a row in the store, and requests about it are answered from there.
//!
//! [`claim`] finds sessions in a cluster, and [`node`] moves or drops all sessions of a node.
//! [`create`] creates or finds sessions, [`life`] starts, extends and stops them, [`forget`] removes them, [`execs`]
//! executes in them. [`artifacts`] has their artifacts, [`datasets`], [`files`] and [`archives`] their data,
//! [`terminals`] their terminals, [`volumes`] the files that outlive them. [`runs`] executes without a session.
//! [`views`] describes sessions and executions. [`recovery`] takes over what an earlier server left, [`upkeep`] removes
//! old data.

mod archives;
mod artifacts;
mod claim;
#[cfg(test)]
mod cluster_tests;
mod create;
mod datasets;
mod execs;
mod files;
mod forget;
mod life;
mod node;
mod recovery;
mod registry;
mod runs;
mod snapshots;
mod sweep;
mod terminals;
mod upkeep;
mod views;
mod volumes;

use std::path::Path;
use std::sync::Arc;

use belljar_runtime::Runtime;
use tokio::sync::watch;

pub use archives::{ArchiveDownload, ArchiveUpload};
pub use create::{Created, CreatedHow};
pub use datasets::Upload;
pub use execs::{Accepted, Beyond};
pub use files::{FileUpload, Watching};
pub use node::Drained;
pub use runs::{CheckedRun, RunAsk};
pub use snapshots::{Checkpoint, MAX_FORKS};
pub use terminals::{AttachedTerminal, TerminalAsk, TerminalControl, TerminalUpdate};
pub use views::{ExecInfo, SessionInfo};

use crate::artifacts::ArtifactStore;
use crate::audit::Audit;
use crate::config::EngineConfig;
use crate::error::{EngineError, in_full};
use crate::metrics::CurrentValues;
use crate::network::Traffic;
use crate::pool::Pool;
use crate::principal::Principal;
use crate::rules::Phase;
use crate::session::Session;
use crate::session_directory::SessionDirectory;
use crate::shared_secrets;
use crate::state::{self, EngineState};
use crate::store::{NodeLoad, Store};
use registry::Registry;

/// A disk with fewer free bytes than this counts as full: there is room for little more than a page of the database.
const LEAST_ROOM: u64 = 256 * 1024;

/// The sessions of this server.
#[derive(Debug)]
pub struct Engine {
    pub(crate) state: Arc<EngineState>,
    registry: Arc<Registry>,
    audit: Audit,
    /// Becomes true when everything that an earlier server left has been taken over or cleaned up.
    recovered: watch::Sender<bool>,
    /// Tasks that count usage and remove old data until the engine is closed.
    chores: [tokio::task::JoinHandle<()>; 3],
}

impl Engine {
    /// Starts the engine and takes over the sessions of an earlier server. They are listed at once, in phase
    /// `creating`, and become ready when their sandboxes are found.
    pub async fn start(
        mut config: EngineConfig,
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        audit: Audit,
    ) -> Result<Arc<Engine>, EngineError> {
        let secret = link_secret(&config, &*store).await?;
        if let Some(cluster) = store.cluster()
            && config.artifact_store.objects.is_some()
        {
            let database = &config.artifact_store.database;
            let id = shared_secrets::catalog_id(cluster, database).await?;
            config.artifact_store.catalog_id = Some(id);
        }
        let state = EngineState::new(config, store, runtime, audit.clone(), secret)?;
        let state = Arc::new(state);
        let registry = Arc::new(Registry::new(Arc::clone(&state)));
        let rows = state.store.unended_sessions().await?;
        let left = state.find_left(&rows).await;
        state.give_up_pending_datasets().await;
        state.recover_volumes().await;
        state.tidy_session_mounts().await;
        let alive = rows.iter().map(|row| (row.id.clone(), row.tenant.clone())).collect();
        if let Err(error) = state.snapshot_store.tidy(alive).await {
            tracing::warn!("failed to tidy up the snapshots of sessions: {error}");
        }
        let adopted = registry.take_over(rows);
        if state.config.pool > 0 {
            let next = state::next_warm(&state);
            let pool = Pool::start(Arc::clone(&state.runtime), state.config.pool, next);
            let _ = state.pool.set(pool);
        }
        let chores = [
            tokio::spawn(upkeep::count_usage(Arc::clone(&registry))),
            tokio::spawn(upkeep::remove_old(Arc::clone(&registry))),
            tokio::spawn(upkeep::fetch_shared_layers(Arc::clone(&registry))),
        ];
        let recovered = watch::Sender::new(false);
        let engine = Arc::new(Engine { state, registry, audit, recovered, chores });
        let recovering = Arc::clone(&engine);
        tokio::spawn(async move { recovering.recover(left, adopted).await });
        Ok(engine)
    }

    /// Ends the engine: sessions are stopped, or left to the next server.
    pub async fn close(&self, stop_sessions: bool) {
        self.state.availability.close();
        self.chores.iter().for_each(tokio::task::JoinHandle::abort);
        self.state.runtime.close().await;
        self.empty_pool().await;
        if stop_sessions {
            for session in self.registry.live() {
                session.stop("the server was stopped");
            }
        } else {
            self.state.leaving.send_replace(true);
        }
        self.registry.empty().await;
        if let Err(error) = self.state.usage.flush(&*self.state.store).await {
            tracing::error!("failed to store usage: {}", in_full(&error));
        }
        self.state.artifact_store.close().await;
        self.state.store.close().await;
    }

    async fn empty_pool(&self) {
        let Some(pool) = self.state.pool.get() else { return };
        let ids = pool.drain().await;
        let root = self.state.config.sessions_root.clone();
        let removing = tokio::task::spawn_blocking(move || {
            for id in ids {
                let _ = SessionDirectory::of(&root, &id).remove();
            }
        });
        let _ = removing.await;
    }

    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.state.store
    }

    #[must_use]
    pub fn artifact_store(&self) -> &ArtifactStore {
        &self.state.artifact_store
    }

    #[must_use]
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.state.runtime
    }

    #[must_use]
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// All metrics, in the format of Prometheus.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        let mut now = CurrentValues::default();
        for session in self.registry.live() {
            let view = session.view();
            if let Some(index) = Phase::ALL.iter().position(|phase| *phase == view.phase) {
                now.sessions[index] += 1;
            }
            now.queued += i64::try_from(view.queued).unwrap_or(i64::MAX);
        }
        if let Some(pool) = self.state.pool.get() {
            now.pool_ready = i64::try_from(pool.ready()).unwrap_or(i64::MAX);
            (now.pool_hits, now.pool_misses) = pool.hits_and_misses();
        }
        (now.load, now.total) = (self.state.admission.load(), self.state.admission.total());
        self.state.metrics.render(now)
    }

    #[must_use]
    pub fn live_sessions(&self) -> usize {
        self.registry.count()
    }

    /// What sandboxes have reserved.
    #[must_use]
    pub fn node_load(&self) -> NodeLoad {
        let load = self.state.admission.load();
        NodeLoad { sessions: load.sessions, memory: load.memory }
    }

    /// Whether any session or run is alive.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.state.admission.load().sessions > 0
    }

    /// Stores the usage that was counted since the last flush.
    pub async fn flush_usage(&self) -> Result<(), EngineError> {
        Ok(self.state.usage.flush(&*self.state.store).await?)
    }

    /// The first of the server's directories whose disk has no room, if any.
    #[must_use]
    pub fn full_disk(&self) -> Option<&Path> {
        let config = &self.state.config;
        let state = config.artifact_store.key_file.parent();
        let database = config.artifact_store.database.parent();
        let others = [
            config.sessions_root.as_path(),
            &config.artifact_store.blobs_dir,
            &config.dataset_cache,
            &config.snapshots.directory,
        ];
        let full = |directory: &&Path| {
            // A missing directory is created when it is needed.
            let room = belljar_sys::mount::room(directory);
            room.is_ok_and(|room| room.free < LEAST_ROOM)
        };
        state.into_iter().chain(database).chain(others).find(full)
    }

    /// A live session of this tenant.
    pub fn session(&self, who: &Principal, id: &str) -> Result<Arc<Session>, EngineError> {
        self.registry
            .find(id)
            .filter(|session| session.tenant == who.tenant)
            .ok_or_else(|| EngineError::NoSession(id.to_owned()))
    }

    /// The network traffic of a live session.
    pub async fn traffic(&self, who: &Principal, id: &str) -> Result<Arc<Traffic>, EngineError> {
        Ok(Arc::clone(&self.live_session(who, id).await?.traffic))
    }
}

/// The secret with which all nodes of a cluster sign links; `None` on a single server, which has its own.
async fn link_secret(
    config: &EngineConfig,
    store: &dyn Store,
) -> Result<Option<Vec<u8>>, EngineError> {
    let Some(cluster) = store.cluster().filter(|_| config.node.is_some()) else { return Ok(None) };
    shared_secrets::link_key(cluster, &config.artifact_store.key_file).await.map(Some)
}
