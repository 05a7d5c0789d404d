//! Nodes, leases and claims of the store on Postgres, and what it does while Postgres is away.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belljar_proto::exec::{Language, Status};
use belljar_runtime::VolumeKind;
use belljar_store::{
    Claim, ClusterRecords, DatabaseUrl, DatasetRecords, DatasetRow, DatasetStatus, Durability,
    ExecRecords, ExecRequest, ExecRow, Expired, FinishedExec, NewNode, NodeLoad, NodeState, Phase,
    PostgresStore, QuotaLimit, SessionRecords, SessionRow, Storage, Store, StoreError, VolumeAdded,
    VolumeQuota, VolumeRecords, VolumeRow,
};
use belljar_testkit::postgres::Postgres;
use futures_util::future::join_all;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

const LEASE: Duration = Duration::from_millis(300);
const FOREVER: Duration = Duration::MAX;

fn new_node(id: &str) -> NewNode {
    NewNode {
        id: id.into(),
        address: format!("{id}:8444"),
        class: "x86".into(),
        capacity: NodeLoad { sessions: 10, memory: 1 << 30 },
    }
}

/// The stores of several nodes.
struct Cluster {
    url: String,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster { url: Postgres::shared().database() }
    }

    async fn open(&self, id: &str) -> PostgresStore {
        PostgresStore::open(&DatabaseUrl::parse(&self.url).unwrap(), id).await.unwrap()
    }

    async fn node(&self, id: &str, lease: Duration) -> PostgresStore {
        let store = self.open(id).await;
        store.register_node(new_node(id), lease).await.unwrap();
        store
    }

    fn sql(&self, sql: &str) -> String {
        Postgres::shared().sql(&self.url, sql)
    }
}

fn session(id: &str) -> SessionRow {
    rows::session(id, 1)
}

fn exec(session: &str, id: &str, number: u64) -> ExecRow {
    ExecRow {
        session: session.into(),
        id: id.into(),
        number,
        request: ExecRequest::cell(Language::Python),
        code: b"1".to_vec(),
        accepted_ms: 10,
        ended_ms: None,
        status: None,
        transcript: None,
    }
}

fn finished(session: &str, id: &str) -> FinishedExec {
    FinishedExec {
        session: session.into(),
        id: id.into(),
        number: 1,
        ended_ms: 20,
        status: Status::Ok,
        transcript: Vec::new(),
        expires_ms: None,
    }
}

async fn put(store: &PostgresStore, row: SessionRow) {
    store.put_session(row, Durability::Process).await.unwrap();
}

fn is_fenced<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Fenced { session }) if session == "s")
}

/// Every write about a session that this node does not own fails.
async fn assert_fenced(store: &PostgresStore) {
    let process = Durability::Process;
    assert!(is_fenced(&store.put_session(session("s"), process).await));
    assert!(is_fenced(&store.set_phase("s", Phase::Busy, None, process).await));
    assert!(is_fenced(&store.set_sandbox("s", Phase::Busy, None, process).await));
    assert!(is_fenced(&store.set_expiry("s", 8, 9).await));
    assert!(is_fenced(&store.accept_exec(exec("s", "late", 7)).await));
    assert!(is_fenced(&store.finish_exec(finished("s", "x")).await));
    assert!(is_fenced(&store.set_snapshot("s", 9, json!({"by": "the wrong node"})).await));
    assert!(is_fenced(&store.release_session("s", None).await));
    let dataset = DatasetRow {
        session: "s".into(),
        name: "d".into(),
        status: DatasetStatus::Loaded,
        reason: None,
        source: None,
        sha256: None,
        size: None,
        updated_ms: 1,
    };
    assert!(is_fenced(&store.put_dataset(dataset).await));
    assert!(is_fenced(&store.remove_dataset("s", "d").await));
}

