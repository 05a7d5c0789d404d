//! The store in SQLite: a [`Database`] with tables.

mod artifacts;
mod database;
mod datasets;
mod execs;
mod keys;
mod schema;
mod sessions;
mod usage;
mod volumes;

use std::path::Path;

use async_trait::async_trait;
use rusqlite::Connection;

pub use artifacts::SqliteCatalog;
use database::Database;
use volumes::RunVolumes;

use crate::lock_unpoisoned as lock;
use crate::{BackendError, BackendFailure, Durability, Store, StoreError};

/// The [`Store`] in a SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    database: Database,
    owner: String,
    runs: RunVolumes,
}

impl SqliteStore {
    /// Opens the file, creating or migrating it as needed. A file that is damaged, or not a store,
    /// is not changed.
    pub fn open(path: &Path) -> Result<SqliteStore, StoreError> {
        let database = Database::open(path, &schema::STORE)?;
        let owner = database.read_now(|reader| {
            reader.query_row("SELECT value FROM meta WHERE name = 'owner'", [], |row| row.get(0))
        })?;
        Ok(SqliteStore { database, owner, runs: RunVolumes::default() })
    }

    async fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.database.write(durability, job).await
    }

    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.database.read(query).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn owner(&self) -> &str {
        &self.owner
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.write(Durability::Process, |connection| {
            connection.execute("UPDATE meta SET value = value WHERE name = 'owner'", [])
        })
        .await
        .map(|_| ())
    }

    async fn close(&self) {
        self.database.close().await;
    }
}

impl From<rusqlite::Error> for BackendError {
    fn from(error: rusqlite::Error) -> BackendError {
        BackendError::new(failure(&error), error)
    }
}

fn failure(error: &rusqlite::Error) -> BackendFailure {
    use rusqlite::ErrorCode::{
        ConstraintViolation, DatabaseBusy, DatabaseLocked, DiskFull, SystemIoFailure,
    };
    match error.sqlite_error_code() {
        Some(DiskFull | SystemIoFailure) => BackendFailure::Full,
        Some(DatabaseBusy | DatabaseLocked) => BackendFailure::Busy,
        Some(ConstraintViolation) => BackendFailure::Conflict,
        _ => BackendFailure::Other,
    }
}

/// A JSON column.
struct Json<T>(T);

impl<T: serde::Serialize> rusqlite::ToSql for Json<T> {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        let text = serde_json::to_string(&self.0)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        Ok(text.into())
    }
}

