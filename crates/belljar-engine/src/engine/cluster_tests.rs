//! Two engines with one Postgres database. Nothing here needs a sandbox: sessions are claimed, refused, dropped and
//! released while they sleep.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belljar_proto::exec::{Language, Status};
use belljar_runtime::{
    Handle, Limits, Runtime, RuntimeError, Sandbox, SandboxSpec, VolumeKind, ZygoteState,
};
use belljar_testkit::postgres::Postgres;
use belljar_testkit::s3::{KEY_ID, S3Server, SECRET};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::create::new_row;
use super::{CreatedHow, Engine};
use crate::admission::Quota;
use crate::artifacts::{ArtifactQuota, ArtifactQuotas, ArtifactStoreConfig};
use crate::audit::Audit;
use crate::config::{EngineConfig, NodeConfig};
use crate::error::EngineError;
use crate::exec::ExecRequest;
use crate::objects::{Objects, ObjectsConfig};
use crate::principal::Principal;
use crate::rules::Phase;
use crate::session::HeldSession;
use crate::session_directory::DiskConfig;
use crate::snapshots::{RemoteSnapshotConfig, SnapshotConfig};
use crate::spec::{Datasets, SessionAsk, SessionSpec, Storage};
use crate::store::{
    DatabaseUrl, Durability, ExecRecords, ExecRow, NewNode, NodeLoad, PostgresStore,
    SessionRecords, SessionRow, Store, VolumeQuota,
};
use crate::volumes::VolumesConfig;

/// Longer than a hibernated session stays with its node.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes no sandboxes.
#[derive(Debug)]
struct NoSandboxes;

#[async_trait]
impl Runtime for NoSandboxes {
    fn backend(&self) -> String {
        "none".to_owned()
    }

    async fn create(self: Arc<Self>, _: &SandboxSpec) -> Result<Sandbox, RuntimeError> {
        Err(RuntimeError::Gone)
    }

    async fn adopt(self: Arc<Self>, _: Handle, _: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        Err(RuntimeError::Gone)
    }

    async fn discard(self: Arc<Self>, _: &Handle) {}

    async fn reap(self: Arc<Self>, _: HashSet<String>) {}

    fn zygote_state(&self) -> Option<ZygoteState> {
        None
    }

    async fn warmed_up(&self) {}

    async fn freeze_all(self: Arc<Self>, _: bool) -> Result<(), RuntimeError> {
        Ok(())
    }
}

struct Cluster {
    postgres: &'static Postgres,
    database: String,
    directory: TempDir,
}

/// An engine and its store.
struct TestNode {
    engine: Arc<Engine>,
    store: Arc<PostgresStore>,
}

impl Cluster {
    fn new() -> Cluster {
        let postgres = Postgres::shared();
        let directory = tempfile::tempdir().unwrap();
        Cluster { postgres, database: postgres.database(), directory }
    }

    async fn node(&self, id: &str) -> TestNode {
        // Nothing fetches or sends a snapshot.
        let objects = ObjectsConfig {
            url: "s3://bucket/test".to_owned(),
            endpoint: Some("http://127.0.0.1:9".to_owned()),
            region: None,
            key: Some(("id".to_owned(), "secret".to_owned())),
        };
        self.node_with(id, objects).await
    }

    async fn node_with(&self, id: &str, objects: ObjectsConfig) -> TestNode {
        let url = DatabaseUrl::parse(&self.database).unwrap();
        let store = Arc::new(PostgresStore::open(&url, id).await.unwrap());
        let node = NewNode {
            id: id.to_owned(),
            address: format!("{id}.test:1"),
            class: "class".to_owned(),
            capacity: NodeLoad::default(),
        };
        store.cluster().unwrap().register_node(node, Duration::from_secs(600)).await.unwrap();
        let directory = self.directory.path().join(id);
        std::fs::create_dir(&directory).unwrap();
        let audit = Audit::open(&directory.join("audit.log"), false).unwrap();
        let shared: Arc<dyn Store> = Arc::clone(&store) as _;
        let config = config(&directory, id, objects);
        let engine = Engine::start(config, shared, Arc::new(NoSandboxes), audit).await;
        TestNode { engine: engine.unwrap(), store }
    }

    /// Everything that the database has about sessions and executions.
    fn rows(&self) -> String {
        let sql = "SELECT s.*, e.id, e.status FROM sessions s LEFT JOIN execs e ON e.session = s.id
                   ORDER BY s.id, e.id";
        self.postgres.sql(&self.database, sql)
    }

    fn sql(&self, sql: &str) -> String {
        self.postgres.sql(&self.database, sql)
    }
}