#[tokio::test]
async fn a_session_moves_and_its_earlier_owner_is_fenced() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one", FOREVER).await, cluster.node("two", FOREVER).await);
    put(&one, session("s")).await;
    assert!(one.accept_exec(exec("s", "x", 1)).await.unwrap());
    let Claim::OwnedBy { node, address } = two.claim_session("s").await.unwrap() else {
        panic!("it has an owner")
    };
    assert_eq!((node.as_str(), address.as_str()), ("one", "one:8444"));
    assert_fenced(&two).await;
    assert!(two.unended_sessions().await.unwrap().is_empty());
    assert_eq!(one.unended_sessions().await.unwrap().len(), 1);

    one.release_session("s", Some(json!({"manifest": 1}))).await.unwrap();
    assert_eq!(two.session("s").await.unwrap().unwrap().phase, Phase::Hibernated);
    assert_fenced(&one).await;
    let Claim::Claimed(row) = two.claim_session("s").await.unwrap() else { panic!("unowned") };
    assert_eq!((row.id.as_str(), row.phase, row.execs), ("s", Phase::Hibernated, 1));
    assert_eq!(two.snapshot_of("s").await.unwrap(), Some(json!({"manifest": 1})));
    // A claim whose answer was lost is repeated.
    assert!(matches!(two.claim_session("s").await.unwrap(), Claim::Claimed(_)));
    assert_fenced(&one).await;
    two.set_phase("s", Phase::Ready, None, Durability::Process).await.unwrap();
    two.finish_exec(finished("s", "x")).await.unwrap();
    let route = one.route("s").await.unwrap().unwrap();
    assert_eq!(route.owner, Some(("two".into(), "two:8444".into())));
    assert_eq!((route.tenant.as_str(), route.ended, route.pinned), ("acme", false, None));

    let ended = Some((9, "asked to".to_owned()));
    two.set_phase("s", Phase::Stopped, ended, Durability::Power).await.unwrap();
    assert!(matches!(one.claim_session("s").await.unwrap(), Claim::NotClaimable));
    assert!(matches!(one.claim_session("none").await.unwrap(), Claim::NotClaimable));
    assert!(one.route("s").await.unwrap().unwrap().ended);
    assert_eq!(one.route("none").await.unwrap(), None);
}

#[tokio::test]
async fn a_node_that_certainly_ended_is_lost_before_its_lease_ends() {
    let cluster = Cluster::new();
    let (dead, other) = (cluster.node("dead", FOREVER).await, cluster.node("other", FOREVER).await);
    put(&dead, session("s")).await;
    other.lose_node("dead").await.unwrap();
    other.lose_node("unknown").await.unwrap();
    let taken = other.take_over_expired(LEASE).await.unwrap();
    let [taken] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!((taken.node.as_str(), &taken.lost[..]), ("dead", &["s".to_owned()][..]));
    assert!(!dead.renew_lease(NodeLoad::default(), LEASE).await.unwrap());
    assert_fenced(&dead).await;
}

#[tokio::test]
async fn late_writes_of_a_node_change_nothing() {
    let cluster = Cluster::new();
    let node = cluster.node("one", FOREVER).await;
    put(&node, session("s")).await;
    node.set_snapshot("s", 2, json!({"number": 2})).await.unwrap();
    node.set_snapshot("s", 2, json!({"number": 2, "again": true})).await.unwrap();
    assert!(is_fenced(&node.set_snapshot("s", 1, json!({"number": 1})).await));
    let stored = node.snapshot_of("s").await.unwrap();
    assert_eq!(stored, Some(json!({"number": 2, "again": true})));

    // A claim fences what the same node sent before it.
    let before = cluster.sql("SELECT epoch FROM sessions");
    assert!(matches!(node.claim_session("s").await.unwrap(), Claim::Claimed(_)));
    assert_ne!(cluster.sql("SELECT epoch FROM sessions"), before);
    node.set_phase("s", Phase::Ready, None, Durability::Process).await.unwrap();
}

