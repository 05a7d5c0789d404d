//! The tables and their migrations.

use super::pool::{Connection, Failed, Pool, Side};
use crate::{StoreError, postgres::Work};

/// "belljar" as a number: processes that start at the same time migrate one after another.
const LOCK: i64 = 0x0062_656c_6c6a_6172;

/// Step `n` migrates a database from version `n` to the next. A released step is never changed.
const MIGRATIONS: [&str; 3] = [FIRST, SNAPSHOT_NUMBERS, UNOWNED_SESSIONS];

/// Text is compared by its bytes, as in SQLite. JSON is stored as text, because Postgres refuses
/// some strings in its JSON types.
const FIRST: &str = r#"
    CREATE TABLE nodes (
        id TEXT COLLATE "C" PRIMARY KEY,
        epoch BIGINT NOT NULL,
        address TEXT NOT NULL,
        class TEXT NOT NULL,
        state TEXT NOT NULL,
        capacity_sessions BIGINT NOT NULL,
        capacity_memory BIGINT NOT NULL,
        used_sessions BIGINT NOT NULL DEFAULT 0,
        used_memory BIGINT NOT NULL DEFAULT 0,
        -- 0 with a lease that never ends.
        lease_ms BIGINT NOT NULL,
        lease_until TIMESTAMPTZ NOT NULL
    );
    CREATE SEQUENCE node_epochs;

    CREATE TABLE sessions (
        id TEXT COLLATE "C" PRIMARY KEY,
        tenant TEXT COLLATE "C" NOT NULL,
        key TEXT COLLATE "C",
        phase TEXT NOT NULL,
        spec TEXT NOT NULL,
        handle TEXT,
        created_ms BIGINT NOT NULL,
        used_ms BIGINT NOT NULL,
        expires_ms BIGINT NOT NULL,
        ended_ms BIGINT,
        ended_because TEXT,
        -- From the spec: TMPFS or BIND, and the volumes if it has any.
        storage TEXT NOT NULL,
        volumes TEXT,
        -- The node that may write this row, and how often the owner changed.
        owner TEXT COLLATE "C",
        epoch BIGINT NOT NULL,
        -- The only node that can have it.
        pinned TEXT COLLATE "C",
        -- The manifest of the snapshot from which it can go on.
        snapshot TEXT
    );
    CREATE INDEX sessions_by_tenant ON sessions (tenant, created_ms);
    CREATE INDEX sessions_by_owner ON sessions (owner)
        WHERE owner IS NOT NULL AND phase NOT IN ('stopped', 'failed');
    CREATE INDEX sessions_by_end ON sessions (ended_ms) WHERE ended_ms IS NOT NULL;
    CREATE UNIQUE INDEX sessions_by_key ON sessions (tenant, key)
        WHERE key IS NOT NULL AND phase NOT IN ('stopped', 'failed');
    CREATE INDEX sessions_by_any_key ON sessions (tenant, key) WHERE key IS NOT NULL;

    CREATE TABLE execs (
        session TEXT COLLATE "C" NOT NULL,
        id TEXT COLLATE "C" NOT NULL,
        number BIGINT NOT NULL,
        request TEXT NOT NULL,
        code BYTEA NOT NULL,
        accepted_ms BIGINT NOT NULL,
        ended_ms BIGINT,
        status TEXT,
        transcript BYTEA,
        PRIMARY KEY (session, id)
    );
    CREATE UNIQUE INDEX execs_by_number ON execs (session, number);

    CREATE TABLE datasets (
        session TEXT COLLATE "C" NOT NULL,
        name TEXT COLLATE "C" NOT NULL,
        status TEXT NOT NULL,
        reason TEXT,
        source TEXT COLLATE "C",
        sha256 TEXT,
        size BIGINT,
        updated_ms BIGINT NOT NULL,
        PRIMARY KEY (session, name)
    );

    CREATE TABLE volumes (
        tenant TEXT COLLATE "C" NOT NULL,
        name TEXT COLLATE "C" NOT NULL,
        id TEXT COLLATE "C" NOT NULL UNIQUE,
        size BIGINT NOT NULL,
        kind TEXT NOT NULL,
        created_ms BIGINT NOT NULL,
        -- making, ready or removing.
        state TEXT NOT NULL,
        -- Its files are on this node.
        node TEXT COLLATE "C" NOT NULL,
        PRIMARY KEY (tenant, name)
    );
    CREATE INDEX volumes_by_node ON volumes (node);

    CREATE TABLE keys (
        id TEXT COLLATE "C" PRIMARY KEY,
        name TEXT NOT NULL,
        tenant TEXT COLLATE "C" NOT NULL,
        hash BYTEA NOT NULL UNIQUE,
        limits TEXT NOT NULL,
        created_ms BIGINT NOT NULL,
        revoked_ms BIGINT
    );
    -- Each change of a key increments it.
    CREATE TABLE keys_version (version BIGINT NOT NULL);
    INSERT INTO keys_version VALUES (1);

    CREATE TABLE usage (
        tenant TEXT COLLATE "C" NOT NULL,
        day TEXT COLLATE "C" NOT NULL,
        sessions BIGINT NOT NULL DEFAULT 0,
        runs BIGINT NOT NULL DEFAULT 0,
        ok BIGINT NOT NULL DEFAULT 0,
        error BIGINT NOT NULL DEFAULT 0,
        timeout BIGINT NOT NULL DEFAULT 0,
        interrupted BIGINT NOT NULL DEFAULT 0,
        crashed BIGINT NOT NULL DEFAULT 0,
        oom BIGINT NOT NULL DEFAULT 0,
        cpu_us BIGINT NOT NULL DEFAULT 0,
        memory_mib_ms BIGINT NOT NULL DEFAULT 0,
        bytes_in BIGINT NOT NULL DEFAULT 0,
        bytes_out BIGINT NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant, day)
    );

    CREATE TABLE artifacts (
        -- In the order they were taken.
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id TEXT COLLATE "C" NOT NULL UNIQUE,
        tenant TEXT COLLATE "C" NOT NULL,
        session TEXT COLLATE "C" NOT NULL,
        exec TEXT COLLATE "C" NOT NULL,
        name TEXT NOT NULL,
        path TEXT COLLATE "C" NOT NULL,
        size BIGINT NOT NULL,
        mime TEXT NOT NULL,
        sha256 TEXT COLLATE "C" NOT NULL,
        created_ms BIGINT NOT NULL
    );
    -- A path can be longer than what an index takes.
    CREATE UNIQUE INDEX artifacts_by_exec ON artifacts (session, exec, sha256, md5(path));
    CREATE INDEX artifacts_by_tenant ON artifacts (tenant, number);
    CREATE INDEX artifacts_by_session ON artifacts (session, number);
    CREATE INDEX artifacts_by_content ON artifacts (tenant, sha256);
    CREATE INDEX artifacts_by_age ON artifacts (created_ms);

    -- The artifacts of a tenant together (session '') and of each session.
    CREATE TABLE artifact_totals (
        tenant TEXT COLLATE "C" NOT NULL,
        session TEXT COLLATE "C" NOT NULL,
        count BIGINT NOT NULL,
        bytes BIGINT NOT NULL,
        PRIMARY KEY (tenant, session)
    );
    CREATE FUNCTION count_added_artifact() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO artifact_totals AS t VALUES
            (new.tenant, '', 1, new.size), (new.tenant, new.session, 1, new.size)
        ON CONFLICT (tenant, session)
            DO UPDATE SET count = t.count + 1, bytes = t.bytes + excluded.bytes;
        RETURN NULL;
    END $$;
    CREATE TRIGGER artifact_added AFTER INSERT ON artifacts
        FOR EACH ROW EXECUTE FUNCTION count_added_artifact();
    CREATE FUNCTION count_removed_artifact() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE artifact_totals SET count = count - 1, bytes = bytes - old.size
            WHERE tenant = old.tenant AND session IN ('', old.session);
        DELETE FROM artifact_totals
            WHERE tenant = old.tenant AND session = old.session AND count = 0;
        RETURN NULL;
    END $$;
    CREATE TRIGGER artifact_removed AFTER DELETE ON artifacts
        FOR EACH ROW EXECUTE FUNCTION count_removed_artifact();

    CREATE TABLE secrets (
        name TEXT COLLATE "C" PRIMARY KEY,
        value BYTEA NOT NULL
    );

    -- What each key spent in its newest window. It may be lost with a crash of the database.
    CREATE UNLOGGED TABLE rates (
        key TEXT COLLATE "C" PRIMARY KEY,
        slot BIGINT NOT NULL,
        spent BIGINT NOT NULL
    );

    -- What each tenant uses on each node. Only that node writes the row.
    CREATE TABLE quotas (
        tenant TEXT COLLATE "C" NOT NULL,
        node TEXT COLLATE "C" NOT NULL,
        sessions BIGINT NOT NULL,
        memory BIGINT NOT NULL,
        PRIMARY KEY (tenant, node)
    );
    CREATE FUNCTION reserve_quota(
        of_tenant TEXT, on_node TEXT, new_sessions BIGINT, new_memory BIGINT,
        most_sessions BIGINT, most_memory BIGINT
    ) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
    DECLARE
        others RECORD;
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtextextended('quota ' || of_tenant, 0));
        SELECT coalesce(sum(sessions), 0) AS sessions, coalesce(sum(memory), 0) AS memory
            INTO others FROM quotas WHERE tenant = of_tenant AND node <> on_node;
        IF others.sessions + new_sessions > most_sessions
            OR others.memory + new_memory > most_memory THEN
            RETURN false;
        END IF;
        INSERT INTO quotas VALUES (of_tenant, on_node, new_sessions, new_memory)
            ON CONFLICT (tenant, node)
            DO UPDATE SET sessions = excluded.sessions, memory = excluded.memory;
        RETURN true;
    END $$;

    -- The tables that `belljar migrate` has copied.
    CREATE TABLE migrated (
        source TEXT COLLATE "C" NOT NULL,
        name TEXT COLLATE "C" NOT NULL,
        rows BIGINT NOT NULL,
        sha256 TEXT NOT NULL,
        PRIMARY KEY (source, name)
    );