impl TestNode {
    /// A hibernated session that no node owns.
    async fn sleeping(&self, key: Option<&str>, clean: bool) -> String {
        let row = SessionRow {
            key: key.map(str::to_owned),
            ..new_row(Principal::default().tenant, spec(), Phase::Hibernated)
        };
        self.store.put_session(row.clone(), Durability::Process).await.unwrap();
        if !clean {
            let exec = ExecRow {
                session: row.id.clone(),
                id: "exec_1".to_owned(),
                number: 1,
                request: ExecRequest::cell(Language::Python),
                code: b"1".to_vec(),
                accepted_ms: 1,
                ended_ms: None,
                status: None,
                transcript: None,
            };
            assert!(self.store.accept_exec(exec).await.unwrap());
        }
        let cluster = self.store.cluster().unwrap();
        cluster.release_session(&row.id, Some(pointer(&row.id, clean))).await.unwrap();
        row.id
    }

    async fn extend(&self, id: &str) -> Result<(), EngineError> {
        self.engine.extend(&Principal::default(), id, 900).await.map(drop)
    }

    /// While this is held, the node does not release the session.
    async fn hold(&self, id: &str) -> HeldSession {
        self.engine.live_session(&Principal::default(), id).await.unwrap()
    }

    async fn is_rid_of(&self, id: &str) {
        let gone = self.engine.registry.removed(id);
        tokio::time::timeout(PATIENCE, gone).await.expect("the session leaves the node");
    }

    fn has(&self, id: &str) -> bool {
        self.engine.registry.find(id).is_some()
    }
}

fn pointer(session: &str, clean: bool) -> Value {
    json!({
        "version": 1, "session": session, "number": 1, "class": "class", "files": [],
        "manifest": {"id": 1, "made_ms": 0, "bytes": 0},
        "resume": {"clean": clean, "execs": 0, "taken_ms": 0},
    })
}

fn spec() -> SessionSpec {
    SessionSpec {
        image: "host".into(),
        storage: Storage::Tmpfs,
        datasets: Datasets::None,
        limits: Limits::default(),
        network: crate::network::Policy::default(),
        volumes: BTreeMap::new(),
        workspace: None,
        env: BTreeMap::new(),
        ttl_s: 600,
        idle_s: None,
        spill_s: None,
        checkpoints: None,
        metadata: serde_json::Map::new(),
    }
}