#[tokio::test]
async fn of_two_claims_one_wins() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one", FOREVER).await, cluster.node("two", FOREVER).await);
    put(&one, session("s")).await;
    one.release_session("s", None).await.unwrap();
    let mut wins = [0, 0];
    for round in 0..200 {
        let (first, second) = tokio::join!(one.claim_session("s"), two.claim_session("s"));
        let winner = match (first.unwrap(), second.unwrap()) {
            (Claim::Claimed(_), Claim::OwnedBy { node, .. }) if node == "one" => 0,
            (Claim::OwnedBy { node, .. }, Claim::Claimed(_)) if node == "two" => 1,
            both => panic!("round {round}: {both:?}"),
        };
        wins[winner] += 1;
        [&one, &two][winner].release_session("s", None).await.unwrap();
    }
    assert_eq!(cluster.sql("SELECT epoch FROM sessions"), "201");
    assert_eq!(wins[0] + wins[1], 200, "{wins:?}");
}

#[tokio::test]
async fn a_node_that_registers_again_keeps_its_sessions_and_fences_its_earlier_process() {
    let cluster = Cluster::new();
    let before = cluster.node("one", FOREVER).await;
    put(&before, session("s")).await;
    let first = before.nodes().await.unwrap()[0].epoch;
    let after = cluster.node("one", FOREVER).await;
    assert!(after.nodes().await.unwrap()[0].epoch > first);
    assert!(!before.renew_lease(NodeLoad::default(), FOREVER).await.unwrap());
    assert_fenced(&before).await;
    assert_eq!(after.unended_sessions().await.unwrap().len(), 1);
    after.set_phase("s", Phase::Busy, None, Durability::Process).await.unwrap();
    assert!(after.renew_lease(NodeLoad { sessions: 3, memory: 7 }, LEASE).await.unwrap());
    let row = after.nodes().await.unwrap().remove(0);
    assert_eq!(row.used, NodeLoad { sessions: 3, memory: 7 });
    assert_eq!((row.state, row.class.as_str()), (NodeState::Ready, "x86"));
    assert!((1..=300).contains(&row.lease_left_ms), "{row:?}");
    assert!(after.register_node(new_node("two"), LEASE).await.is_err());
}

#[tokio::test]
async fn sessions_of_a_lost_node_go_on_from_their_snapshots() {
    let cluster = Cluster::new();
    let (lost, other) = (cluster.node("lost", LEASE).await, cluster.node("other", FOREVER).await);
    for id in ["s", "asleep", "stopping"] {
        put(&lost, session(id)).await;
    }
    assert!(lost.accept_exec(exec("s", "x", 1)).await.unwrap());
    lost.set_snapshot("asleep", 1, json!({"epoch": 1})).await.unwrap();
    lost.set_phase("stopping", Phase::Stopping, None, Durability::Process).await.unwrap();
    lost.reserve_quota("acme", NodeLoad { sessions: 3, memory: 3 }, QuotaLimit::default())
        .await
        .unwrap();
    let margin = Duration::from_millis(100);
    assert!(other.take_over_expired(margin).await.unwrap().is_empty(), "its lease is valid");
    tokio::time::sleep(LEASE + margin).await;
    let taken = other.take_over_expired(margin).await.unwrap();
    let [taken] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!(taken.node, "lost");
    assert_eq!((&taken.asleep[..], &taken.lost[..]), (&["asleep".into()][..], &["s".into()][..]));
    assert!(other.take_over_expired(margin).await.unwrap().is_empty());
    assert!(!lost.renew_lease(NodeLoad::default(), LEASE).await.unwrap());
    assert_fenced(&lost).await;
    let new = lost.put_session(session("new"), Durability::Process).await;
    assert!(matches!(new, Err(StoreError::Fenced { .. })), "a lost node adds no sessions");

    let phase = async |id: &str| other.session(id).await.unwrap().unwrap().phase;
    assert_eq!(phase("s").await, Phase::Failed);
    assert_eq!(phase("stopping").await, Phase::Stopped);
    assert!(other.unfinished_execs("s").await.unwrap().is_empty());
    assert!(matches!(lost.claim_session("asleep").await.unwrap(), Claim::NotClaimable));
    assert!(matches!(other.claim_session("asleep").await.unwrap(), Claim::Claimed(_)));
    let limit = QuotaLimit { sessions: Some(1), memory: None };
    let one = NodeLoad { sessions: 1, memory: 1 };
    assert!(other.reserve_quota("acme", one, limit).await.unwrap(), "its quota is free again");
    let states: Vec<_> = other.nodes().await.unwrap().iter().map(|node| node.state).collect();
    assert_eq!(states, [NodeState::Lost, NodeState::Ready]);
    lost.register_node(new_node("lost"), LEASE).await.unwrap();
    put(&lost, session("new")).await;
}

