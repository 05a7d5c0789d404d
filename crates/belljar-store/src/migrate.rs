//! Moves the records of a single server from SQLite to Postgres.
//!
//! ```text
//!   begin: the target is empty, or this source began before
//!   for each table that is not complete: copy all rows ─▶ compare counts and hashes ─▶ mark as complete
//! ```
//!
//! A row that exists is not copied again, so an interrupted migration can be started again at any
//! point. A table that is complete is not touched again: the server may use it already.

use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::mpsc;

use crate::postgres::{DatabaseUrl, Target};
use crate::{Digest, SqliteCatalog, SqliteStore, Store, StoreError, VolumeName};

/// Rows that wait between reading and writing, and rows in one transaction. Each can have a
/// transcript of several MiB.
const QUEUE: usize = 16;

/// A value of a column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// A table and its columns, which both databases have.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static str,
    /// Orders the rows for the hash.
    pub(crate) key: &'static str,
    /// The order in which rows are copied.
    order: &'static str,
    /// Columns that only Postgres has, and their values.
    pub(crate) extra: Option<&'static str>,
    in_catalog: bool,
}

const TABLES: [Table; 7] = [
    Table {
        name: "sessions",
        columns: "id, tenant, key, phase, spec, handle, created_ms, used_ms, expires_ms, ended_ms, \
                  ended_because",
        key: "id",
        order: "id",
        extra: Some("storage, volumes, pinned, owner, epoch"),
        in_catalog: false,
    },
    Table {
        name: "execs",
        columns: "session, id, number, request, code, accepted_ms, ended_ms, status, transcript",
        key: "session, id",
        order: "session, id",
        extra: None,
        in_catalog: false,
    },
    Table {
        name: "datasets",
        columns: "session, name, status, reason, source, sha256, size, updated_ms",
        key: "session, name",
        order: "session, name",
        extra: None,
        in_catalog: false,
    },
    Table {
        name: "volumes",
        columns: "tenant, name, id, size, kind, created_ms, state",
        key: "tenant, name",
        order: "tenant, name",
        extra: Some("node"),
        in_catalog: false,
    },
    Table {
        name: "keys",
        columns: "id, name, tenant, hash, limits, created_ms, revoked_ms",
        key: "id",
        order: "id",
        extra: None,
        in_catalog: false,
    },
    Table {
        name: "usage",
        columns: "tenant, day, sessions, runs, ok, error, timeout, interrupted, crashed, oom, \
                  cpu_us, memory_mib_ms, bytes_in, bytes_out",
        key: "tenant, day",
        order: "tenant, day",
        extra: None,
        in_catalog: false,
    },
    Table {
        name: "artifacts",
        columns: "id, tenant, session, exec, name, path, size, mime, sha256, created_ms",
        key: "id",
        // Lists show artifacts in the order in which they were added.
        order: "number",
        extra: None,
        in_catalog: true,
    },
];

/// The databases of a single server.
#[derive(Debug, Clone)]
pub struct MigrationSource {
    pub store: PathBuf,
    pub catalog: PathBuf,
}

/// The progress of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigratedTable {
    pub name: &'static str,
    /// Rows that were read.
    pub rows: u64,
    pub total: u64,
    /// Of all rows, when they are copied and verified.
    pub sha256: Option<Digest>,
}

#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("failed to read `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
    #[error("the database already has records of another server; migrate to an empty one")]
    NotEmpty,
    #[error(
        "the table {table} differs after it was copied: {source_rows} rows with hash {source_hash} here, \
         {target_rows} rows with hash {target_hash} there"
    )]
    Differs {
        table: &'static str,
        source_rows: u64,
        source_hash: Digest,
        target_rows: u64,
        target_hash: Digest,
    },
    #[error("the value of a session is not valid: {0}")]
    Value(String),
}

