//! Moving the records of a single server from SQLite to Postgres.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

mod rows;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use belljar_proto::exec::{Language, Status};
use belljar_runtime::VolumeKind;
use belljar_store::{
    ArtifactCatalog, ArtifactQuota, ArtifactQuotas, ArtifactRow, ClusterRecords, DatabaseUrl,
    DatasetRecords, DatasetRow, DatasetStatus, Digest, Durability, ExecFilter, ExecRecords,
    ExecRequest, ExecRow, FinishedExec, KeyLimits, KeyRecords, KeyRow, MigrateError, MigratedTable,
    MigrationSource, NewNode, NodeLoad, Phase, PostgresCatalog, PostgresStore, SessionFilter,
    SessionRecords, SessionRow, SessionSpec, SqliteCatalog, SqliteStore, Storage, Store,
    UsageDelta, UsageRecords, VolumeQuota, VolumeRecords, VolumeRow, migrate,
};
use belljar_testkit::postgres::Postgres;
use tempfile::TempDir;

const SESSIONS: usize = 300;
const ARTIFACTS: usize = 150;

fn source(directory: &Path) -> MigrationSource {
    MigrationSource { store: directory.join("belljar.db"), catalog: directory.join("artifacts.db") }
}

fn session(number: usize) -> SessionRow {
    let ended = number.is_multiple_of(3);
    SessionRow {
        tenant: format!("tenant {}", number % 4),
        key: (!ended).then(|| format!("key {number}")),
        phase: if ended { Phase::Stopped } else { Phase::Ready },
        spec: SessionSpec {
            image: "größe".into(),
            storage: if number.is_multiple_of(2) { Storage::Bind } else { Storage::Tmpfs },
            metadata: serde_json::Map::from_iter([("zero".into(), "a\0b".into())]),
            ..rows::spec()
        },
        ended_ms: ended.then_some(9),
        ended_because: ended.then(|| "asked to".into()),
        ..rows::session(&format!("ses_{number}"), i64::try_from(number).unwrap())
    }
}

fn artifact(number: usize) -> ArtifactRow {
    ArtifactRow {
        // Not in the order of their numbers.
        id: format!("art_{}", (number * 7919) % 10_007),
        tenant: "tenant 1".into(),
        session: format!("ses_{number}"),
        exec: "x".into(),
        name: "plot.png".into(),
        path: format!("/session/artifacts/{number}"),
        size: 10,
        mime: "image/png".into(),
        sha256: Digest::of(&number.to_be_bytes()),
        created_ms: 1,
    }
}

async fn fill(directory: &Path) {
    let source = source(directory);
    let store = SqliteStore::open(&source.store).unwrap();
    let process = Durability::Process;
    for number in 0..SESSIONS {
        let row = session(number);
        store.put_session(row.clone(), process).await.unwrap();
        let exec = ExecRow {
            session: row.id.clone(),
            id: "x".into(),
            number: 1,
            request: ExecRequest::cell(Language::Python),
            code: vec![0, 1, 255],
            accepted_ms: 1,
            ended_ms: None,
            status: None,
            transcript: None,
        };
        store.accept_exec(exec).await.unwrap();
    }
    let finished = FinishedExec {
        session: "ses_0".into(),
        id: "x".into(),
        number: 1,
        ended_ms: 2,
        status: Status::Error,
        transcript: vec![7; 5000],
        expires_ms: None,
    };
    store.finish_exec(finished).await.unwrap();
    let dataset = DatasetRow {
        session: "ses_1".into(),
        name: "d.csv".into(),
        status: DatasetStatus::Loaded,
        reason: None,
        source: Some("id".into()),
        sha256: Some(Digest::of(b"d")),
        size: Some(1),
        updated_ms: 1,
    };
    store.put_dataset(dataset).await.unwrap();
    let volume = VolumeRow {
        id: "vol_1".into(),
        tenant: "tenant 1".into(),
        name: "models".parse().unwrap(),
        size: 5,
        kind: VolumeKind::Directory,
        created_ms: 1,
    };
    store.add_volume(volume, VolumeQuota { count: 9, bytes: 99 }).await.unwrap();
    store.volume_ready("vol_1").await.unwrap();
    let key = KeyRow {
        id: "key_1".into(),
        name: "ci".into(),
        tenant: "tenant 1".into(),
        hash: vec![1; 32],
        limits: KeyLimits::default(),
        created_ms: 1,
        revoked_ms: None,
    };
    store.put_key(key).await.unwrap();
    let delta = UsageDelta { sessions: 3, cpu_us: 5, ..UsageDelta::default() };
    store.add_usage("2026-11-16".into(), vec![("tenant 1".into(), delta)]).await.unwrap();
    store.close().await;
    let catalog = SqliteCatalog::open(&source.catalog).unwrap();
    let plenty = ArtifactQuota { count: 10_000, bytes: 1 << 40 };
    let quotas = ArtifactQuotas { file_bytes: 100, session: plenty, tenant: plenty };
    catalog.add((0..ARTIFACTS).map(artifact).collect(), quotas).await.unwrap();
    catalog.close().await;
}