#[tokio::test]
async fn a_node_that_is_gone_leaves_its_sessions() {
    let cluster = Cluster::new();
    let (gone, other) = (cluster.node("gone", FOREVER).await, cluster.node("other", FOREVER).await);
    put(&gone, session("s")).await;
    gone.set_node_state(NodeState::Draining).await.unwrap();
    assert!(gone.renew_lease(NodeLoad::default(), LEASE).await.unwrap());
    gone.set_node_state(NodeState::Gone).await.unwrap();
    assert!(!gone.renew_lease(NodeLoad::default(), LEASE).await.unwrap());
    let taken = other.take_over_expired(Duration::ZERO).await.unwrap();
    assert_eq!(taken[0].lost, ["s"]);
}

/// Postgres started a moment ago: nodes with a long lease get the time of their lease to renew it.
#[tokio::test]
async fn nodes_can_renew_their_leases_after_a_start_of_postgres() {
    let cluster = Cluster::new();
    let other = cluster.node("other", FOREVER).await;
    cluster.node("long", Duration::from_secs(3600)).await;
    cluster.node("short", LEASE).await;
    cluster.sql("UPDATE nodes SET lease_until = now() - interval '1 day' WHERE id <> 'other'");
    tokio::time::sleep(LEASE).await;
    // A process that has just started does not know whether others could reach the database before.
    let new = cluster.open("new").await;
    assert!(new.take_over_expired(Duration::ZERO).await.unwrap().is_empty());
    let taken = other.take_over_expired(Duration::ZERO).await.unwrap();
    let nodes: Vec<_> = taken.iter().map(|taken| taken.node.as_str()).collect();
    assert_eq!(nodes, ["short"]);
}

#[tokio::test]
async fn sessions_with_files_stay_on_their_node() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one", LEASE).await, cluster.node("two", FOREVER).await);
    let mut row = session("s");
    row.spec.storage = Storage::Bind;
    put(&one, row).await;
    one.release_session("s", None).await.unwrap();
    assert_eq!(two.route("s").await.unwrap().unwrap().pinned.as_deref(), Some("one"));
    let claim = two.claim_session("s").await.unwrap();
    assert!(matches!(claim, Claim::OwnedBy { node, .. } if node == "one"));
    assert!(matches!(one.claim_session("s").await.unwrap(), Claim::Claimed(_)));

    let volume = VolumeRow {
        id: "vol".into(),
        tenant: "acme".into(),
        name: "models".parse().unwrap(),
        size: 1,
        kind: VolumeKind::Directory,
        created_ms: 1,
    };
    let quota = VolumeQuota { count: 9, bytes: 9 };
    assert_eq!(one.add_volume(volume.clone(), quota).await.unwrap(), VolumeAdded::Yes);
    one.volume_ready("vol").await.unwrap();
    let asked = BTreeMap::from([(volume.name.clone(), belljar_store::VolumeMode::Rw)]);
    assert!(one.volumes_asked("acme", asked.clone()).await.unwrap().is_ok());
    assert!(two.volumes_asked("acme", asked).await.unwrap().is_err());
    assert_eq!(two.volumes("acme").await.unwrap(), std::slice::from_ref(&volume));
    assert!(two.volumes_left().await.unwrap().ready.is_empty());
    let node = two.volume_node("acme", &volume.name).await.unwrap();
    assert_eq!(node.as_deref(), Some("one"));
}

