//! The tables, how they came to be, and whether a file is ours and whole.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::{BUSY_TIMEOUT, StoreError};

/// "bell", so that `file` and we can tell the database from any other.
const APPLICATION_ID: i32 = 0x6265_6c6c;

/// Pages kept in memory, in KiB, which SQLite writes as a negative number: what is written is mostly
/// what was written a moment ago.
const CACHE_KIB: i64 = -8 * 1024;

/// Larger databases are not read through at every start.
const CHECK_UP_TO_BYTES: u64 = 64 * 1024 * 1024;

/// Each step brings a database from its index to the next; none is ever changed once released.
const MIGRATIONS: [&str; 1] = ["
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
"];

/// Makes a fresh database beside its final place and moves it there whole: a file that is there is
/// never half-made, so an empty or broken one was damaged and is not ours to replace. Of several
/// processes that begin at the same time, one makes the database and the others use that.
pub(super) fn create_if_absent(path: &Path) -> Result<(), StoreError> {
    if path.exists() {
        return Ok(());
    }
    let fresh = path.with_extension(format!("db.{}", belljar_sys::process::random_name()));
    let made = create(&fresh, path).and_then(|()| match std::fs::hard_link(&fresh, path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(StoreError::StateDir { path: path.into(), cause })
        }
        _ => Ok(()),
    });
    let _ = std::fs::remove_file(&fresh);
    made
}

fn create(fresh: &Path, path: &Path) -> Result<(), StoreError> {
    let opened = |cause| StoreError::Open { path: path.into(), cause };
    let connection = Connection::open(fresh).map_err(opened)?;
    let make = || {
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        migrate(&connection, 0)?;
        let owner = format!("srv{}", &belljar_sys::process::random_name()[..12]);
        connection.execute("INSERT INTO meta (name, value) VALUES ('owner', ?1)", [owner])
    };
    make().map_err(opened)?;
    // It holds people's code. The files that SQLite puts beside it get the same mode.
    std::fs::set_permissions(fresh, std::fs::Permissions::from_mode(0o600))
        .map_err(|cause| StoreError::StateDir { path: path.into(), cause })?;
    connection.close().map_err(|(_, cause)| opened(cause))
}

pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)
        .map_err(|cause| StoreError::Open { path: path.into(), cause })?;
    let version = inspect(&connection, path).map_err(|cause| diagnose(path, cause))??;
    let prepare = || {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "cache_size", CACHE_KIB)?;
        // A thread of its own does that.
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        migrate(&connection, version)
    };
    prepare().map_err(|cause| diagnose(path, cause))?;
    Ok(connection)
}

/// The version of a database that is ours and whole.
fn inspect(connection: &Connection, path: &Path) -> rusqlite::Result<Result<i64, StoreError>> {
    let damaged = |detail: String| Ok(Err(StoreError::Damaged { path: path.into(), detail }));
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    if number("application_id")? != i64::from(APPLICATION_ID) {
        return damaged("it is not a database of belljar's".into());
    }
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
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

fn migrate(connection: &Connection, from: i64) -> rusqlite::Result<()> {
    for (index, step) in MIGRATIONS.iter().enumerate().skip(usize::try_from(from).unwrap_or(0)) {
        let version = index + 1;
        connection
            .execute_batch(&format!("BEGIN; {step} PRAGMA user_version = {version}; COMMIT"))?;
    }
    Ok(())
}

fn diagnose(path: &Path, cause: rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    match cause.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => {
            StoreError::Damaged { path: path.into(), detail: cause.to_string() }
        }
        _ => StoreError::Open { path: path.into(), cause },
    }
}
