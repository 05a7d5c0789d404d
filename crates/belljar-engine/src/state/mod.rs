//! State shared by the engine, the drivers of sessions and the pool. It has no sessions: those are in the engine's
//! registry.

mod availability;
mod sandbox_specs;

use std::sync::{Arc, OnceLock};

use belljar_runtime::{Limits, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use availability::Availability;
pub(crate) use sandbox_specs::next_warm;

use crate::admission::{Admission, Full, Quota, Reservation};
use crate::artifacts::ArtifactStore;
use crate::audit::{Audit, AuditEntry};
use crate::config::{EngineConfig, NodeConfig};
use crate::datasets::Cache;
use crate::error::EngineError;
use crate::metrics::{ByHow, Metrics, Name};
use crate::network::{Traffic, Visit, VisitListener};
use crate::pool::Pool;
use crate::principal::Principal;
use crate::shares::Shares;
use crate::snapshots::{SnapshotConfig, SnapshotStore};
use crate::spec::{SessionSpec, Storage};
use crate::store::{ClusterRecords, Durability, Store};
use crate::uploads::Uploads;
use crate::usage::Usage;
use crate::volumes::Volumes;

/// How many sandboxes of one tenant may be created at the same time; more would only slow each other down.
const CREATING_OF_TENANT: usize = 16;

/// How many sandboxes of all tenants may be created at the same time: several times the limit of one tenant, so that a
/// tenant with a slow image does not block the others.
const CREATING_AT_ONCE: usize = 64;

/// How many sessions are written to files at the same time while the node is drained.
const DRAINED_AT_ONCE: usize = 8;

/// How many datasets are fetched from their sources at the same time.
const FETCHING_AT_ONCE: usize = 8;

#[derive(Debug)]
pub(crate) struct EngineState {
    pub(crate) config: EngineConfig,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) artifact_store: ArtifactStore,
    pub(crate) snapshot_store: SnapshotStore,
    /// The pool of warm sandboxes, if any are kept. Set once after creation, because the task that fills the pool
    /// refers to this state.
    pub(crate) pool: OnceLock<Pool>,
    /// The cache of dataset content.
    pub(crate) datasets: Cache,
    /// A permit is held while a dataset is fetched from its source.
    pub(crate) fetching: Semaphore,
    pub(crate) volumes: Volumes,
    pub(crate) metrics: Metrics,
    audit: Audit,
    pub(crate) usage: Usage,
    /// Becomes true when the server ends and leaves its sessions to the next one.
    pub(crate) leaving: watch::Sender<bool>,
    pub(crate) admission: Admission,
    pub(crate) availability: Availability,
    /// A permit is held while a session is hibernated for a drain.
    pub(crate) draining: Semaphore,
    creating: CreationLimits,
    pub(crate) uploads: Uploads,
}

/// Limits how many sandboxes are created at the same time.
#[derive(Debug)]
struct CreationLimits {
    tenants: Shares,
    all: Arc<Semaphore>,
}

/// Held while the sandbox of a session or a run is being created.
#[derive(Debug)]
pub(crate) struct CreationPermit {
    _tenant: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

impl EngineState {
    pub(crate) fn new(
        config: EngineConfig,
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        audit: Audit,
        link_secret: Option<Vec<u8>>,
    ) -> Result<EngineState, EngineError> {
        let metrics = Metrics::default();
        let datasets = Cache::open(&config.dataset_cache, config.dataset_cache_bytes);
        let unusable = |cause| EngineError::Directory { path: config.dataset_cache.clone(), cause };
        let volumes = Volumes::new(config.volumes.clone(), store.owner());
        let sleeping = Quota { sleeping: config.snapshots.tenant_sleeping, ..Quota::default() };
        let artifacts = config.artifact_store.clone();
        let mut artifact_store = ArtifactStore::open(artifacts, metrics.artifacts.clone())?;
        if let Some(secret) = link_secret {
            artifact_store.sign_links_with(&secret);
        }
        Ok(EngineState {
            admission: Admission::new(config.total, sleeping),
            snapshot_store: open_snapshots(&config, store.owner())?,
            store,
            runtime,
            artifact_store,
            pool: OnceLock::new(),
            datasets: datasets.map_err(unusable)?,
            fetching: Semaphore::new(FETCHING_AT_ONCE),
            volumes,
            metrics,
            audit,
            usage: Usage::default(),
            leaving: watch::Sender::new(false),
            availability: Availability::new(),
            draining: Semaphore::new(DRAINED_AT_ONCE),
            creating: CreationLimits {
                tenants: Shares::new(CREATING_OF_TENANT),
                all: Arc::new(Semaphore::new(CREATING_AT_ONCE)),
            },
            uploads: Uploads::default(),
            config,
        })
    }