#[tokio::test]
async fn quotas_are_exact_over_all_nodes() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one", FOREVER).await, cluster.node("two", FOREVER).await);
    let add = NodeLoad { sessions: 1, memory: 10 };
    let limit = QuotaLimit { sessions: Some(25), memory: None };
    let reserve = async |store: &PostgresStore| store.reserve_quota("a", add, limit).await.unwrap();
    let all = (0..40).map(|n| reserve(if n % 2 == 0 { &one } else { &two }));
    let granted = join_all(all).await.into_iter().filter(|granted| *granted).count();
    assert_eq!(granted, 25);
    assert_eq!(cluster.sql("SELECT sum(sessions), sum(memory) FROM quotas"), "25|250");
    assert!(!reserve(&one).await);
    two.release_quota("a", add).await.unwrap();
    assert!(reserve(&one).await);
    let by_memory = QuotaLimit { sessions: None, memory: Some(255) };
    assert!(!one.reserve_quota("a", add, by_memory).await.unwrap());
    assert!(one.reserve_quota("b", add, by_memory).await.unwrap());
}

#[tokio::test]
async fn rates_are_spent_per_window() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.open("").await, cluster.open("").await);
    let spend = async |store: &PostgresStore, window, amount| {
        store.spend_rate("key", window, amount, 10).await.unwrap()
    };
    assert!(spend(&one, 1, 6).await);
    assert!(!spend(&two, 1, 5).await);
    assert!(spend(&two, 1, 4).await);
    assert!(!spend(&one, 1, 1).await);
    assert!(spend(&one, 2, 10).await);
    assert!(!spend(&two, 1, 1).await, "an earlier window");
    assert!(!spend(&two, 3, 11).await);
    let all = (0..40).map(|_| one.spend_rate("other", 1, 1, 25));
    let spent = join_all(all).await.into_iter().filter(|spent| *spent.as_ref().unwrap()).count();
    assert_eq!(spent, 25);
}

#[tokio::test]
async fn the_first_writer_of_a_secret_wins() {
    let cluster = Cluster::new();
    let stores = [cluster.open("").await, cluster.open("").await];
    let ask = |n: usize| stores[n % 2].shared_secret("links", vec![u8::try_from(n).unwrap()]);
    let secrets = join_all((0..10).map(ask)).await;
    let first = secrets[0].as_ref().unwrap();
    assert!(secrets.iter().all(|secret| secret.as_ref().unwrap() == first), "{secrets:?}");
    assert_eq!(stores[0].shared_secret("other", vec![9]).await.unwrap(), [9]);
}

#[tokio::test]
async fn a_key_that_another_node_uses_is_a_conflict() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one", FOREVER).await, cluster.node("two", FOREVER).await);
    let with_key = |id| SessionRow { key: Some("k".into()), ..session(id) };
    put(&one, with_key("s")).await;
    let second = two.put_session(with_key("t"), Durability::Process).await.unwrap_err();
    assert!(second.is_conflict(), "{second:?}");
    let (id, route) = two.route_by_key("acme", "k").await.unwrap().unwrap();
    assert_eq!((id.as_str(), route.owner.unwrap().0.as_str()), ("s", "one"));
}

/// The caller of an execution whose answer was lost may repeat it, or use its number for another.
#[tokio::test]
async fn a_write_whose_answer_was_lost_can_be_repeated() {
    let cluster = Cluster::new();
    let one = cluster.node("one", FOREVER).await;
    put(&one, session("s")).await;
    put(&one, session("s")).await;
    assert!(one.accept_exec(exec("s", "x", 1)).await.unwrap());
    assert!(one.accept_exec(exec("s", "x", 1)).await.unwrap());
    assert!(!one.accept_exec(exec("s", "x", 2)).await.unwrap());
    assert!(one.accept_exec(exec("s", "y", 1)).await.unwrap());
    let left = one.unfinished_execs("s").await.unwrap();
    assert_eq!(left.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["y"]);
    one.finish_exec(finished("s", "y")).await.unwrap();
    one.finish_exec(finished("s", "y")).await.unwrap();
    assert!(!one.accept_exec(exec("s", "y", 1)).await.unwrap());
    one.release_session("s", None).await.unwrap();
    assert!(matches!(one.claim_session("s").await.unwrap(), Claim::Claimed(_)));
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() {
    let cluster = Cluster::new();
    drop(cluster.open("").await);
    cluster.sql("UPDATE belljar_schema SET version = 999");
    let url = DatabaseUrl::parse(&cluster.url).unwrap();
    let error = PostgresStore::open(&url, "").await.unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 999, .. }), "{error:?}");
}

