//! The table of sessions.

use async_trait::async_trait;
use belljar_runtime::Handle;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{Json, SqliteStore};
use crate::{
    Durability, Phase, SessionFilter, SessionRecords, SessionRow, SessionSpec, StoreError,
};

const COLUMNS: &str = "id, tenant, key, phase, spec, handle, created_ms, used_ms, expires_ms, \
                       ended_ms, ended_because";

/// The number of the last execution. A count would be too low, because old executions are deleted.
const EXECS: &str = "(SELECT coalesce(max(number), 0) FROM execs WHERE session = sessions.id)";

#[async_trait]
impl SessionRecords for SqliteStore {
    async fn put_session(&self, row: SessionRow, durability: Durability) -> Result<(), StoreError> {
        self.write(durability, move |connection| put(connection, &row)).await
    }

    async fn set_phase(
        &self,
        id: &str,
        phase: Phase,
        ended: Option<(i64, String)>,
        durability: Durability,
    ) -> Result<(), StoreError> {
        let id = id.to_owned();
        let (at, because) = ended.unzip();
        self.write(durability, move |connection| {
            connection
                .prepare_cached(
                    "UPDATE sessions SET phase = ?2, ended_ms = ?3, ended_because = ?4,
                         handle = CASE WHEN ?3 IS NULL THEN handle END
                     WHERE id = ?1",
                )?
                .execute(params![id, phase.name(), at, because])
        })
        .await
        .map(|_| ())
    }

    async fn set_sandbox(
        &self,
        id: &str,
        phase: Phase,
        handle: Option<Handle>,
        durability: Durability,
    ) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.write(durability, move |connection| {
            connection
                .prepare_cached("UPDATE sessions SET phase = ?2, handle = ?3 WHERE id = ?1")?
                .execute(params![id, phase.name(), handle.as_ref().map(Json)])
        })
        .await
        .map(|_| ())
    }

    async fn set_expiry(&self, id: &str, used_ms: i64, expires_ms: i64) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.write(Durability::Process, move |connection| {
            connection
                .prepare_cached("UPDATE sessions SET used_ms = ?2, expires_ms = ?3 WHERE id = ?1")?
                .execute(params![id, used_ms, expires_ms])
        })
        .await
        .map(|_| ())
    }

    async fn session(&self, id: &str) -> Result<Option<SessionRow>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| {
            connection
                .prepare_cached(&format!("SELECT {COLUMNS}, {EXECS} FROM sessions WHERE id = ?1"))?
                .query_row([id], from_row)
                .optional()
        })
        .await
    }

    async fn session_by_key(
        &self,
        tenant: &str,
        key: &str,
    ) -> Result<Option<SessionRow>, StoreError> {
        let (tenant, key) = (tenant.to_owned(), key.to_owned());
        self.read(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS}, {EXECS} FROM sessions WHERE tenant = ?1 AND key = ?2
                     ORDER BY created_ms DESC, id DESC LIMIT 1"
                ))?
                .query_row([tenant, key], from_row)
                .optional()
        })
        .await
    }

    async fn sessions(&self, filter: SessionFilter) -> Result<Vec<SessionRow>, StoreError> {
        self.read(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS}, {EXECS} FROM sessions
                     WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR phase = ?2)
                       AND (?3 IS NULL OR key = ?3)
                       AND (?4 IS NULL OR (created_ms, id) <
                            (SELECT created_ms, id FROM sessions WHERE id = ?4))
                     ORDER BY created_ms DESC, id DESC LIMIT ?5"
                ))?
                .query_map(
                    params![
                        filter.tenant,
                        filter.phase.map(Phase::name),
                        filter.key,
                        filter.before,
                        filter.limit
                    ],
                    from_row,
                )?
                .collect()
        })
        .await
    }

    async fn unended_sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        self.read(|connection| {
            connection
                .prepare(&format!(
                    "SELECT {COLUMNS}, {EXECS} FROM sessions WHERE phase NOT IN ('stopped', 'failed')"
                ))?
                .query_map([], from_row)?
                .collect()
        })
        .await
    }

    async fn sessions_to_remove(
        &self,
        ended_before_ms: i64,
    ) -> Result<Vec<SessionRow>, StoreError> {
        self.read(move |connection| {
            connection
                .prepare(&format!(
                    "SELECT {COLUMNS}, {EXECS} FROM sessions
                     WHERE ended_ms < ?1 AND spec ->> 'storage' = 'BIND'
                       AND phase IN ('stopped', 'failed')
                     ORDER BY ended_ms LIMIT 1000"
                ))?
                .query_map([ended_before_ms], from_row)?
                .collect()
        })
        .await
    }

    async fn forget_session(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.write(Durability::Power, move |connection| {
            let forgotten = connection.execute(
                "DELETE FROM sessions WHERE id = ?1 AND phase IN ('stopped', 'failed')",
                [&id],
            )?;
            if forgotten > 0 {
                for table in ["execs", "datasets"] {
                    connection
                        .execute(&format!("DELETE FROM {table} WHERE session = ?1"), [&id])?;
                }
            }
            Ok(forgotten > 0)
        })
        .await
    }

    async fn prune_sessions(&self, ended_before_ms: i64) -> Result<usize, StoreError> {
        self.write(Durability::Process, move |connection| {
            for table in ["execs", "datasets"] {
                connection.execute(
                    &format!(
                        "DELETE FROM {table} WHERE session IN (SELECT id FROM sessions
                             WHERE ended_ms < ?1 AND spec ->> 'storage' = 'TMPFS')"
                    ),
                    [ended_before_ms],
                )?;
            }
            connection.execute(
                "DELETE FROM sessions WHERE ended_ms < ?1 AND spec ->> 'storage' = 'TMPFS'",
                [ended_before_ms],
            )
        })
        .await
    }
}

fn put(connection: &Connection, row: &SessionRow) -> rusqlite::Result<()> {
    connection
        .prepare_cached(&format!(
            "INSERT INTO sessions ({COLUMNS})
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
             ON CONFLICT (id) DO UPDATE SET phase = excluded.phase, spec = excluded.spec,
                 handle = excluded.handle, used_ms = excluded.used_ms, expires_ms = excluded.expires_ms,
                 ended_ms = excluded.ended_ms, ended_because = excluded.ended_because"
        ))?
        .execute(params![
            row.id,
            row.tenant,
            row.key,
            row.phase.name(),
            Json(&row.spec),
            row.handle.as_ref().map(Json),
            row.created_ms,
            row.used_ms,
            row.expires_ms,
            row.ended_ms,
            row.ended_because,
        ])
        .map(|_| ())
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    let phase: String = row.get(3)?;
    Ok(SessionRow {
        id: row.get(0)?,
        tenant: row.get(1)?,
        key: row.get(2)?,
        phase: Phase::parse(&phase).ok_or_else(|| {
            rusqlite::Error::FromSqlConversionFailure(
                3,
                rusqlite::types::Type::Text,
                format!("`{phase}` is not a phase of a session").into(),
            )
        })?,
        spec: row.get::<_, Json<SessionSpec>>(4)?.0,
        handle: row.get::<_, Option<Json<Handle>>>(5)?.map(|json| json.0),
        created_ms: row.get(6)?,
        used_ms: row.get(7)?,
        expires_ms: row.get(8)?,
        ended_ms: row.get(9)?,
        ended_because: row.get(10)?,
        execs: row.get(11)?,
    })
}
