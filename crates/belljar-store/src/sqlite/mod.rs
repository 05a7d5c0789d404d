//! What must not be lost: sessions, executions, datasets, volumes, keys, usage. A [`Database`] with tables.

mod database;
mod datasets;
mod execs;
mod keys;
mod lock;
mod schema;
mod sessions;
mod usage;
mod volumes;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;

pub(crate) use database::Database;
pub use database::Durability;
pub(crate) use execs::status_name;
pub use execs::{ExecFilter, ExecRow, FinishedExec, Page};
pub use keys::{KeyLimits, KeyRow};
pub use lock::StateLock;
pub(crate) use schema::Schema;
pub use sessions::{SessionFilter, SessionRow};
pub use usage::{UsageDelta, UsageRow};
pub(crate) use volumes::{Entered, GivenUp};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("failed to open the database `{path}`")]
    Open {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
    #[error(
        "the database `{path}` is damaged ({detail}); restore it from a copy, or move it away to \
         begin anew without the {holds} in it"
    )]
    Damaged { path: PathBuf, detail: String, holds: &'static str },
    #[error(
        "the database `{path}` was written by a newer belljar (schema {found}, this one knows \
         {known})"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("failed to write to the database")]
    Write(#[source] Arc<rusqlite::Error>),
    #[error("failed to read from the database")]
    Read(#[source] rusqlite::Error),
    #[error("the database is closed")]
    Closed,
    #[error("failed to use the state directory `{path}`")]
    StateDir {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error(
        "another belljar server{holder} uses the state directory `{path}`; stop it first, or give this one another with BELLJAR_STATE_DIR"
    )]
    Locked { path: PathBuf, holder: String },
}

impl StoreError {
    /// Whether there is no room on the disk.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            StoreError::Write(cause) => matches!(
                cause.sqlite_error_code(),
                Some(rusqlite::ErrorCode::DiskFull | rusqlite::ErrorCode::SystemIoFailure)
            ),
            _ => false,
        }
    }
}

impl StoreError {
    /// Whether somebody else holds the database just now.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
        let code = match self {
            StoreError::Write(cause) => cause.sqlite_error_code(),
            StoreError::Read(cause) => cause.sqlite_error_code(),
            _ => None,
        };
        matches!(code, Some(DatabaseBusy | DatabaseLocked))
    }
}

/// A handle of the server's database; cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    database: Database,
}

impl Store {
    /// Opens the database, making or migrating it as needed. What is there and is not ours, or is
    /// broken, is left alone and reported.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        Ok(Store { database: Database::open(path, &schema::STORE)? })
    }

    /// Runs `job` in a transaction and returns when that is committed.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.database.write(durability, job).await
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.database.read(query).await
    }

    /// Whether the database can be written to, as far as we know.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.write(Durability::Process, |connection| {
            connection.execute("UPDATE meta SET value = value WHERE name = 'owner'", [])
        })
        .await
        .map(|_| ())
    }

    /// The name under which our sandboxes are known across restarts.
    pub fn owner(&self) -> Result<String, StoreError> {
        self.database.read_now(|reader| {
            reader.query_row("SELECT value FROM meta WHERE name = 'owner'", [], |row| row.get(0))
        })
    }

    /// Writes what is waiting and closes the file. Whatever comes later fails.
    pub async fn close(&self) {
        self.database.close().await;
    }
}

/// A JSON column.
pub(crate) struct Json<T>(pub(crate) T);

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
        let store = Store::open(&directory.path().join("belljar.db")).unwrap();
        let owner = store.owner().unwrap();
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
        assert!(matches!(store.owner(), Err(StoreError::Closed)));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        let again = Store::open(&directory.path().join("belljar.db")).unwrap();
        assert_eq!(again.owner().unwrap(), owner);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_is_written_all_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        let store = Store::open(&path).unwrap();
        let add = |name: &'static str, durability| {
            store.write(durability, move |c| {
                c.execute("INSERT INTO meta (name, value) VALUES (?1, '')", [name])
            })
        };
        // By itself, in company, and on the way out.
        add("a", Durability::Soon).await.unwrap();
        let (soon, now) = tokio::join!(add("b", Durability::Soon), add("c", Durability::Process));
        soon.unwrap();
        now.unwrap();
        let (last, ()) = tokio::join!(add("d", Durability::Soon), store.close());
        last.unwrap();
        let count = |c: &Connection| {
            c.query_row("SELECT count(*) FROM meta", [], |row| row.get::<_, i64>(0))
        };
        let again = Store::open(&path).unwrap();
        assert_eq!(again.read(move |c| count(c)).await.unwrap(), 5);
    }

    #[tokio::test]
    async fn who_cannot_write_is_told_why() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        let store = Store::open(&path).unwrap();
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = crate::error::in_full(&store.check().await.unwrap_err());
        assert!(error.contains("database is locked"), "{error}");
        other.execute_batch("ROLLBACK").unwrap();
        store.check().await.unwrap();
    }

    /// Work that takes all of tokio's blocking threads is no reason to wait for the database.
    #[test]
    fn it_needs_no_thread_of_the_runtimes() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_time()
            .build()
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("belljar.db")).unwrap();
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
        let store = Store::open(&directory.path().join("belljar.db")).unwrap();
        for _ in 0..10 {
            let failed = store.read::<()>(|_| panic!("as it should")).await;
            assert!(matches!(failed, Err(StoreError::Closed)), "{failed:?}");
        }
        store.read(|c| c.query_row("SELECT 1", [], |_| Ok(()))).await.unwrap();
    }

    /// Whoever finds it locked for long is told so soon; the first to meet it waits longer.
    #[tokio::test]
    async fn a_database_that_stays_locked_is_told_soon() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        let store = Store::open(&path).unwrap();
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
                std::thread::spawn(move || Store::open(&path).unwrap().owner().unwrap())
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
    fn damage_is_reported_and_nothing_is_touched() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        let store = Store::open(&path).unwrap();
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
            let error = Store::open(&path).unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
            assert_eq!(std::fs::read(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn a_database_of_the_future_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        drop(Store::open(&path).unwrap());
        Connection::open(&path).unwrap().pragma_update(None, "user_version", 999).unwrap();
        assert!(matches!(Store::open(&path), Err(StoreError::Newer { found: 999, .. })));
    }
}