#[tokio::test]
async fn several_at_once_make_one_schema() {
    let cluster = Cluster::new();
    join_all((0..6).map(|_| cluster.open(""))).await;
    assert_eq!(cluster.sql("SELECT count(*), max(version) FROM belljar_schema"), "1|3");
}

async fn is_unavailable(store: &PostgresStore) -> bool {
    let begun = Instant::now();
    let (read, write) = tokio::join!(store.session("s"), store.set_expiry("s", 1, 2));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let error = write.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    matches!(read, Err(StoreError::Unavailable(_)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_fail_soon_while_postgres_is_away_and_work_again_after_it() {
    let postgres = Postgres::start();
    let url = DatabaseUrl::parse(&postgres.database()).unwrap();
    let store = Arc::new(PostgresStore::open(&url, "one").await.unwrap());
    store.register_node(new_node("one"), FOREVER).await.unwrap();
    put(&store, session("s")).await;
    postgres.stop();
    assert!(is_unavailable(&store).await);
    assert!(is_unavailable(&store).await);
    assert!(matches!(store.check().await, Err(StoreError::Unavailable(_))));
    let lost = store.put_session(session("lost"), Durability::Process).await;
    assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
    postgres.resume();
    store.set_expiry("s", 3, 4).await.unwrap();
    store.check().await.unwrap();
    assert_eq!(store.session("s").await.unwrap().unwrap().used_ms, 3);

    // A server that does not answer, as behind a broken network.
    let pid = postgres.pid().to_string();
    let backends = postgres.sql(
        "postgres",
        "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity \
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
    );
    let signal = |name: &str| {
        let pids = backends.split(' ').filter(|pid| !pid.is_empty()).chain([pid.as_str()]);
        std::process::Command::new("kill").arg(name).args(pids).status().unwrap()
    };
    signal("-STOP");
    let away = is_unavailable(&store).await;
    signal("-CONT");
    assert!(away);
    store.set_expiry("s", 5, 6).await.unwrap();

    // Other nodes may have been unable to renew their leases too.
    let short = PostgresStore::open(&url, "short").await.unwrap();
    let lease = Duration::from_secs(2);
    short.register_node(new_node("short"), lease).await.unwrap();
    tokio::time::sleep(lease).await;
    assert!(!short.take_over_expired(Duration::ZERO).await.unwrap().is_empty());
}

#[tokio::test]
async fn connections_are_encrypted_as_the_url_says() {
    let postgres = Postgres::start_with_tls();
    let url = postgres.tls_url("postgres");
    let open = async |parameters: &str| {
        let url = DatabaseUrl::parse(&format!("{url}?{parameters}")).unwrap();
        PostgresStore::open(&url, "").await
    };
    let encrypted = "SELECT count(*) > 0 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE ssl AND application_name = 'belljar'";
    let require = open("sslmode=require").await.unwrap();
    assert_eq!(postgres.sql("postgres", encrypted), "t");
    require.close().await;
    let error = open("sslmode=verify-full").await.unwrap_err();
    let StoreError::Open { path, cause } = error else { panic!("{error:?}") };
    assert!(!format!("{path:?} {cause:?}").contains("hunter2"));
    let roots = postgres.certificate();
    let certificate = std::fs::read(&roots).unwrap();
    let copy = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(copy.path(), certificate).unwrap();
    let parameters = format!("sslmode=verify-full&sslrootcert={}", copy.path().display());
    open(&parameters).await.unwrap().check().await.unwrap();
}

/// Forwards connections to Postgres. It loses the answer of the next statement if it is told to.
struct Proxy {
    address: String,
    lose: Arc<AtomicBool>,
}

impl Proxy {
    async fn start() -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let lose = Arc::new(AtomicBool::new(false));
        let losing = Arc::clone(&lose);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, Arc::clone(&losing)));
            }
        });
        Proxy { address, lose }
    }

    /// The database of this URL, through the proxy.
    fn url(&self, database: &str) -> DatabaseUrl {
        let name = database.split(['/', '?']).find(|part| part.starts_with("test")).unwrap();
        let url = format!("postgres://postgres@{}/{name}?sslmode=disable", self.address);
        DatabaseUrl::parse(&url).unwrap()
    }

    /// The call must fail, although its statement is done.
    async fn lose<T: std::fmt::Debug>(&self, call: impl Future<Output = Result<T, StoreError>>) {
        self.lose.store(true, Ordering::SeqCst);
        let lost = call.await;
        assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
        assert!(!self.lose.load(Ordering::SeqCst));
    }
}

