//! The table of sessions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belljar_runtime::Handle;
use tokio_postgres::Row;

use super::pool::{Failed, Side, Work};
use super::{Node, PostgresStore, from_json, storable, to_json, unsigned};
use crate::{
    Durability, Phase, SessionFilter, SessionRecords, SessionRow, SessionSpec, Storage, StoreError,
    lock_unpoisoned,
};

/// The columns of a [`SessionRow`].
pub(super) const COLUMNS: &str = "id, tenant, key, phase, spec, handle, created_ms, used_ms, \
     expires_ms, ended_ms, ended_because, \
     (SELECT coalesce(max(number), 0) FROM execs WHERE session = sessions.id)";

/// Adds a session of a node that is not lost, or changes one that it owns. A session that has ended
/// can be started again by the node that has its files.
const PUT: &str = "
    INSERT INTO sessions (id, tenant, key, phase, spec, handle, created_ms, used_ms, expires_ms,
        ended_ms, ended_because, storage, volumes, pinned, owner, epoch)
    SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::bigint, $8::bigint,
        $9::bigint, $10::bigint, $11::text, $12::text, $13::text, $14::text, $15::text, 1
        FROM nodes
        WHERE nodes.id = $15 AND nodes.epoch = $16 AND nodes.state IN ('ready', 'draining')
    ON CONFLICT (id) DO UPDATE SET phase = excluded.phase, spec = excluded.spec,
        handle = excluded.handle, used_ms = excluded.used_ms, expires_ms = excluded.expires_ms,
        ended_ms = excluded.ended_ms, ended_because = excluded.ended_because,
        storage = excluded.storage, volumes = excluded.volumes, pinned = excluded.pinned,
        owner = excluded.owner,
        epoch = sessions.epoch + CASE WHEN sessions.owner = excluded.owner THEN 0 ELSE 1 END
    WHERE (sessions.owner = excluded.owner AND ($17::bigint IS NULL OR sessions.epoch = $17))
        OR (sessions.owner IS NULL AND sessions.phase IN ('stopped', 'failed')
            AND (sessions.pinned IS NULL OR sessions.pinned = excluded.owner))
    RETURNING epoch";

const ENDED: &str = "phase IN ('stopped', 'failed')";

/// How often the database is asked what became of a doubtful session.
const DOUBT_PACE: Duration = Duration::from_secs(1);

