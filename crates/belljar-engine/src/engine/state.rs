//! What everything that lives here shares: the engine, the drivers, the pool and the books.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use belljar_runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::datasets::FETCHES;
use super::views::view_of;
use super::{EngineConfig, Principal};
use crate::admission::{Admission, Quota, Reservation};
use crate::artifacts::ArtifactStore;
use crate::audit::{Audit, Entry};
use crate::datasets::Cache;
use crate::error::EngineError;
use crate::lock;
use crate::metrics::{ByHow, Metrics, Name};
use crate::network::{Listener, Traffic, Visit};
use crate::pool::Pool;
use crate::session::rules::Phase;
use crate::session::{Inbox, Origin, Session, View, drive};
use crate::shares::Shares;
use crate::snapshots::{SnapshotConfig, SnapshotStore};
use crate::spec::{SessionSpec, Storage};
use crate::store::{Durability, SessionRow, Store};
use crate::uploads::Uploads;
use crate::usage::Usage;
use crate::volumes::Volumes;

/// Sandboxes of one tenant that are being made at the same time; more would only slow each other
/// down.
const MAKING_OF_TENANT: usize = 16;

/// Sandboxes of all tenants that are being made at the same time: several times what one may have,
/// so that one whose sandboxes are slow to make keeps no place from others.
const MAKING_AT_ONCE: usize = 64;

#[derive(Debug)]
pub(crate) struct EngineState {
    pub(crate) config: EngineConfig,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) artifact_store: ArtifactStore,
    /// Sessions as files.
    pub(crate) snapshot_store: SnapshotStore,
    /// Warm sandboxes, if any are kept; begun when all this is there.
    pub(super) pool: OnceLock<Pool>,
    /// Content of datasets that was transferred once.
    pub(super) datasets: Cache,
    /// A permit of it is held while a source is asked.
    pub(super) fetching: Semaphore,
    pub(super) volumes: Volumes,
    pub(crate) metrics: Metrics,
    audit: Audit,
    pub(crate) usage: Usage,
    /// Becomes true when the server ends and its sessions do not.
    pub(crate) leaving: watch::Sender<bool>,
    pub(crate) admission: Admission,
    /// Locked for single look-ups and changes, never across an await.
    registry: Mutex<Registry>,
    making: Making,
    pub(super) uploads: Uploads,
}

/// Who may make sandboxes just now.
#[derive(Debug)]
struct Making {
    tenants: Shares,
    all: Arc<Semaphore>,
}

/// Held while the sandbox of a session or a run is being made.
#[derive(Debug)]
pub(super) struct MakingPermit {
    _tenant: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, Default)]
struct Registry {
    /// Live ones by id; entered by [`EngineState::register`], taken out by their drivers.
    sessions: HashMap<String, Arc<Session>>,
    /// Their ids by tenant and key.
    by_key: HashMap<(String, String), String>,
    /// Held while a session with this key is being looked for or made.
    key_locks: HashMap<(String, String), Arc<tokio::sync::Mutex<()>>>,
    /// The server ends: nothing is let in any more.
    closed: bool,
}

impl EngineState {
    pub(super) fn new(
        config: EngineConfig,
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        audit: Audit,
    ) -> Result<EngineState, EngineError> {
        let metrics = Metrics::default();
        let datasets = Cache::open(&config.dataset_cache, config.dataset_cache_bytes);
        let unusable = |cause| EngineError::Directory { path: config.dataset_cache.clone(), cause };
        let volumes = Volumes::new(config.volumes.clone(), store.owner());
        // Others may keep theirs in the same place, and each removes what it does not know.
        let directory = config.snapshots.directory.join(store.owner());
        let snapshot_store = SnapshotStore::open(SnapshotConfig {
            directory: directory.clone(),
            ..config.snapshots.clone()
        });
        Ok(EngineState {
            admission: Admission::new(
                config.total,
                Quota { sleeping: config.snapshots.tenant_sleeping, ..Quota::default() },
            ),
            store,
            runtime,
            artifact_store: ArtifactStore::open(
                config.artifact_store.clone(),
                metrics.artifacts.clone(),
            )?,
            snapshot_store: snapshot_store
                .map_err(|cause| EngineError::Directory { path: directory, cause })?,
            pool: OnceLock::new(),
            datasets: datasets.map_err(unusable)?,
            fetching: Semaphore::new(FETCHES),
            volumes,
            metrics,
            audit,
            usage: Usage::default(),
            leaving: watch::Sender::new(false),
            registry: Mutex::default(),
            making: Making {
                tenants: Shares::new(MAKING_OF_TENANT),
                all: Arc::new(Semaphore::new(MAKING_AT_ONCE)),
            },
            uploads: Uploads::default(),
            config,
        })
    }

    /// Waits until another sandbox of this tenant may be made.
    pub(super) async fn may_make(&self, tenant: &str) -> MakingPermit {
        // The tenant's own first: whoever waits for it holds none of those that all share. Neither
        // semaphore is ever closed.
        let own = self.making.tenants.of(tenant).acquire_owned().await.ok();
        let all = Arc::clone(&self.making.all).acquire_owned().await.ok();
        MakingPermit { _tenant: own, _all: all }
    }

    /// Makes a session known and starts its driver.
    pub(super) fn enter(
        self: &Arc<Self>,
        row: SessionRow,
        reservation: Reservation,
        origin: Origin,
    ) -> Result<Arc<Session>, EngineError> {
        if lock(&self.registry).closed {
            return Err(EngineError::Stopping);
        }
        let (session, inbox) = self.register(row);
        let (shared, driven) = (Arc::clone(self), Arc::clone(&session));
        let driving = drive(Arc::clone(&shared), driven, inbox, Some(reservation), origin, None);
        tokio::spawn(shared.watch_over(Arc::clone(&session), driving));
        Ok(session)
    }