fn config(directory: &Path, node: &str, objects: ObjectsConfig) -> EngineConfig {
    let below = |name: &str| directory.join(name);
    let quota = ArtifactQuota { count: 10, bytes: 1 << 20 };
    let class = "class".to_owned();
    EngineConfig {
        defaults: spec(),
        images: Vec::new(),
        sessions_root: below("sessions"),
        datasets_dir: None,
        dataset_sources: Arc::default(),
        dataset_cache: below("cache"),
        dataset_cache_bytes: 1 << 20,
        dataset_bytes: 1 << 20,
        network: Arc::default(),
        disk: DiskConfig {
            kind: Some(VolumeKind::Directory),
            size: 1 << 20,
            retention_s: None,
            strict: false,
        },
        volumes: VolumesConfig {
            root: below("volumes"),
            kind: Some(VolumeKind::Directory),
            size: 1 << 20,
            per_tenant: VolumeQuota { count: 1, bytes: 1 << 20 },
            strict: false,
        },
        workspaces: Default::default(),
        artifact_store: ArtifactStoreConfig {
            catalog_id: None,
            blobs_dir: below("blobs"),
            catalog: None,
            objects: None,
            database: below("artifacts.db"),
            key_file: below("links.key"),
            sessions_root: below("sessions"),
            outputs_dir: below("outputs"),
            exports_dir: below("exports"),
            show_all: false,
            quotas: ArtifactQuotas { file_bytes: 1 << 20, session: quota, tenant: quota },
            retention_s: None,
            keep_originals: false,
            link_ttl_s: 60,
        },
        pool: 0,
        total: Quota::default(),
        alone_for_s: 60,
        max_ttl_s: 86_400,
        spill: None,
        snapshots: SnapshotConfig {
            directory: below("snapshots"),
            total_bytes: None,
            tenant_bytes: None,
            tenant_sleeping: None,
            hibernate_after: None,
            remote: Some(RemoteSnapshotConfig { objects, class: class.clone() }),
        },
        node: Some(NodeConfig { id: node.to_owned(), class }),
        snapshot_every: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_claim_a_session_once_and_other_nodes_refuse_it() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one").await, cluster.node("two").await);
    let id = one.sleeping(None, true).await;
    assert!(!one.has(&id) && !two.has(&id));
    let claims = (0..20).map(|_| two.extend(&id));
    for claimed in futures_util::future::join_all(claims).await {
        claimed.unwrap();
    }
    let held = two.hold(&id).await;
    assert_eq!(two.engine.live_sessions(), 1);
    let epoch = cluster.sql("SELECT owner, epoch FROM sessions");
    assert_eq!(epoch, "two|2", "it was created, and claimed once");
    // The other node refuses it, in calls that need its sandbox and in calls that read its records.
    for refused in [
        one.extend(&id).await.unwrap_err(),
        one.engine.describe(&Principal::default(), &id).await.unwrap_err(),
        one.engine.stop(&Principal::default(), &id).await.unwrap_err(),
        one.engine.execs(&Principal::default(), &id, None, 1).await.unwrap_err(),
    ] {
        match refused {
            EngineError::Elsewhere { node, address } => {
                assert_eq!((node.as_str(), address.as_str()), ("two", "two.test:1"));
            }
            other => panic!("{other}"),
        }
    }
    // When no request uses it any more, it is released, and the other node can have it.
    drop(held);
    two.is_rid_of(&id).await;
    one.extend(&id).await.unwrap();
    assert_eq!(cluster.sql("SELECT owner, epoch FROM sessions"), "one|3");
    let stopped = one.engine.stop(&Principal::default(), &id).await.unwrap();
    assert_eq!(stopped.view.phase, Phase::Stopped);
    assert!(matches!(two.extend(&id).await, Err(EngineError::NotNow { .. })));
    // Another tenant sees nothing of it.
    let other = Principal { tenant: "other".into(), ..Principal::default() };
    let unknown = two.engine.describe(&other, &id).await;
    assert!(matches!(unknown, Err(EngineError::NoSession(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_finds_its_session_on_every_node() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one").await, cluster.node("two").await);
    let id = one.sleeping(Some("key"), true).await;
    let ask = SessionAsk { key: Some("key".into()), ..SessionAsk::default() };
    let found = one.engine.create(&Principal::default(), ask.clone()).await.unwrap();
    assert_eq!((found.how, found.session.id.as_str()), (CreatedHow::Found, id.as_str()));
    let _held = one.hold(&id).await;
    let refused = two.engine.create(&Principal::default(), ask).await.unwrap_err();
    assert!(matches!(refused, EngineError::Elsewhere { node, .. } if node == "one"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_was_fenced_writes_nothing() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one").await, cluster.node("two").await);
    let id = one.sleeping(None, true).await;
    let _held = one.hold(&id).await;
    // As in a take-over while the node is paused.
    cluster.sql("UPDATE sessions SET owner = NULL, epoch = epoch + 1");
    let _held_too = two.hold(&id).await;
    let before = cluster.rows();
    let refused = one.extend(&id).await.unwrap_err();
    let code = matches!(
        refused,
        EngineError::Store(crate::store::StoreError::Fenced { .. })
            | EngineError::Unavailable(_)
            | EngineError::Elsewhere { .. }
    );
    assert!(code, "{refused}");
    one.is_rid_of(&id).await;
    assert_eq!(cluster.rows(), before);
    assert!(matches!(one.extend(&id).await, Err(EngineError::Elsewhere { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_lease_drops_its_sessions_and_can_have_them_again() {
    let cluster = Cluster::new();
    let one = cluster.node("one").await;
    let id = one.sleeping(None, true).await;
    let held = one.hold(&id).await;
    let before = cluster.rows();
    one.engine.fence().await;
    assert!(!one.has(&id));
    assert_eq!(cluster.rows(), before, "nothing was written");
    drop(held);
    one.engine.recover_owned().await.unwrap();
    assert!(one.has(&id));
    one.extend(&id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_node_refuses_work() {
    let cluster = Cluster::new();
    let one = cluster.node("one").await;
    let id = one.sleeping(None, true).await;
    one.engine.freeze(true).await.unwrap();
    assert!(matches!(one.extend(&id).await, Err(EngineError::Unavailable(_))));
    let created = one.engine.create(&Principal::default(), SessionAsk::default()).await;
    assert!(matches!(created, Err(EngineError::Unavailable(_))));
    one.engine.freeze(false).await.unwrap();
    one.extend(&id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_a_lost_node_says_where_it_goes_on() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one").await, cluster.node("two").await);
    let id = one.sleeping(None, false).await;
    two.hold(&id).await.settled().await;
    let _held = two.hold(&id).await;
    let who = Principal::default();
    let info = two.engine.describe(&who, &id).await.unwrap();
    let [warning] = &info.view.warnings[..] else { panic!("{:?}", info.view.warnings) };
    assert_eq!(
        warning,
        "its node was lost: it goes on from the snapshot of 1970-01-01T00:00:00.000Z, after \
         execution 0; later changes are lost"
    );
    let exec = two.engine.exec_info(&who, &id, "exec_1").await.unwrap();
    let result = exec.result.expect("it has ended");
    assert_eq!(result.status, Status::Crashed);
    let reason = result.reason.unwrap_or_default();
    assert!(reason.contains("its node was lost"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_releases_sleeping_sessions_and_refuses_claims() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one").await, cluster.node("two").await);
    let id = one.sleeping(None, true).await;
    one.extend(&id).await.unwrap();
    let drained = one.engine.drain(Instant::now()).await;
    assert_eq!(drained.released, std::slice::from_ref(&id), "{drained:?}");
    assert!(matches!(one.extend(&id).await, Err(EngineError::Unavailable(_))));
    two.extend(&id).await.unwrap();
    one.engine.end_drain();
    assert!(matches!(one.extend(&id).await, Err(EngineError::Elsewhere { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_sessions_that_no_node_owns_are_ended() {
    let cluster = Cluster::new();
    let one = cluster.node("one").await;
    let (old, young) = (one.sleeping(None, true).await, one.sleeping(None, true).await);
    cluster.sql(&format!("UPDATE sessions SET expires_ms = 1 WHERE id = '{old}'"));
    one.engine.registry.end_expired().await.unwrap();
    one.is_rid_of(&old).await;
    let row = one.store.session(&old).await.unwrap().unwrap();
    assert_eq!((row.phase, row.ended_because.as_deref()), (Phase::Stopped, Some("it expired")));
    let row = one.store.session(&young).await.unwrap().unwrap();
    assert_eq!(row.phase, Phase::Hibernated);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_removes_shared_layers_that_no_session_needs() {
    const DAYS: i64 = 86_400_000;
    let (cluster, s3) = (Cluster::new(), S3Server::start());
    let objects = ObjectsConfig {
        url: s3.url(),
        endpoint: Some(s3.endpoint()),
        region: None,
        key: Some((KEY_ID.into(), SECRET.into())),
    };
    let one = cluster.node_with("one", objects.clone()).await;
    let two = cluster.node_with("two", objects.clone()).await;
    // The node's own upkeep begins the task when the node starts.
    while cluster.sql("SELECT count(*) FROM tasks") == "0" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let objects = Objects::open(&objects).unwrap();
    let key = |layer: &str| format!("snapshots/common/{layer}");
    for layer in ["used", "unused"] {
        objects.put(&key(layer), "layer".into()).await.unwrap();
    }
    let id = one.sleeping(None, true).await;
    let mut pointer = pointer(&id, true);
    pointer["files"] = json!([{"id": 7, "kind": "pages", "key": key("used"), "bytes": 5, "sha256": "0".repeat(64)}]);
    cluster.sql(&format!("UPDATE sessions SET snapshot = '{pointer}'"));
    let left = async || objects.list_all("snapshots/common").await.unwrap().len();
    let later = crate::clock::now_ms() + 2 * DAYS;
    two.engine.registry.sweep_shared_layers(later).await.unwrap();
    assert_eq!(left().await, 2, "a node swept within the last hour");
    cluster.sql("UPDATE tasks SET next = now()");
    two.engine.registry.sweep_shared_layers(crate::clock::now_ms()).await.unwrap();
    assert_eq!(left().await, 2, "they are young");
    cluster.sql("UPDATE tasks SET next = now()");
    one.engine.registry.sweep_shared_layers(later).await.unwrap();
    assert_eq!(left().await, 1);
    assert!(objects.head(&key("used")).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_sleeping_sessions_holds_over_all_nodes() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one").await, cluster.node("two").await);
    let tenant = Principal::default().tenant;
    one.sleeping(None, true).await;
    one.sleeping(None, true).await;
    let reserve = async |node: &TestNode, limit: u64| {
        let quota = Quota { sleeping: Some(limit), ..Quota::default() };
        node.engine.state.reserve_sleep(&tenant, Some(quota)).await
    };
    let Err(EngineError::Full(full)) = reserve(&two, 2).await else { panic!("there are two") };
    assert_eq!((full.what, full.limit, full.used), ("sleeping sessions on all nodes", 2, 2));
    assert!(reserve(&two, 3).await.is_ok());
    assert!(reserve(&two, u64::MAX).await.is_ok(), "a drain has no limit");
}
