//! The tables and their migrations, and the check that a file is ours and not damaged.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::database::BUSY_TIMEOUT;
use crate::StoreError;

/// The schema of a database.
pub(super) struct Schema {
    /// Identifies files with this schema, also for `file(1)`.
    pub(super) application_id: i32,
    /// Step `n` migrates a database from version `n` to the next. A released step is never changed.
    pub(super) migrations: &'static [&'static str],
    /// Adds the initial rows of a new database.
    pub(super) first_rows: fn(&Connection) -> rusqlite::Result<()>,
    /// The data that is lost if the file is lost, for error messages.
    pub(super) holds: &'static str,
}

/// The schema of [`SqliteStore`](super::SqliteStore).
pub(super) const STORE: Schema = Schema {
    // "bell"
    application_id: 0x6265_6c6c,
    migrations: &MIGRATIONS,
    first_rows: |connection| {
        let owner = format!("srv{}", &belljar_sys::process::random_name()[..12]);
        connection.execute("INSERT INTO meta (name, value) VALUES ('owner', ?1)", [owner])?;
        Ok(())
    },
    holds: "sessions, volumes, keys and usage",
};

/// The size of the page cache. SQLite takes a size in KiB as a negative number. Most writes change pages that were
/// changed a moment ago.
const CACHE_KIB: i64 = -8 * 1024;

/// Larger databases are not checked at every start, because it would take too long.
const CHECK_UP_TO_BYTES: u64 = 64 * 1024 * 1024;

const MIGRATIONS: [&str; 3] = [
    "
    CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT;

    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        key TEXT,
        phase TEXT NOT NULL,
        spec TEXT NOT NULL,
        -- How to find the sandbox again; written before anybody may use it.
        handle TEXT,
        created_ms INTEGER NOT NULL,
        used_ms INTEGER NOT NULL,
        expires_ms INTEGER NOT NULL,
        ended_ms INTEGER,
        ended_because TEXT
    ) STRICT;
    CREATE INDEX sessions_by_tenant ON sessions (tenant, created_ms);
    CREATE UNIQUE INDEX sessions_by_key ON sessions (tenant, key)
        WHERE key IS NOT NULL AND phase NOT IN ('stopped', 'failed');

    CREATE TABLE execs (
        session TEXT NOT NULL,
        id TEXT NOT NULL,
        -- In the order of acceptance, which is the order of execution.
        number INTEGER NOT NULL,
        request TEXT NOT NULL,
        code BLOB NOT NULL,
        accepted_ms INTEGER NOT NULL,
        ended_ms INTEGER,
        status TEXT,
        transcript BLOB,
        PRIMARY KEY (session, id)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX execs_by_number ON execs (session, number);

    CREATE TABLE keys (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        tenant TEXT NOT NULL,
        hash BLOB NOT NULL UNIQUE,
        limits TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        revoked_ms INTEGER
    ) STRICT;

    CREATE TABLE usage (
        tenant TEXT NOT NULL,
        day TEXT NOT NULL,
        sessions INTEGER NOT NULL DEFAULT 0,
        runs INTEGER NOT NULL DEFAULT 0,
        ok INTEGER NOT NULL DEFAULT 0,
        error INTEGER NOT NULL DEFAULT 0,
        timeout INTEGER NOT NULL DEFAULT 0,
        interrupted INTEGER NOT NULL DEFAULT 0,
        crashed INTEGER NOT NULL DEFAULT 0,
        oom INTEGER NOT NULL DEFAULT 0,
        cpu_us INTEGER NOT NULL DEFAULT 0,
        memory_mib_ms INTEGER NOT NULL DEFAULT 0,
        bytes_in INTEGER NOT NULL DEFAULT 0,
        bytes_out INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant, day)
    ) STRICT, WITHOUT ROWID;
",
    "
    CREATE TABLE datasets (
        session TEXT NOT NULL,
        -- Below /session/data.
        name TEXT NOT NULL,
        status TEXT NOT NULL,
        reason TEXT,
        -- What it was asked for by, if a source has it.
        source TEXT,
        sha256 TEXT,
        size INTEGER,
        updated_ms INTEGER NOT NULL,
        PRIMARY KEY (session, name)
    ) STRICT, WITHOUT ROWID;