"#;

/// The order of a session's snapshots: a late write does not replace a later one.
const SNAPSHOT_NUMBERS: &str =
    "ALTER TABLE sessions ADD COLUMN snapshot_number BIGINT NOT NULL DEFAULT 0";

/// The search for expired sessions, the number of sleeping ones, and tasks that one node does for
/// all.
const UNOWNED_SESSIONS: &str = r#"
    -- When a session without an owner expires. A column of its own, because each execution changes
    -- `expires_ms`, which would be slower with an index on it.
    ALTER TABLE sessions ADD COLUMN unowned_until BIGINT GENERATED ALWAYS AS
        (CASE WHEN owner IS NULL AND phase = 'hibernated' THEN expires_ms END) STORED;
    CREATE INDEX sessions_by_expiry ON sessions (unowned_until, id)
        WHERE unowned_until IS NOT NULL;
    CREATE INDEX sessions_asleep ON sessions (tenant) WHERE phase = 'hibernated';

    CREATE TABLE tasks (
        name TEXT COLLATE "C" PRIMARY KEY,
        -- When a node may begin it again.
        next TIMESTAMPTZ NOT NULL
    );
"#;

/// Creates or migrates the tables. A database of a newer version is not changed.
pub(super) async fn migrate(pool: &Pool) -> Result<(), StoreError> {
    let path = pool.url().to_string();
    pool.write_long(Side::Safe, move |connection| -> Work<'_, ()> {
        Box::pin(async move {
            connection.begin_long().await?;
            connection.query("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
            let found = version(connection).await?;
            let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
            if found > known {
                let path = path.into();
                return Err(Failed::Other(StoreError::Newer { path, found, known }));
            }
            for step in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
                connection.batch(step).await?;
            }
            if found < known {
                connection.execute("UPDATE belljar_schema SET version = $1", &[&known]).await?;
            }
            connection.commit().await
        })
    })
    .await
}

async fn version(connection: &mut Connection) -> Result<i64, Failed> {
    let exists = "SELECT to_regclass('belljar_schema') IS NOT NULL";
    if !connection.query_one(exists, &[]).await?.try_get::<_, bool>(0)? {
        connection
            .batch(
                "CREATE TABLE belljar_schema (version BIGINT NOT NULL);
                 INSERT INTO belljar_schema VALUES (0)",
            )
            .await?;
    }
    Ok(connection.query_one("SELECT version FROM belljar_schema", &[]).await?.try_get(0)?)
}