    /// Waits until another sandbox of this tenant may be created.
    pub(crate) async fn creation_permit(&self, tenant: &str) -> CreationPermit {
        // The tenant's own permit is taken first: a tenant that waits for it holds none of the shared ones. Neither
        // semaphore is ever closed.
        let own = self.creating.tenants.of(tenant).acquire_owned().await.ok();
        let all = Arc::clone(&self.creating.all).acquire_owned().await.ok();
        CreationPermit { _tenant: own, _all: all }
    }

    /// Reserves capacity for one more sandbox with these limits, if the server and the tenant have it.
    pub(crate) async fn reserve(
        &self,
        who: &Principal,
        spec: &SessionSpec,
    ) -> Result<Reservation, EngineError> {
        self.availability.must_be_open()?;
        self.reserve_sandbox(&who.tenant, who.quota(), &spec.limits).await
    }

    /// The same for a session that this server has. In a cluster, the tenant's limits hold over all nodes.
    pub(crate) async fn reserve_sandbox(
        &self,
        tenant: &str,
        quota: Quota,
        limits: &Limits,
    ) -> Result<Reservation, EngineError> {
        let reservation = self.admission.reserve(tenant, quota, limits)?;
        match self.cluster() {
            Some(_) => reservation.over_all_nodes(&self.store, quota).await,
            None => Ok(reservation),
        }
    }

    /// Reserves capacity for a hibernated session, see [`Admission::reserve_sleep`]. In a cluster, sleeping sessions of
    /// all nodes count. Sessions that hibernate on several nodes at the same moment can exceed the limit.
    pub(crate) async fn reserve_sleep(
        &self,
        tenant: &str,
        asked: Option<Quota>,
    ) -> Result<Reservation, EngineError> {
        let reservation = self.admission.reserve_sleep(tenant, asked)?;
        let limit = self.admission.sleep_limit(tenant).filter(|limit| *limit < u64::MAX);
        if let (Some(limit), Some((cluster, _))) = (limit, self.cluster()) {
            let used = cluster.sleeping_sessions(tenant, limit).await?;
            if used >= limit {
                let what = "sleeping sessions on all nodes";
                return Err(Full { whose: "this tenant's", what, limit, used }.into());
            }
        }
        Ok(reservation)
    }

    /// The records that the nodes of a cluster share; `None` on a single server.
    pub(crate) fn cluster(&self) -> Option<(&dyn ClusterRecords, &NodeConfig)> {
        Some((self.store.cluster()?, self.config.node.as_ref()?))
    }

    pub(crate) fn note(&self, who: &Principal, entry: &AuditEntry<'_>) {
        self.audit.note(who, entry);
    }

    /// Counts the network traffic of a session or a run, and notes it in the audit log.
    pub(crate) fn traffic(
        &self,
        tenant: &str,
        session: Option<&str>,
        run: Option<&str>,
    ) -> Arc<Traffic> {
        let (audit, visits, bytes) =
            (self.audit.clone(), self.metrics.visits.clone(), self.metrics.network_bytes.clone());
        let who = Principal { tenant: tenant.to_owned(), ..Principal::default() };
        let (session, run) = (session.map(str::to_owned), run.map(str::to_owned));
        let note: VisitListener = Box::new(move |visit: &Visit, noted| {
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
            let entry = AuditEntry {
                action: "network",
                outcome: &outcome,
                session: session.as_deref(),
                exec: run.as_deref(),
                detail: Some(&detail),
                ..AuditEntry::default()
            };
            audit.note(&who, &entry);
        });
        self.config.network.traffic(Some(note))
    }
}

fn open_snapshots(config: &EngineConfig, owner: &str) -> Result<SnapshotStore, EngineError> {
    // Another server may use the same directory, and each server removes sessions that it does not know.
    let directory = config.snapshots.directory.join(owner);
    let own = SnapshotConfig { directory: directory.clone(), ..config.snapshots.clone() };
    SnapshotStore::open(own).map_err(|cause| EngineError::Directory { path: directory, cause })
}

/// How durable the row of a session must be before a client gets its id.
pub(crate) fn durability(spec: &SessionSpec) -> Durability {
    // A power cut destroys what is in memory. Files on disk survive, so their session must be found again.
    match spec.storage {
        Storage::Bind => Durability::Power,
        Storage::Tmpfs => Durability::Process,
    }
}