/// Copies all records, and returns the name of the server, by which its sandboxes and directories
/// are found: the node must have this id. No server may use the source meanwhile.
pub async fn migrate(
    source: &MigrationSource,
    url: &DatabaseUrl,
    mut progress: impl FnMut(&MigratedTable),
) -> Result<String, MigrateError> {
    let owner = bring_up_to_date(source).await?;
    let target = Target::open(url).await?;
    let names: Vec<&str> = TABLES.iter().map(|table| table.name).collect();
    if !target.begin(&owner, &names).await? {
        return Err(MigrateError::NotEmpty);
    }
    for table in &TABLES {
        let done = match target.complete_table(&owner, table.name).await? {
            Some((rows, sha256)) => {
                MigratedTable { name: table.name, rows, total: rows, sha256: Some(sha256) }
            }
            None => copy(source, &target, table, &owner, &mut progress).await?,
        };
        progress(&done);
    }
    target.close().await;
    Ok(owner)
}

/// A session of the source that sleeps, with its snapshot on the disk of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SleepingSession {
    pub id: String,
    /// Increases with each change of the owner.
    pub epoch: i64,
    /// The number of its last execution; 0 without one.
    pub execs: u64,
}

/// Sessions that only the source can have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StayingSessions {
    /// Their files or volumes are there.
    pub pinned: u64,
    /// They had a sandbox when the source was stopped.
    pub awake: u64,
    /// Their snapshots are there.
    pub asleep: u64,
}

/// The sessions of a server whose records were copied.
#[derive(Debug)]
pub struct MigratedSessions {
    target: Target,
    owner: String,
}

impl MigratedSessions {
    /// `owner` is the name of the server, see [`migrate`].
    pub async fn open(url: &DatabaseUrl, owner: &str) -> Result<MigratedSessions, StoreError> {
        Ok(MigratedSessions { target: Target::open(url).await?, owner: owner.to_owned() })
    }

    /// Sessions whose snapshots can be moved and were not moved yet.
    pub async fn sleeping(&self) -> Result<Vec<SleepingSession>, StoreError> {
        self.target.sleeping(&self.owner).await
    }

    /// Lets any node wake a session from `snapshot`, the pointer to its snapshot in S3. Returns false if the session
    /// has changed since it was listed.
    pub async fn release(
        &self,
        session: &SleepingSession,
        snapshot: &serde_json::Value,
    ) -> Result<bool, StoreError> {
        self.target.release(&self.owner, session, snapshot).await
    }

    pub async fn staying(&self) -> Result<StayingSessions, StoreError> {
        self.target.staying(&self.owner).await
    }

    pub async fn close(&self) {
        self.target.close().await;
    }
}

/// Creates missing files and migrates old ones, and returns the name of the server.
async fn bring_up_to_date(source: &MigrationSource) -> Result<String, MigrateError> {
    let store = SqliteStore::open(&source.store)?;
    let owner = store.owner().to_owned();
    store.close().await;
    crate::ArtifactCatalog::close(&SqliteCatalog::open(&source.catalog)?).await;
    Ok(owner)
}

async fn copy(
    source: &MigrationSource,
    target: &Target,
    table: &'static Table,
    owner: &str,
    progress: &mut impl FnMut(&MigratedTable),
) -> Result<MigratedTable, MigrateError> {
    let path = if table.in_catalog { &source.catalog } else { &source.store };
    let total = count(path, table)?;
    let mut state = MigratedTable { name: table.name, rows: 0, total, sha256: None };
    let mut rows = read(path, table, table.order);
    let mut batch = Vec::new();
    while let Some(row) = rows.recv().await {
        let mut row = row.map_err(|cause| MigrateError::Read { path: path.clone(), cause })?;
        row.extend(extra_values(table, &row, owner)?);
        batch.push(row);
        state.rows += 1;
        if batch.len() >= QUEUE {
            target.insert(table, std::mem::take(&mut batch)).await?;
            progress(&state);
        }
    }
    target.insert(table, batch).await?;
    let mut here = RowHash::default();
    let mut rows = read(path, table, table.key);
    while let Some(row) = rows.recv().await {
        here.add(&row.map_err(|cause| MigrateError::Read { path: path.clone(), cause })?);
    }
    let there = target.hash(table).await?;
    if (here.rows, here.hash) != (there.rows, there.hash) {
        return Err(MigrateError::Differs {
            table: table.name,
            source_rows: here.rows,
            source_hash: here.hash,
            target_rows: there.rows,
            target_hash: there.hash,
        });
    }
    target.mark_complete(owner, table.name, here.rows, here.hash).await?;
    Ok(MigratedTable { rows: here.rows, sha256: Some(here.hash), ..state })
}