    /// A driver that panics must not leave a session behind that nobody can stop.
    pub(super) async fn watch_over(
        self: Arc<Self>,
        session: Arc<Session>,
        driving: impl Future<Output = ()> + Send + 'static,
    ) {
        if tokio::spawn(driving).await.is_err() {
            tracing::error!(session.id = session.id, "the driver of a session failed; it is ended");
            session.mourn(&self).await;
            self.forget(&session);
        }
    }

    /// The traffic of a session or a run, noted as that.
    pub(super) fn traffic(
        &self,
        tenant: &str,
        session: Option<&str>,
        run: Option<&str>,
    ) -> Arc<Traffic> {
        let (audit, visits, bytes) =
            (self.audit.clone(), self.metrics.visits.clone(), self.metrics.network_bytes.clone());
        let who = Principal { tenant: tenant.to_owned(), ..Principal::default() };
        let (session, run) = (session.map(str::to_owned), run.map(str::to_owned));
        let note: Listener = Box::new(move |visit: &Visit, noted| {
            visits.get_or_create(&ByHow { how: Name(visit.outcome.name()) }).inc();
            bytes.inc_by(visit.sent + visit.received);
            if !noted {
                return;
            }
            let detail = format!("{} {}:{}", visit.method, visit.host, visit.port);
            let outcome = match &visit.reason {
                Some(reason) => format!("{}: {reason}", visit.outcome.name()),
                None => format!(
                    "{}: {} bytes sent, {} received",
                    visit.outcome.name(),
                    visit.sent,
                    visit.received
                ),
            };
            let entry = Entry {
                action: "network",
                outcome: &outcome,
                session: session.as_deref(),
                exec: run.as_deref(),
                detail: Some(&detail),
                ..Entry::default()
            };
            audit.note(&who, &entry);
        });
        self.config.network.traffic(Some(note))
    }

    pub(super) fn note(&self, who: &Principal, entry: &Entry<'_>) {
        self.audit.note(who, entry);
    }

    /// Makes a session known; it needs a driver.
    pub(super) fn register(&self, row: SessionRow) -> (Arc<Session>, Inbox) {
        let view = View { phase: Phase::Creating, ..view_of(&row) };
        let traffic = self.traffic(&row.tenant, Some(&row.id), None);
        let (session, inbox) = Session::new(row, view, traffic, &self.config.sessions_root);
        let mut registry = lock(&self.registry);
        registry.sessions.insert(session.id.clone(), Arc::clone(&session));
        if let Some(key) = &session.key {
            let full_key = (session.tenant.clone(), key.clone());
            registry.by_key.insert(full_key, session.id.clone());
        }
        (session, inbox)
    }

    /// Room for one more sandbox of this kind, if the server and the tenant have it.
    pub(super) fn reserve(
        &self,
        who: &Principal,
        spec: &SessionSpec,
    ) -> Result<Reservation, EngineError> {
        if lock(&self.registry).closed {
            return Err(EngineError::Stopping);
        }
        Ok(self.admission.reserve(&who.tenant, who.quota(), &spec.limits)?)
    }

    /// What to hold while a session with this key is looked for or made.
    pub(super) fn lock_key(&self, key: &(String, String)) -> Arc<tokio::sync::Mutex<()>> {
        let mut registry = lock(&self.registry);
        // Locks nobody holds are of no use any more.
        registry.key_locks.retain(|known, guard| known == key || Arc::strong_count(guard) > 1);
        Arc::clone(registry.key_locks.entry(key.clone()).or_default())
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Session>> {
        lock(&self.registry).sessions.get(id).cloned()
    }

    pub(super) fn find_by_key(&self, key: &(String, String)) -> Option<Arc<Session>> {
        let registry = lock(&self.registry);
        registry.sessions.get(registry.by_key.get(key)?).cloned()
    }

    pub(crate) fn live(&self) -> Vec<Arc<Session>> {
        lock(&self.registry).sessions.values().cloned().collect()
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.registry).sessions.len()
    }

    /// The session has ended, or was left: it is the database's now.
    pub(crate) fn forget(&self, session: &Arc<Session>) {
        let mut registry = lock(&self.registry);
        let is_it = |known: &Arc<Session>| Arc::ptr_eq(known, session);
        if registry.sessions.get(&session.id).is_some_and(is_it) {
            registry.sessions.remove(&session.id);
        }
        if let Some(key) = &session.key {
            let full_key = (session.tenant.clone(), key.clone());
            if registry.by_key.get(&full_key) == Some(&session.id) {
                registry.by_key.remove(&full_key);
            }
        }
    }

    /// Lets nothing in any more.
    pub(super) fn shut(&self) {
        lock(&self.registry).closed = true;
    }

    /// Waits until no session is alive here.
    pub(super) async fn empty(&self) {
        const LOOK: Duration = Duration::from_millis(5);
        const PATIENCE: Duration = Duration::from_secs(30);
        let begun = Instant::now();
        while !lock(&self.registry).sessions.is_empty() {
            if begun.elapsed() > PATIENCE {
                tracing::error!("some sessions did not end in time; the next start cleans up");
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// How safe the row of such a session must be before anybody hears of it.
pub(crate) fn durability(spec: &SessionSpec) -> Durability {
    // A power cut takes what is in memory with it; files on disk stay and must be found again.
    match spec.storage {
        Storage::Bind => Durability::Power,
        Storage::Tmpfs => Durability::Process,
    }
}