async fn forward(client: TcpStream, lose: Arc<AtomicBool>) {
    let server = UnixStream::connect(Postgres::shared().socket()).await.unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = from_server.read(&mut buffer).await.unwrap_or(0);
        if count == 0 || lose.swap(false, Ordering::SeqCst) {
            return;
        }
        if to_client.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Each call is made once before, so that its statement is prepared and only its result is lost.
#[tokio::test]
async fn a_connection_that_breaks_after_the_commit_loses_nothing() {
    let cluster = Cluster::new();
    let proxy = Proxy::start().await;
    let one = PostgresStore::open(&proxy.url(&cluster.url), "one").await.unwrap();
    one.register_node(new_node("one"), FOREVER).await.unwrap();
    put(&one, session("warm")).await;
    proxy.lose(one.put_session(session("s"), Durability::Process)).await;
    let stored = |id: &str| cluster.sql(&format!("SELECT phase FROM sessions WHERE id = '{id}'"));
    assert_eq!(stored("s"), "ready");
    put(&one, session("s")).await;
    // Its caller does not repeat it, so it must not keep its key for ever.
    proxy.lose(one.put_session(session("doubtful"), Durability::Process)).await;
    assert_eq!(stored("doubtful"), "ready");

    assert!(one.accept_exec(exec("s", "warm", 1)).await.unwrap());
    proxy.lose(one.accept_exec(exec("s", "x", 2))).await;
    assert!(one.accept_exec(exec("s", "x", 2)).await.unwrap());

    for id in ["s", "warm"] {
        one.release_session(id, None).await.unwrap();
    }
    one.claim_session("warm").await.unwrap();
    proxy.lose(one.claim_session("s")).await;
    assert!(matches!(one.claim_session("s").await.unwrap(), Claim::Claimed(_)));
    one.set_phase("s", Phase::Ready, None, Durability::Process).await.unwrap();

    let (add, limit) = (NodeLoad { sessions: 1, memory: 1 }, QuotaLimit::default());
    assert!(one.reserve_quota("acme", add, limit).await.unwrap());
    proxy.lose(one.reserve_quota("acme", add, limit)).await;
    assert!(one.reserve_quota("acme", add, limit).await.unwrap());
    assert_eq!(cluster.sql("SELECT sessions FROM quotas"), "2");

    for _ in 0..50 {
        if stored("doubtful") == "failed" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!((stored("doubtful").as_str(), stored("s").as_str()), ("failed", "ready"));
}

#[tokio::test]
async fn snapshots_of_all_unended_sessions_are_listed_in_pages() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one", FOREVER).await, cluster.node("two", FOREVER).await);
    for (store, id) in [(&one, "a"), (&two, "b"), (&one, "c"), (&two, "d"), (&one, "e")] {
        put(store, session(id)).await;
        if id != "b" {
            store.set_snapshot(id, 1, json!({"of": id})).await.unwrap();
        }
    }
    one.release_session("a", None).await.unwrap();
    let ended = Some((9, "asked to".to_owned()));
    two.set_phase("d", Phase::Stopped, ended, Durability::Power).await.unwrap();
    let of = |id: &str| (id.to_owned(), json!({"of": id}));
    assert_eq!(two.snapshots("", 1).await.unwrap(), [of("a")]);
    assert_eq!(two.snapshots("a", 10).await.unwrap(), [of("c"), of("e")]);
    assert_eq!(two.snapshots("e", 10).await.unwrap(), []);
}

#[tokio::test]
async fn expired_sessions_without_an_owner_are_found_by_their_expiry() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("one", FOREVER).await, cluster.node("two", FOREVER).await);
    for (id, expires_ms) in [("a", 30), ("b", 20), ("c", 20), ("d", 10), ("young", 100)] {
        put(&one, SessionRow { expires_ms, ..session(id) }).await;
    }
    let mut pinned = SessionRow { expires_ms: 5, ..session("pinned") };
    pinned.spec.storage = Storage::Bind;
    put(&one, pinned).await;
    for id in ["a", "b", "c", "young", "pinned"] {
        one.release_session(id, Some(json!({}))).await.unwrap();
    }
    let of = |expires_ms, id: &str| Expired { expires_ms, id: id.to_owned() };
    let first = two.expired_sessions(100, &Expired::default(), 2).await.unwrap();
    assert_eq!(first, [of(20, "b"), of(20, "c")], "`one` still owns d");
    assert_eq!(two.expired_sessions(100, &first[1], 2).await.unwrap(), [of(30, "a")]);
    assert_eq!(two.expired_sessions(20, &Expired::default(), 2).await.unwrap(), []);
    let of_one = one.expired_sessions(100, &Expired::default(), 1).await.unwrap();
    assert_eq!(of_one, [of(5, "pinned")], "its files are there");
    assert_eq!(two.sleeping_sessions("acme", 100).await.unwrap(), 5);
    assert_eq!(two.sleeping_sessions("acme", 3).await.unwrap(), 3);
    assert_eq!(two.sleeping_sessions("other", 3).await.unwrap(), 0);
    let plan = cluster
        .sql("SET enable_seqscan = off; EXPLAIN SELECT id FROM sessions WHERE unowned_until < 1");
    assert!(plan.contains("sessions_by_expiry"), "{plan}");
}