#[async_trait]
impl SessionRecords for PostgresStore {
    /// The row survives a power cut with any durability, because it contains the owner.
    async fn put_session(&self, row: SessionRow, _: Durability) -> Result<(), StoreError> {
        let (id, node) = (row.id.clone(), Arc::clone(&self.node));
        let known = node.epoch_of(&id);
        lock_unpoisoned(&self.doubtful).remove(&id);
        let put = self
            .pool
            .write(Side::Safe, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let handle = row.handle.as_ref().map(to_json).transpose()?;
                    let volumes = (!row.spec.volumes.is_empty()).then_some(&row.spec.volumes);
                    let volumes = volumes.map(to_json).transpose()?;
                    let stored = connection
                        .query_opt(
                            PUT,
                            &[
                                &row.id,
                                &row.tenant,
                                &row.key,
                                &row.phase.name(),
                                &to_json(&row.spec)?,
                                &handle,
                                &row.created_ms,
                                &row.used_ms,
                                &row.expires_ms,
                                &row.ended_ms,
                                &row.ended_because.map(storable),
                                &storage_name(row.spec.storage),
                                &volumes,
                                &is_pinned(&row.spec).then_some(&node.id),
                                &node.id,
                                &node.epoch(),
                                &known,
                            ],
                        )
                        .await?
                        .ok_or_else(|| Failed::Fenced(row.id.clone()))?;
                    node.owns(&row.id, stored.try_get(0)?);
                    Ok(())
                })
            })
            .await;
        if matches!(put, Err(StoreError::Unavailable(_))) && known.is_none() {
            self.end_if_stored(id);
        }
        put
    }

    /// The phase survives a power cut with any durability.
    async fn set_phase(
        &self,
        id: &str,
        phase: Phase,
        ended: Option<(i64, String)>,
        _: Durability,
    ) -> Result<(), StoreError> {
        let (id, node) = (id.to_owned(), Arc::clone(&self.node));
        let (at, because) = ended.unzip();
        let because = because.map(storable);
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let epoch = node.epoch_or_none(&id);
                    let changed = connection
                        .execute(
                            "UPDATE sessions SET phase = $4, ended_ms = $5, ended_because = $6,
                                 handle = CASE WHEN $5::bigint IS NULL THEN handle END
                             WHERE id = $1 AND owner = $2 AND epoch = $3",
                            &[&id, &node.id, &epoch, &phase.name(), &at, &because],
                        )
                        .await?;
                    owned(changed, &node, &id)
                })
            })
            .await
    }

    async fn set_sandbox(
        &self,
        id: &str,
        phase: Phase,
        handle: Option<Handle>,
        _: Durability,
    ) -> Result<(), StoreError> {
        let (id, node) = (id.to_owned(), Arc::clone(&self.node));
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let handle = handle.as_ref().map(to_json).transpose()?;
                    let epoch = node.epoch_or_none(&id);
                    let changed = connection
                        .execute(
                            "UPDATE sessions SET phase = $4, handle = $5
                             WHERE id = $1 AND owner = $2 AND epoch = $3",
                            &[&id, &node.id, &epoch, &phase.name(), &handle],
                        )
                        .await?;
                    owned(changed, &node, &id)
                })
            })
            .await
    }

    async fn set_expiry(&self, id: &str, used_ms: i64, expires_ms: i64) -> Result<(), StoreError> {
        let (id, node) = (id.to_owned(), Arc::clone(&self.node));
        self.pool
            .write(Side::Quick, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let epoch = node.epoch_or_none(&id);
                    let changed = connection
                        .execute(
                            "UPDATE sessions SET used_ms = $4, expires_ms = $5
                             WHERE id = $1 AND owner = $2 AND epoch = $3",
                            &[&id, &node.id, &epoch, &used_ms, &expires_ms],
                        )
                        .await?;
                    owned(changed, &node, &id)
                })
            })
            .await
    }

    async fn session(&self, id: &str) -> Result<Option<SessionRow>, StoreError> {
        let id = id.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, _> {
                Box::pin(async move {
                    let sql = format!("SELECT {COLUMNS} FROM sessions WHERE id = $1");
                    connection.query_opt(&sql, &[&id]).await?.as_ref().map(from_row).transpose()
                })
            })
            .await
    }

    async fn session_by_key(
        &self,
        tenant: &str,
        key: &str,
    ) -> Result<Option<SessionRow>, StoreError> {
        let (tenant, key) = (tenant.to_owned(), key.to_owned());
        self.pool
            .read(move |connection| -> Work<'_, _> {
                Box::pin(async move {
                    let sql = format!(
                        "SELECT {COLUMNS} FROM sessions WHERE tenant = $1 AND key = $2
                         ORDER BY created_ms DESC, id DESC LIMIT 1"
                    );
                    let found = connection.query_opt(&sql, &[&tenant, &key]).await?;
                    found.as_ref().map(from_row).transpose()
                })
            })
            .await
    }

    async fn sessions(&self, filter: SessionFilter) -> Result<Vec<SessionRow>, StoreError> {
        self.pool
            .read(move |connection| -> Work<'_, _> {
                Box::pin(async move {
                    let sql = format!(
                        "SELECT {COLUMNS} FROM sessions
                         WHERE ($1::text IS NULL OR tenant = $1) AND ($2::text IS NULL OR phase = $2)
                           AND ($3::text IS NULL OR key = $3)
                           AND ($4::text IS NULL OR (created_ms, id) <
                                (SELECT created_ms, id FROM sessions WHERE id = $4))
                         ORDER BY created_ms DESC, id DESC LIMIT $5"
                    );
                    let phase = filter.phase.map(Phase::name);
                    let limit = i64::from(filter.limit);
                    let rows = connection
                        .query(
                            &sql,
                            &[&filter.tenant, &phase, &filter.key, &filter.before, &limit],
                        )
                        .await?;
                    rows.iter().map(from_row).collect()
                })
            })
            .await
    }

    /// Only sessions of this node.
    async fn unended_sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        let node = Arc::clone(&self.node);
        self.pool
            .read_long(move |connection| -> Work<'_, _> {
                Box::pin(async move {
                    connection.begin_long().await?;
                    let sql = format!(
                        "SELECT {COLUMNS} FROM sessions WHERE owner = $1 AND NOT ({ENDED})"
                    );
                    let rows = connection.query(&sql, &[&node.id]).await?;
                    rows.iter().map(from_row).collect()
                })
            })
            .await
    }

    /// Only sessions whose files are on this node.
    async fn sessions_to_remove(
        &self,
        ended_before_ms: i64,
    ) -> Result<Vec<SessionRow>, StoreError> {
        let node = Arc::clone(&self.node);
        self.pool
            .read(move |connection| -> Work<'_, _> {
                Box::pin(async move {
                    let sql = format!(
                        "SELECT {COLUMNS} FROM sessions
                         WHERE ended_ms < $1 AND storage = 'BIND' AND {ENDED} AND pinned = $2
                         ORDER BY ended_ms LIMIT 1000"
                    );
                    let rows = connection.query(&sql, &[&ended_before_ms, &node.id]).await?;
                    rows.iter().map(from_row).collect()
                })
            })
            .await
    }

    /// Fails with [`StoreError::Fenced`] if the files of the session are on another node.
    async fn forget_session(&self, id: &str) -> Result<bool, StoreError> {
        let (id, node) = (id.to_owned(), Arc::clone(&self.node));
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, bool> {
                Box::pin(async move {
                    connection.begin().await?;
                    let sql = format!(
                        "SELECT coalesce(pinned, $2) FROM sessions WHERE id = $1 AND {ENDED}
                         FOR UPDATE"
                    );
                    let Some(found) = connection.query_opt(&sql, &[&id, &node.id]).await? else {
                        return Ok(false);
                    };
                    if found.try_get::<_, String>(0)? != node.id {
                        return Err(Failed::Fenced(id));
                    }
                    for sql in [
                        "DELETE FROM sessions WHERE id = $1",
                        "DELETE FROM execs WHERE session = $1",
                        "DELETE FROM datasets WHERE session = $1",
                    ] {
                        connection.execute(sql, &[&id]).await?;
                    }
                    connection.commit().await?;
                    node.disown(&id);
                    Ok(true)
                })
            })
            .await
    }

    async fn prune_sessions(&self, ended_before_ms: i64) -> Result<usize, StoreError> {
        let node = Arc::clone(&self.node);
        let ids = self
            .pool
            .write_long(Side::Quick, move |connection| -> Work<'_, Vec<String>> {
                Box::pin(async move {
                    connection.begin_long().await?;
                    let rows = connection
                        .query(
                            "DELETE FROM sessions WHERE ended_ms < $1 AND storage = 'TMPFS'
                             RETURNING id",
                            &[&ended_before_ms],
                        )
                        .await?;
                    let ids: Vec<String> =
                        rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
                    for sql in [
                        "DELETE FROM execs WHERE session = ANY($1)",
                        "DELETE FROM datasets WHERE session = ANY($1)",
                    ] {
                        connection.execute(sql, &[&ids]).await?;
                    }
                    connection.commit().await?;
                    Ok(ids)
                })
            })
            .await?;
        ids.iter().for_each(|id| node.disown(id));
        Ok(ids.len())
    }
}