",
    "
    CREATE TABLE volumes (
        tenant TEXT NOT NULL,
        name TEXT NOT NULL,
        -- Its directory on disk.
        id TEXT NOT NULL UNIQUE,
        size INTEGER NOT NULL,
        kind TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        -- making, ready or removing: only what is ready is there.
        state TEXT NOT NULL,
        PRIMARY KEY (tenant, name)
    ) STRICT, WITHOUT ROWID;
",
];

impl Schema {
    /// Creates a new database under another name and moves it to `path` when it is complete. So an empty or broken file
    /// at `path` was damaged, and is not replaced. If several processes start at the same time, one creates the
    /// database and the others use it.
    pub(super) fn create_if_absent(&self, path: &Path) -> Result<(), StoreError> {
        if path.exists() {
            return Ok(());
        }
        let fresh = path.with_extension(format!("db.{}", belljar_sys::process::random_name()));
        let made =
            self.create(&fresh, path).and_then(|()| match std::fs::hard_link(&fresh, path) {
                Err(cause) if cause.kind() != std::io::ErrorKind::AlreadyExists => {
                    Err(StoreError::StateDir { path: path.into(), cause })
                }
                _ => Ok(()),
            });
        let _ = std::fs::remove_file(&fresh);
        made
    }

    fn create(&self, fresh: &Path, path: &Path) -> Result<(), StoreError> {
        let opened =
            |cause: rusqlite::Error| StoreError::Open { path: path.into(), cause: cause.into() };
        let connection = Connection::open(fresh).map_err(opened)?;
        let make = || {
            connection.pragma_update(None, "application_id", self.application_id)?;
            self.migrate(&connection, 0)?;
            (self.first_rows)(&connection)
        };
        make().map_err(opened)?;
        // The database holds users' code. The files that SQLite creates beside it get the same mode.
        std::fs::set_permissions(fresh, std::fs::Permissions::from_mode(0o600))
            .map_err(|cause| StoreError::StateDir { path: path.into(), cause })?;
        connection.close().map_err(|(_, cause)| opened(cause))
    }

    pub(super) fn open(&self, path: &Path) -> Result<Connection, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)
            .map_err(|cause| StoreError::Open { path: path.into(), cause: cause.into() })?;
        let version =
            self.inspect(&connection, path).map_err(|cause| self.diagnose(path, cause))??;
        let prepare = || {
            connection.busy_timeout(BUSY_TIMEOUT)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "cache_size", CACHE_KIB)?;
            // A separate thread makes the checkpoints of the WAL.
            connection.pragma_update(None, "wal_autocheckpoint", 0)?;
            self.migrate(&connection, version)
        };
        prepare().map_err(|cause| self.diagnose(path, cause))?;
        Ok(connection)
    }

    /// Returns the version of the database. Fails if it is damaged or has another schema.
    fn inspect(
        &self,
        connection: &Connection,
        path: &Path,
    ) -> rusqlite::Result<Result<i64, StoreError>> {
        let damaged = |detail: String| {
            Ok(Err(StoreError::Damaged { path: path.into(), detail, holds: self.holds }))
        };
        let number =
            |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        if number("application_id")? != i64::from(self.application_id) {
            return damaged("it is not a database of belljar".into());
        }
        let known = i64::try_from(self.migrations.len()).unwrap_or(i64::MAX);
        let found = number("user_version")?;
        if found > known {
            return Ok(Err(StoreError::Newer { path: path.into(), found, known }));
        }
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() <= CHECK_UP_TO_BYTES) {
            let verdict: String =
                connection.pragma_query_value(None, "quick_check", |row| row.get(0))?;
            if verdict != "ok" {
                return damaged(verdict);
            }
        }
        Ok(Ok(found))
    }

    fn migrate(&self, connection: &Connection, from: i64) -> rusqlite::Result<()> {
        for (index, step) in
            self.migrations.iter().enumerate().skip(usize::try_from(from).unwrap_or(0))
        {
            let version = index + 1;
            connection
                .execute_batch(&format!("BEGIN; {step} PRAGMA user_version = {version}; COMMIT"))?;
        }
        Ok(())
    }

    fn diagnose(&self, path: &Path, cause: rusqlite::Error) -> StoreError {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match cause.sqlite_error_code() {
            Some(DatabaseCorrupt | NotADatabase) => StoreError::Damaged {
                path: path.into(),
                detail: cause.to_string(),
                holds: self.holds,
            },
            _ => StoreError::Open { path: path.into(), cause: cause.into() },
        }
    }
}