/// Everything is there and can be used.
async fn check(directory: &Path, url: &DatabaseUrl, owner: &str) {
    let store = PostgresStore::open(url, owner).await.unwrap();
    let node = NewNode {
        id: owner.into(),
        address: String::new(),
        class: String::new(),
        capacity: NodeLoad::default(),
    };
    store.register_node(node, Duration::MAX).await.unwrap();
    let before = SqliteStore::open(&source(directory).store).unwrap();
    assert_eq!(before.owner(), owner);
    let all = SessionFilter { limit: 10_000, ..SessionFilter::default() };
    let (old, new) =
        (before.sessions(all.clone()).await.unwrap(), store.sessions(all).await.unwrap());
    assert_eq!(new.len(), SESSIONS);
    assert_eq!(format!("{new:?}"), format!("{old:?}"));
    assert_eq!(store.unended_sessions().await.unwrap().len(), 200);
    assert_eq!(store.sessions_to_remove(10).await.unwrap().len(), 50);
    store.set_phase("ses_1", Phase::Busy, None, Durability::Process).await.unwrap();
    let page = ExecFilter { newest_first: false, beyond: None, finished: false, limit: 9 };
    let page = (&store as &dyn Store).execs("ses_1", page, |row| row.code).await.unwrap();
    assert_eq!(page.items, [vec![0, 1, 255]]);
    assert_eq!(store.datasets("ses_1").await.unwrap(), before.datasets("ses_1").await.unwrap());
    assert_eq!(store.volumes_left().await.unwrap().ready[0].id, "vol_1");
    assert_eq!(store.keys().await.unwrap()[0].id, "key_1");
    let usage = store.usage(None, String::new()).await.unwrap();
    assert_eq!(usage, before.usage(None, String::new()).await.unwrap());
    let catalog = PostgresCatalog::open(url).await.unwrap();
    let expected: Vec<_> = (0..ARTIFACTS).map(artifact).collect();
    assert_eq!(catalog.all().await.unwrap(), expected, "in the same order");
    let (total, _) = catalog.totals("tenant 1", "").await.unwrap();
    assert_eq!((total.count, total.bytes), (150, 1500));
}

async fn run(directory: &Path, url: &DatabaseUrl) -> Result<(String, Vec<u64>), MigrateError> {
    let mut rows = Vec::new();
    let count = |table: &MigratedTable| {
        if table.sha256.is_some() {
            rows.push(table.rows);
        }
    };
    let owner = migrate(&source(directory), url, count).await?;
    Ok((owner, rows))
}

#[tokio::test]
async fn records_move_to_postgres_once() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path()).await;
    let url = DatabaseUrl::parse(&Postgres::shared().database()).unwrap();
    let (owner, rows) = run(directory.path(), &url).await.unwrap();
    assert_eq!(rows, [300, 300, 1, 1, 1, 1, 150]);
    check(directory.path(), &url, &owner).await;
    // What the server changed since then stays.
    run(directory.path(), &url).await.unwrap();
    let store = PostgresStore::open(&url, "").await.unwrap();
    assert_eq!(store.session("ses_1").await.unwrap().unwrap().phase, Phase::Busy);

    let other = tempfile::tempdir().unwrap();
    let error = run(other.path(), &url).await.unwrap_err();
    assert!(matches!(error, MigrateError::NotEmpty), "{error:?}");
}

/// A row that exists with another content is found.
#[tokio::test]
async fn a_difference_is_found() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path()).await;
    let address = Postgres::shared().database();
    let url = DatabaseUrl::parse(&address).unwrap();
    let owner = SqliteStore::open(&source(directory.path()).store).unwrap().owner().to_owned();
    drop(PostgresStore::open(&url, "").await.unwrap());
    let begun = format!("INSERT INTO migrated VALUES ('{owner}', '', 0, '')");
    Postgres::shared().sql(&address, &begun);
    let damaged = "INSERT INTO keys VALUES ('key_1', 'other', 't', '\\x00', '{}', 1, NULL)";
    Postgres::shared().sql(&address, damaged);
    let error = run(directory.path(), &url).await.unwrap_err();
    assert!(matches!(error, MigrateError::Differs { table: "keys", .. }), "{error:?}");
}

/// Names the directory and database of the process that is killed.
const CHILD: &str = "BELLJAR_TEST_MIGRATE";

/// The process that `a_killed_migration_is_resumed` kills: it pauses after each step.
#[tokio::test]
#[ignore = "a part of another test"]
async fn migrates_slowly() {
    let Ok(value) = std::env::var(CHILD) else { return };
    let (directory, url) = value.split_once(' ').unwrap();
    let url = DatabaseUrl::parse(url).unwrap();
    let pause = |table: &MigratedTable| {
        println!("{} {}", table.name, table.rows);
        std::thread::sleep(Duration::from_millis(30));
    };
    migrate(&source(Path::new(directory)), &url, pause).await.unwrap();
}

#[tokio::test]
async fn a_killed_migration_is_resumed() {
    let directory: TempDir = tempfile::tempdir().unwrap();
    fill(directory.path()).await;
    let address = Postgres::shared().database();
    let url = DatabaseUrl::parse(&address).unwrap();
    for wait_ms in [150, 400, 900, 1500] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["migrates_slowly", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, format!("{} {address}", directory.path().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let copied = Postgres::shared().sql(&address, "SELECT count(*) FROM sessions");
    assert_ne!(copied, "0", "it was killed in the middle");
    let (owner, rows) = run(directory.path(), &url).await.unwrap();
    assert_eq!(rows, [300, 300, 1, 1, 1, 1, 150]);
    check(directory.path(), &url, &owner).await;
}