fn count(path: &Path, table: &Table) -> Result<u64, MigrateError> {
    let failed = |cause| MigrateError::Read { path: path.to_owned(), cause };
    let connection = open(path).map_err(failed)?;
    let sql = format!("SELECT count(*) FROM {}", table.name);
    connection.query_row(&sql, [], |row| row.get(0)).map_err(failed)
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(path, flags)
}

/// Reads all rows on a thread of its own.
fn read(
    path: &Path,
    table: &'static Table,
    order: &'static str,
) -> mpsc::Receiver<rusqlite::Result<Vec<Value>>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let path = path.to_owned();
    std::thread::spawn(move || {
        let read = || -> rusqlite::Result<()> {
            let connection = open(&path)?;
            let sql = format!("SELECT {} FROM {} ORDER BY {order}", table.columns, table.name);
            let mut statement = connection.prepare(&sql)?;
            let columns = statement.column_count();
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let values = (0..columns).map(|index| Ok(value(row.get_ref(index)?)));
                let values = values.collect::<rusqlite::Result<_>>()?;
                if sender.blocking_send(Ok(values)).is_err() {
                    break;
                }
            }
            Ok(())
        };
        if let Err(error) = read() {
            let _ = sender.blocking_send(Err(error));
        }
    });
    receiver
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Number(number),
        // No table has such a column.
        ValueRef::Real(number) => Value::Text(number.to_string()),
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    }
}

/// The values of the columns that only Postgres has.
fn extra_values(table: &Table, row: &[Value], owner: &str) -> Result<Vec<Value>, MigrateError> {
    let owner = || Value::Text(owner.to_owned());
    match table.name {
        "volumes" => {
            if let Some(Value::Text(name)) = row.get(1) {
                name.parse::<VolumeName>()
                    .map_err(|error| MigrateError::Value(error.to_string()))?;
            }
            Ok(vec![owner()])
        }
        "sessions" => {
            let Some(Value::Text(spec)) = row.get(4) else {
                return Err(MigrateError::Value("a session has no spec".to_owned()));
            };
            let of_spec = crate::postgres::spec_columns(spec).map_err(MigrateError::Value)?;
            let pinned = if of_spec.is_pinned { owner() } else { Value::Null };
            let volumes = of_spec.volumes.map_or(Value::Null, Value::Text);
            Ok(vec![
                Value::Text(of_spec.storage.to_owned()),
                volumes,
                pinned,
                owner(),
                Value::Number(1),
            ])
        }
        _ => Ok(Vec::new()),
    }
}

/// The number of rows, and a hash of all their values.
#[derive(Debug)]
pub(crate) struct RowHash {
    pub(crate) rows: u64,
    pub(crate) hash: Digest,
}

impl Default for RowHash {
    fn default() -> RowHash {
        RowHash { rows: 0, hash: Digest::of(b"") }
    }
}

impl RowHash {
    pub(crate) fn add(&mut self, row: &[Value]) {
        let mut bytes = self.hash.to_string().into_bytes();
        for value in row {
            let (kind, content) = match value {
                Value::Null => (0, Vec::new()),
                Value::Number(number) => (1, number.to_be_bytes().to_vec()),
                Value::Text(text) => (2, text.clone().into_bytes()),
                Value::Bytes(content) => (3, content.clone()),
            };
            bytes.push(kind);
            bytes.extend(u64::try_from(content.len()).unwrap_or(u64::MAX).to_be_bytes());
            bytes.extend(content);
        }
        self.hash = Digest::of(&bytes);
        self.rows += 1;
    }
}