impl<T: serde::de::DeserializeOwned> rusqlite::types::FromSql for Json<T> {
    fn column_result(value: rusqlite::types::ValueRef<'_>) -> rusqlite::types::FromSqlResult<Self> {
        let text = value.as_str()?;
        serde_json::from_str(text).map(Json).map_err(rusqlite::types::FromSqlError::other)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_failed_job_fails_alone() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&directory.path().join("belljar.db")).unwrap();
        let owner = store.owner().to_owned();
        let bad =
            store.write(Durability::Process, |c| c.execute("INSERT INTO nowhere VALUES (1)", []));
        let good = store.write(Durability::Power, |c| {
            c.execute("INSERT INTO meta (name, value) VALUES ('a', 'b')", [])
        });
        let (bad, good) = tokio::join!(bad, good);
        assert!(matches!(bad, Err(StoreError::Write(_))));
        assert_eq!(good.unwrap(), 1);
        store.close().await;
        assert!(matches!(store.check().await, Err(StoreError::Closed)));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        let again = SqliteStore::open(&directory.path().join("belljar.db")).unwrap();
        assert_eq!(again.owner(), owner);
    }

    #[tokio::test]
    async fn a_write_with_durability_soon_is_done() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        let store = SqliteStore::open(&path).unwrap();
        let add = |name: &'static str, durability| {
            store.write(durability, move |c| {
                c.execute("INSERT INTO meta (name, value) VALUES (?1, '')", [name])
            })
        };
        // One write alone, two writes together, and writes while the store is closed.
        add("a", Durability::Soon).await.unwrap();
        let (soon, now) = tokio::join!(add("b", Durability::Soon), add("c", Durability::Process));
        soon.unwrap();
        now.unwrap();
        let (last, ()) = tokio::join!(add("d", Durability::Soon), store.close());
        last.unwrap();
        let count = |c: &Connection| {
            c.query_row("SELECT count(*) FROM meta", [], |row| row.get::<_, i64>(0))
        };
        let again = SqliteStore::open(&path).unwrap();
        assert_eq!(again.read(move |c| count(c)).await.unwrap(), 5);
    }

    #[tokio::test]
    async fn the_error_of_a_write_names_its_cause() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        let store = SqliteStore::open(&path).unwrap();
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = store.check().await.unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("database is locked"), "{cause}");
        other.execute_batch("ROLLBACK").unwrap();
        store.check().await.unwrap();
    }

    /// Work that occupies all blocking threads of tokio does not delay the database.
    #[test]
    fn it_needs_no_thread_of_the_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_time()
            .build()
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&directory.path().join("belljar.db")).unwrap();
        runtime.block_on(async {
            let (release, held) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || held.recv().is_ok());
            let work = async {
                store
                    .write(Durability::Power, |c| c.execute("DELETE FROM keys", []))
                    .await
                    .unwrap();
                store.check().await.unwrap();
                store.read(|c| c.query_row("SELECT 7", [], |row| row.get::<_, i64>(0))).await
            };
            let answer = tokio::time::timeout(Duration::from_secs(10), work).await;
            assert_eq!(answer.expect("threads of its own").unwrap(), 7);
            drop(release);
            busy.await.unwrap();
            store.close().await;
        });
    }

    #[tokio::test]
    async fn a_query_that_panics_fails_alone() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&directory.path().join("belljar.db")).unwrap();
        for _ in 0..10 {
            let failed = store.read::<()>(|_| panic!("as it should")).await;
            assert!(matches!(failed, Err(StoreError::Closed)), "{failed:?}");
        }
        store.read(|c| c.query_row("SELECT 1", [], |_| Ok(()))).await.unwrap();
    }

    /// While the database stays locked, the first write waits for a while and the next ones fail
    /// soon.
    #[tokio::test]
    async fn writes_to_a_database_that_stays_locked_fail_soon() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        let store = SqliteStore::open(&path).unwrap();
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert!(store.check().await.unwrap_err().is_busy());
        let begun = std::time::Instant::now();
        assert!(store.check().await.unwrap_err().is_busy());
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        other.execute_batch("ROLLBACK").unwrap();
        store.check().await.unwrap();
    }

    #[test]
    fn several_at_once_make_one_database() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        let openers: Vec<_> = (0..8)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || SqliteStore::open(&path).unwrap().owner().to_owned())
            })
            .collect();
        let owners: std::collections::HashSet<String> =
            openers.into_iter().map(|opener| opener.join().unwrap()).collect();
        assert_eq!(owners.len(), 1, "{owners:?}");
        let left = std::fs::read_dir(directory.path()).unwrap().flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        let ours = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("belljar.db.");
        assert!(!left.iter().any(ours), "{left:?}");
    }

    #[test]
    fn damage_is_reported_and_nothing_is_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        let store = SqliteStore::open(&path).unwrap();
        drop(store);
        std::thread::sleep(Duration::from_millis(50));
        let whole = std::fs::read(&path).unwrap();
        let mut scratched = whole.clone();
        scratched[4096..].fill(0xff);
        for damaged in [
            &b""[..],
            b"SQLite",
            b"not a database at all, but long enough to be one",
            &whole[..whole.len() / 2],
            &scratched,
        ] {
            for extra in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{}{extra}", path.display()));
            }
            std::fs::write(&path, damaged).unwrap();
            let error = SqliteStore::open(&path).unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
            assert_eq!(std::fs::read(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn a_database_of_a_newer_version_is_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        drop(SqliteStore::open(&path).unwrap());
        Connection::open(&path).unwrap().pragma_update(None, "user_version", 999).unwrap();
        assert!(matches!(SqliteStore::open(&path), Err(StoreError::Newer { found: 999, .. })));
    }
}