#[tokio::test]
async fn sessions_whose_files_are_on_a_node_that_never_returns_end_with_a_reason() {
    let cluster = Cluster::new();
    let (away, other) = (cluster.node("away", LEASE).await, cluster.node("other", FOREVER).await);
    let mut pinned = session("pinned");
    pinned.spec.storage = Storage::Bind;
    put(&away, pinned).await;
    away.release_session("pinned", None).await.unwrap();
    other.lose_node("away").await.unwrap();
    other.take_over_expired(Duration::ZERO).await.unwrap();
    assert_eq!(other.session("pinned").await.unwrap().unwrap().phase, Phase::Hibernated);
    cluster.sql("UPDATE nodes SET lease_until = now() - interval '8 days' WHERE id = 'away'");
    other.take_over_expired(Duration::ZERO).await.unwrap();
    let ended = other.session("pinned").await.unwrap().unwrap();
    assert_eq!(ended.phase, Phase::Failed);
    assert_eq!(ended.ended_because.unwrap(), "the node with its files has been away for a week");
    assert_eq!(other.nodes().await.unwrap().len(), 1, "it is forgotten");
}

#[tokio::test]
async fn a_task_is_begun_by_one_node_at_a_time() {
    let cluster = Cluster::new();
    let nodes = [cluster.node("one", FOREVER).await, cluster.node("two", FOREVER).await];
    let hour = Duration::from_secs(3600);
    let begun = join_all((0..10).map(|n| nodes[n % 2].begin_task("sweep", hour))).await;
    assert_eq!(begun.into_iter().filter(|begun| *begun.as_ref().unwrap()).count(), 1);
    assert!(nodes[0].begin_task("another", hour).await.unwrap());
    cluster.sql("UPDATE tasks SET next = now() WHERE name = 'sweep'");
    assert!(nodes[1].begin_task("sweep", hour).await.unwrap());
    assert!(!nodes[0].begin_task("sweep", hour).await.unwrap());
}