impl PostgresStore {
    /// A new session may be stored although its caller got an error. It would have no driver and
    /// keep its key, so it is ended as soon as the database can be reached, unless the caller
    /// stores it again.
    fn end_if_stored(&self, id: String) {
        let (pool, node) = (self.pool.clone(), Arc::clone(&self.node));
        let doubtful = Arc::clone(&self.doubtful);
        lock_unpoisoned(&doubtful).insert(id.clone());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(DOUBT_PACE).await;
                if !lock_unpoisoned(&doubtful).remove(&id) {
                    return;
                }
                let (session, owner) = (id.clone(), node.id.clone());
                let ended = pool
                    .write(Side::Safe, move |connection| -> Work<'_, u64> {
                        Box::pin(async move {
                            connection
                                .execute(
                                    "UPDATE sessions SET phase = 'failed', handle = NULL,
                                         ended_ms = (extract(epoch FROM now()) * 1000)::bigint,
                                         ended_because = 'the database could not be reached'
                                     WHERE id = $1 AND owner = $2 AND epoch = 1
                                       AND phase NOT IN ('stopped', 'failed')",
                                    &[&session, &owner],
                                )
                                .await
                        })
                    })
                    .await;
                match ended {
                    Err(StoreError::Unavailable(_)) => {
                        lock_unpoisoned(&doubtful).insert(id.clone());
                    }
                    _ => return,
                }
            }
        });
    }
}

/// Fails if no row was changed: this node does not own the session.
pub(super) fn owned(changed: u64, node: &Node, session: &str) -> Result<(), Failed> {
    if changed > 0 {
        return Ok(());
    }
    node.disown(session);
    Err(Failed::Fenced(session.to_owned()))
}

/// Whether the session has files on its node, so that no other node can have it.
pub(super) fn is_pinned(spec: &SessionSpec) -> bool {
    spec.storage == Storage::Bind || !spec.volumes.is_empty() || spec.workspace.is_some()
}

pub(super) fn storage_name(storage: Storage) -> &'static str {
    match storage {
        Storage::Tmpfs => "TMPFS",
        Storage::Bind => "BIND",
    }
}

pub(super) fn from_row(row: &Row) -> Result<SessionRow, Failed> {
    let phase: &str = row.try_get(3)?;
    let handle: Option<&str> = row.try_get(5)?;
    Ok(SessionRow {
        id: row.try_get(0)?,
        tenant: row.try_get(1)?,
        key: row.try_get(2)?,
        phase: Phase::parse(phase)
            .ok_or_else(|| Failed::Value(format!("`{phase}` is not a phase of a session")))?,
        spec: from_json(row.try_get(4)?)?,
        handle: handle.map(from_json).transpose()?,
        created_ms: row.try_get(6)?,
        used_ms: row.try_get(7)?,
        expires_ms: row.try_get(8)?,
        ended_ms: row.try_get(9)?,
        ended_because: row.try_get(10)?,
        execs: unsigned(row.try_get(11)?),
    })
}
