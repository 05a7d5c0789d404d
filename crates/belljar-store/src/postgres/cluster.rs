//! Nodes, leases and the owners of sessions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::pool::{CALL, Connection, Failed, Pool, Side, Work};
use super::sessions::{self, owned};
use super::{Node, PostgresStore, from_json, signed, to_json, unsigned};
use crate::{
    BackendError, BackendFailure, Claim, ClusterRecords, Expired, NewNode, NodeLoad, NodeRow,
    NodeState, QuotaLimit, Route, StoreError, TakenOver, VolumeName, lock_unpoisoned,
};

/// Leases from this length on never end.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How often a release of a quota is tried again while the database cannot be reached.
const RETRY_PACE: Duration = Duration::from_secs(1);

/// The end of a lease of $n milliseconds; 0 means never.
macro_rules! lease_until {
    ($n:literal) => {
        concat!(
            "CASE WHEN ",
            $n,
            " = 0::bigint THEN 'infinity'::timestamptz ELSE now() + ",
            $n,
            " * interval '1 millisecond' END"
        )
    };
}

const REGISTER: &str = concat!(
    "INSERT INTO nodes AS n (id, epoch, address, class, state, capacity_sessions, capacity_memory,
         lease_ms, lease_until)
     VALUES ($1, nextval('node_epochs'), $2, $3, 'ready', $4, $5, $6, ",
    lease_until!("$6"),
    ")
     ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, address = excluded.address,
         class = excluded.class, state = excluded.state,
         capacity_sessions = excluded.capacity_sessions,
         capacity_memory = excluded.capacity_memory, used_sessions = 0, used_memory = 0,
         lease_ms = excluded.lease_ms, lease_until = excluded.lease_until
     RETURNING epoch"
);

const RENEW: &str = concat!(
    "UPDATE nodes SET lease_ms = $5, used_sessions = $3, used_memory = $4, lease_until = ",
    lease_until!("$5"),
    " WHERE id = $1 AND epoch = $2 AND state IN ('ready', 'draining')"
);

/// Marks nodes as lost whose lease ended $1 milliseconds ago. Nodes could not renew their leases
/// while the database was away: each has the time of its lease for that after a start of Postgres.
/// After a failover to a standby, which started long before, this process has not reached it for
/// long: it did so for $2 milliseconds.
const EXPIRE: &str = "UPDATE nodes SET state = 'lost'
     WHERE state IN ('ready', 'draining')
       AND lease_until < now() - $1::bigint * interval '1 millisecond'
       AND pg_postmaster_start_time() < now() - lease_ms * interval '1 millisecond'
       AND lease_ms < $2::bigint
     RETURNING id";

/// Takes all sessions of nodes that are lost or gone. Also those that a lost node stored before it
/// knew that it was lost. The rows of the nodes are locked too: a node that registers again at the
/// same time keeps its sessions.
const TAKE: &str = "UPDATE sessions SET owner = NULL, epoch = sessions.epoch + 1, handle = NULL,
         phase = CASE WHEN phase = 'stopping' THEN 'stopped'
             WHEN snapshot IS NULL THEN 'failed' ELSE 'hibernated' END,
         ended_ms = CASE WHEN phase = 'stopping' OR snapshot IS NULL
             THEN (extract(epoch FROM now()) * 1000)::bigint END,
         ended_because = CASE WHEN phase = 'stopping' THEN 'its node was lost while it ended'
             WHEN snapshot IS NULL THEN 'its node was lost' END
     FROM (SELECT s.id, s.owner FROM sessions s JOIN nodes n ON n.id = s.owner
           WHERE n.state IN ('lost', 'gone') AND s.phase NOT IN ('stopped', 'failed')
           FOR UPDATE OF s FOR SHARE OF n) AS old
     WHERE sessions.id = old.id
     RETURNING old.owner, sessions.id, phase";

/// Nodes that are lost or gone are forgotten after a week.
const FORGET: &str = "DELETE FROM nodes
     WHERE state IN ('lost', 'gone') AND lease_until < now() - interval '7 days'
     RETURNING id";

/// Ends the sessions whose files are only on these nodes.
const END_PINNED: &str = "UPDATE sessions SET owner = NULL, epoch = epoch + 1, handle = NULL,
         phase = 'failed', ended_ms = (extract(epoch FROM now()) * 1000)::bigint,
         ended_because = 'the node with its files has been away for a week'
     WHERE pinned = ANY($1) AND phase NOT IN ('stopped', 'failed')";

/// The epoch rises also if this node owns the session already: a late write of its earlier claim,
/// such as a release that was not answered, then fails.
const CLAIM: &str = "UPDATE sessions SET owner = $2, epoch = sessions.epoch + 1
     FROM nodes
     WHERE sessions.id = $1 AND nodes.id = $2 AND nodes.epoch = $3
       AND nodes.state IN ('ready', 'draining')
       AND (sessions.owner IS NULL OR sessions.owner = $2)
       AND sessions.phase NOT IN ('stopped', 'failed')
       AND (sessions.pinned IS NULL OR sessions.pinned = $2)
     RETURNING sessions.epoch";

const ROUTE: &str = "SELECT s.id, s.tenant, s.owner, n.address, s.phase IN ('stopped', 'failed'),
         s.pinned
     FROM sessions s LEFT JOIN nodes n ON n.id = s.owner";

#[async_trait]
impl ClusterRecords for PostgresStore {
    async fn register_node(&self, node: NewNode, lease: Duration) -> Result<i64, StoreError> {
        if node.id != self.node.id {
            let text = format!("this store belongs to node {}, not {}", self.node.id, node.id);
            let error = std::io::Error::other(text);
            return Err(StoreError::Write(BackendError::new(BackendFailure::Other, error)));
        }
        let registered = self
            .pool
            .write_long(Side::Safe, move |connection| -> Work<'_, (i64, HashMap<String, i64>)> {
                Box::pin(async move {
                    connection.begin_long().await?;
                    let registered = register(connection, &node, lease_ms(lease)).await?;
                    connection.commit().await?;
                    Ok(registered)
                })
            })
            .await;
        let (epoch, sessions) = registered?;
        *lock_unpoisoned(&self.node.sessions) = sessions;
        self.node.epoch.store(epoch, Ordering::SeqCst);
        self.reserved.lock().await.clear();
        Ok(epoch)
    }

    async fn renew_lease(&self, used: NodeLoad, lease: Duration) -> Result<bool, StoreError> {
        let node = Arc::clone(&self.node);
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, bool> {
                Box::pin(async move {
                    let (sessions, memory) = (signed(used.sessions), signed(used.memory));
                    let renewed = connection
                        .execute(
                            RENEW,
                            &[&node.id, &node.epoch(), &sessions, &memory, &lease_ms(lease)],
                        )
                        .await?;
                    Ok(renewed > 0)
                })
            })
            .await
    }

    async fn set_node_state(&self, state: NodeState) -> Result<(), StoreError> {
        let node = Arc::clone(&self.node);
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    // A lost node gets back only by a new registration.
                    let sql = "UPDATE nodes SET state = $3
                               WHERE id = $1 AND epoch = $2 AND state <> 'lost'";
                    let state = state.name();
                    connection.execute(sql, &[&node.id, &node.epoch(), &state]).await.map(|_| ())
                })
            })
            .await
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        self.pool
            .read(move |connection| -> Work<'_, Vec<NodeRow>> {
                Box::pin(async move {
                    let sql = "SELECT id, epoch, address, class, state, capacity_sessions,
                             capacity_memory, used_sessions, used_memory,
                             CASE WHEN isfinite(lease_until)
                                 THEN (extract(epoch FROM lease_until - now()) * 1000)::bigint END
                         FROM nodes ORDER BY id";
                    connection.query(sql, &[]).await?.iter().map(node_row).collect()
                })
            })
            .await
    }

    async fn take_over_expired(&self, margin: Duration) -> Result<Vec<TakenOver>, StoreError> {
        let reachable = lease_ms(self.pool.reachable_for());
        let margin = lease_ms(margin);
        self.pool
            .write_long(Side::Safe, move |connection| -> Work<'_, Vec<TakenOver>> {
                Box::pin(async move {
                    connection.begin_long().await?;
                    let lock = "SELECT pg_try_advisory_xact_lock(hashtextextended('take over', 0))";
                    if !connection.query_one(lock, &[]).await?.try_get::<_, bool>(0)? {
                        return Ok(Vec::new());
                    }
                    let taken = take_over(connection, margin, reachable).await?;
                    connection.commit().await?;
                    Ok(taken)
                })
            })
            .await
    }

    async fn lose_node(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let sql = "UPDATE nodes SET state = 'lost'
                               WHERE id = $1 AND state IN ('ready', 'draining')";
                    connection.execute(sql, &[&id]).await.map(|_| ())
                })
            })
            .await
    }

    async fn claim_session(&self, id: &str) -> Result<Claim, StoreError> {
        let (id, node) = (id.to_owned(), Arc::clone(&self.node));
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, Claim> {
                Box::pin(async move {
                    let claimed =
                        connection.query_opt(CLAIM, &[&id, &node.id, &node.epoch()]).await?;
                    let Some(claimed) = claimed else { return owner_of(connection, &id).await };
                    node.owns(&id, claimed.try_get(0)?);
                    let sql = format!("SELECT {} FROM sessions WHERE id = $1", sessions::COLUMNS);
                    let row = connection.query_one(&sql, &[&id]).await?;
                    Ok(Claim::Claimed(Box::new(sessions::from_row(&row)?)))
                })
            })
            .await
    }

    async fn release_session(
        &self,
        id: &str,
        snapshot: Option<serde_json::Value>,
    ) -> Result<(), StoreError> {
        let (id, node) = (id.to_owned(), Arc::clone(&self.node));
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let snapshot = snapshot.as_ref().map(to_json).transpose()?;
                    let epoch = node.epoch_or_none(&id);
                    // Without an owner in the same epoch, it was released by this node: the answer
                    // was lost.
                    let released = connection
                        .execute(
                            "UPDATE sessions SET owner = NULL, phase = 'hibernated', handle = NULL,
                                 snapshot = coalesce($4, snapshot)
                             WHERE id = $1 AND epoch = $3 AND phase NOT IN ('stopped', 'failed')
                               AND (owner = $2 OR owner IS NULL)",
                            &[&id, &node.id, &epoch, &snapshot],
                        )
                        .await?;
                    owned(released, &node, &id)?;
                    node.disown(&id);
                    Ok(())
                })
            })
            .await
    }

    async fn set_snapshot(
        &self,
        id: &str,
        number: i64,
        snapshot: serde_json::Value,
    ) -> Result<(), StoreError> {
        let (id, node) = (id.to_owned(), Arc::clone(&self.node));
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let snapshot = to_json(&snapshot)?;
                    let epoch = node.epoch_or_none(&id);
                    let changed = connection
                        .execute(
                            "UPDATE sessions SET snapshot = $4, snapshot_number = $5
                             WHERE id = $1 AND owner = $2 AND epoch = $3
                               AND snapshot_number <= $5",
                            &[&id, &node.id, &epoch, &snapshot, &number],
                        )
                        .await?;
                    owned(changed, &node, &id)
                })
            })
            .await
    }

    async fn snapshot_of(&self, id: &str) -> Result<Option<serde_json::Value>, StoreError> {
        let id = id.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, Option<serde_json::Value>> {
                Box::pin(async move {
                    let sql = "SELECT snapshot FROM sessions WHERE id = $1
                               AND snapshot IS NOT NULL";
                    let found = connection.query_opt(sql, &[&id]).await?;
                    found.map(|row| from_json(row.try_get(0)?)).transpose()
                })
            })
            .await
    }

    async fn snapshots(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Vec<(String, serde_json::Value)>, StoreError> {
        let after = after.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, Vec<(String, serde_json::Value)>> {
                Box::pin(async move {
                    let sql = "SELECT id, snapshot FROM sessions
                         WHERE id > $1 AND snapshot IS NOT NULL
                           AND phase NOT IN ('stopped', 'failed')
                         ORDER BY id LIMIT $2";
                    let rows = connection.query(sql, &[&after, &i64::from(limit)]).await?;
                    let read = |row: &Row| Ok((row.try_get(0)?, from_json(row.try_get(1)?)?));
                    rows.iter().map(read).collect()
                })
            })
            .await
    }

    async fn expired_sessions(
        &self,
        before_ms: i64,
        after: &Expired,
        limit: u32,
    ) -> Result<Vec<Expired>, StoreError> {
        let (after, node) = (after.clone(), Arc::clone(&self.node));
        self.pool
            .read(move |connection| -> Work<'_, Vec<Expired>> {
                Box::pin(async move {
                    let sql = "SELECT unowned_until, id FROM sessions
                         WHERE unowned_until < $1 AND (unowned_until, id) > ($2, $3)
                           AND (pinned IS NULL OR pinned = $4)
                         ORDER BY unowned_until, id LIMIT $5";
                    let rows = connection
                        .query(
                            sql,
                            &[
                                &before_ms,
                                &after.expires_ms,
                                &after.id,
                                &node.id,
                                &i64::from(limit),
                            ],
                        )
                        .await?;
                    let read = |row: &Row| {
                        Ok(Expired { expires_ms: row.try_get(0)?, id: row.try_get(1)? })
                    };
                    rows.iter().map(read).collect()
                })
            })
            .await
    }

    async fn sleeping_sessions(&self, tenant: &str, most: u64) -> Result<u64, StoreError> {
        let tenant = tenant.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, u64> {
                Box::pin(async move {
                    let sql = "SELECT count(*) FROM (SELECT FROM sessions
                             WHERE tenant = $1 AND phase = 'hibernated' LIMIT $2) AS found";
                    let counted = connection.query_one(sql, &[&tenant, &signed(most)]).await?;
                    Ok(unsigned(counted.try_get(0)?))
                })
            })
            .await
    }

    async fn begin_task(&self, name: &str, every: Duration) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, bool> {
                Box::pin(async move {
                    let sql = "INSERT INTO tasks AS t (name, next)
                         VALUES ($1, now() + $2::bigint * interval '1 millisecond')
                         ON CONFLICT (name) DO UPDATE SET next = excluded.next
                         WHERE t.next <= now()";
                    Ok(connection.execute(sql, &[&name, &lease_ms(every)]).await? > 0)
                })
            })
            .await
    }

    async fn route(&self, id: &str) -> Result<Option<Route>, StoreError> {
        let id = id.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, Option<Route>> {
                Box::pin(async move {
                    let sql = format!("{ROUTE} WHERE s.id = $1");
                    let found = connection.query_opt(&sql, &[&id]).await?;
                    Ok(found.as_ref().map(route).transpose()?.map(|(_, route)| route))
                })
            })
            .await
    }

    async fn route_by_key(
        &self,
        tenant: &str,
        key: &str,
    ) -> Result<Option<(String, Route)>, StoreError> {
        let (tenant, key) = (tenant.to_owned(), key.to_owned());
        self.pool
            .read(move |connection| -> Work<'_, Option<(String, Route)>> {
                Box::pin(async move {
                    let sql = format!(
                        "{ROUTE} WHERE s.tenant = $1 AND s.key = $2
                         ORDER BY s.created_ms DESC, s.id DESC LIMIT 1"
                    );
                    let found = connection.query_opt(&sql, &[&tenant, &key]).await?;
                    found.as_ref().map(route).transpose()
                })
            })
            .await
    }

    async fn volume_node(
        &self,
        tenant: &str,
        name: &VolumeName,
    ) -> Result<Option<String>, StoreError> {
        let (tenant, name) = (tenant.to_owned(), name.clone());
        self.pool
            .read(move |connection| -> Work<'_, Option<String>> {
                Box::pin(async move {
                    let sql = "SELECT node FROM volumes WHERE tenant = $1 AND name = $2";
                    let found = connection.query_opt(sql, &[&tenant, &name.as_str()]).await?;
                    Ok(found.map(|row| row.try_get(0)).transpose()?)
                })
            })
            .await
    }

    async fn shared_secret(&self, name: &str, fresh: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        let name = name.to_owned();
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, Vec<u8>> {
                Box::pin(async move {
                    connection
                        .execute(
                            "INSERT INTO secrets (name, value) VALUES ($1, $2)
                             ON CONFLICT DO NOTHING",
                            &[&name, &fresh],
                        )
                        .await?;
                    let sql = "SELECT value FROM secrets WHERE name = $1";
                    Ok(connection.query_one(sql, &[&name]).await?.try_get(0)?)
                })
            })
            .await
    }

    async fn spend_rate(
        &self,
        key: &str,
        window: i64,
        amount: u32,
        limit: u32,
    ) -> Result<bool, StoreError> {
        if amount > limit {
            return Ok(false);
        }
        let key = key.to_owned();
        self.pool
            .write(Side::Quick, move |connection| -> Work<'_, bool> {
                Box::pin(async move {
                    let spent = connection
                        .execute(
                            "INSERT INTO rates AS r (key, slot, spent) VALUES ($1, $2, $3)
                             ON CONFLICT (key) DO UPDATE SET slot = excluded.slot,
                                 spent = excluded.spent
                                     + CASE WHEN r.slot = excluded.slot THEN r.spent ELSE 0 END
                             WHERE r.slot < excluded.slot
                                OR (r.slot = excluded.slot AND r.spent + excluded.spent <= $4)",
                            &[&key, &window, &i64::from(amount), &i64::from(limit)],
                        )
                        .await?;
                    Ok(spent > 0)
                })
            })
            .await
    }

    /// The row gets the new total of this node, so that a call whose answer was lost does not
    /// count.
    async fn reserve_quota(
        &self,
        tenant: &str,
        add: NodeLoad,
        limit: QuotaLimit,
    ) -> Result<bool, StoreError> {
        let waiting = tokio::time::timeout(CALL, self.reserved.lock());
        let mut reserved =
            waiting.await.map_err(|_| Failed::TimedOut.into_store_error(StoreError::Write))?;
        let before = reserved.get(tenant).copied().unwrap_or_default();
        let wanted = NodeLoad {
            sessions: before.sessions.saturating_add(add.sessions),
            memory: before.memory.saturating_add(add.memory),
        };
        let granted = write_quota(&self.pool, &self.node, tenant, wanted, limit).await?;
        if granted {
            reserved.insert(tenant.to_owned(), wanted);
        }
        Ok(granted)
    }

    /// If the database cannot be reached, the release is completed later.
    async fn release_quota(&self, tenant: &str, less: NodeLoad) -> Result<(), StoreError> {
        let (pool, node) = (self.pool.clone(), Arc::clone(&self.node));
        let (reserved, tenant) = (Arc::clone(&self.reserved), tenant.to_owned());
        let releasing = tokio::spawn(async move {
            {
                let mut reserved = reserved.lock().await;
                let left = reserved.entry(tenant.clone()).or_default();
                left.sessions = left.sessions.saturating_sub(less.sessions);
                left.memory = left.memory.saturating_sub(less.memory);
            }
            loop {
                let written = {
                    let reserved = reserved.lock().await;
                    let left = reserved.get(&tenant).copied().unwrap_or_default();
                    write_quota(&pool, &node, &tenant, left, QuotaLimit::default()).await
                };
                match written {
                    Err(StoreError::Unavailable(_)) => tokio::time::sleep(RETRY_PACE).await,
                    done => return done.map(|_| ()),
                }
            }
        });
        match tokio::time::timeout(CALL, releasing).await {
            Ok(done) => done.unwrap_or(Err(StoreError::Closed)),
            Err(_) => Err(Failed::TimedOut.into_store_error(StoreError::Write)),
        }
    }
}

/// In milliseconds; 0 for a lease that never ends.
fn lease_ms(lease: Duration) -> i64 {
    if lease >= FOREVER { 0 } else { i64::try_from(lease.as_millis()).unwrap_or(0) }
}

/// Returns the epoch of the node, and the new epochs of the sessions that it owns: writes of an
/// earlier process of this node fail from now on.
async fn register(
    connection: &mut Connection,
    node: &NewNode,
    lease_ms: i64,
) -> Result<(i64, HashMap<String, i64>), Failed> {
    let registered = connection
        .query_one(
            REGISTER,
            &[
                &node.id,
                &node.address,
                &node.class,
                &signed(node.capacity.sessions),
                &signed(node.capacity.memory),
                &lease_ms,
            ],
        )
        .await?;
    let sessions = connection
        .query(
            "UPDATE sessions SET epoch = epoch + 1
             WHERE owner = $1 AND phase NOT IN ('stopped', 'failed') RETURNING id, epoch",
            &[&node.id],
        )
        .await?;
    connection.execute("DELETE FROM quotas WHERE node = $1", &[&node.id]).await?;
    let epochs = sessions.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    Ok((registered.try_get(0)?, epochs.collect::<Result<_, Failed>>()?))
}

async fn take_over(
    connection: &mut Connection,
    margin: i64,
    reachable: i64,
) -> Result<Vec<TakenOver>, Failed> {
    let mut taken: BTreeMap<String, TakenOver> = BTreeMap::new();
    let entry = |node: String| TakenOver { node, asleep: Vec::new(), lost: Vec::new() };
    for row in connection.query(EXPIRE, &[&margin, &reachable]).await? {
        let node: String = row.try_get(0)?;
        taken.insert(node.clone(), entry(node));
    }
    for row in connection.query(TAKE, &[]).await? {
        let (node, id, phase): (String, String, &str) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let of_node = taken.entry(node.clone()).or_insert_with(|| entry(node));
        match phase {
            "hibernated" => of_node.asleep.push(id),
            "failed" => of_node.lost.push(id),
            _ => {}
        }
    }
    let ended: Vec<&String> = taken.values().flat_map(|of_node| &of_node.lost).collect();
    connection
        .execute(
            "UPDATE execs SET status = 'crashed',
                 ended_ms = (extract(epoch FROM now()) * 1000)::bigint
             WHERE session = ANY($1) AND ended_ms IS NULL",
            &[&ended],
        )
        .await?;
    connection
        .execute(
            "DELETE FROM quotas WHERE node IN (SELECT id FROM nodes WHERE state IN ('lost', 'gone'))",
            &[],
        )
        .await?;
    let forgotten = connection.query(FORGET, &[]).await?;
    let forgotten = forgotten.iter().map(|row| row.try_get(0)).collect::<Result<Vec<&str>, _>>()?;
    if !forgotten.is_empty() {
        connection.execute(END_PINNED, &[&forgotten]).await?;
    }
    Ok(taken.into_values().collect())
}

/// Why a session cannot be claimed: its owner, or the node that has its files.
async fn owner_of(connection: &mut Connection, id: &str) -> Result<Claim, Failed> {
    let found = connection
        .query_opt(
            "SELECT n.id, n.address FROM sessions s JOIN nodes n ON n.id = coalesce(s.owner, s.pinned)
             WHERE s.id = $1 AND s.phase NOT IN ('stopped', 'failed')",
            &[&id],
        )
        .await?;
    let Some(row) = found else { return Ok(Claim::NotClaimable) };
    Ok(Claim::OwnedBy { node: row.try_get(0)?, address: row.try_get(1)? })
}

async fn write_quota(
    pool: &Pool,
    node: &Arc<Node>,
    tenant: &str,
    total: NodeLoad,
    limit: QuotaLimit,
) -> Result<bool, StoreError> {
    let (tenant, node) = (tenant.to_owned(), Arc::clone(node));
    pool.write(Side::Quick, move |connection| -> Work<'_, bool> {
        Box::pin(async move {
            let (sessions, memory) = (signed(total.sessions), signed(total.memory));
            let (most_sessions, most_memory) =
                (limit.sessions.map(signed), limit.memory.map(signed));
            let answer = connection
                .query_one(
                    "SELECT reserve_quota($1, $2, $3, $4, $5, $6)",
                    &[&tenant, &node.id, &sessions, &memory, &most_sessions, &most_memory],
                )
                .await?;
            Ok(answer.try_get(0)?)
        })
    })
    .await
}

fn node_row(row: &Row) -> Result<NodeRow, Failed> {
    let state: &str = row.try_get(4)?;
    let load = |sessions: usize, memory: usize| -> Result<NodeLoad, Failed> {
        let (sessions, memory) = (row.try_get(sessions)?, row.try_get(memory)?);
        Ok(NodeLoad { sessions: unsigned(sessions), memory: unsigned(memory) })
    };
    let left: Option<i64> = row.try_get(9)?;
    Ok(NodeRow {
        id: row.try_get(0)?,
        epoch: row.try_get(1)?,
        address: row.try_get(2)?,
        class: row.try_get(3)?,
        state: NodeState::parse(state)
            .ok_or_else(|| Failed::Value(format!("`{state}` is not a state of a node")))?,
        capacity: load(5, 6)?,
        used: load(7, 8)?,
        lease_left_ms: left.unwrap_or(i64::MAX),
    })
}

fn route(row: &Row) -> Result<(String, Route), Failed> {
    let (owner, address): (Option<String>, Option<String>) = (row.try_get(2)?, row.try_get(3)?);
    let route = Route {
        tenant: row.try_get(1)?,
        owner: owner.map(|owner| (owner, address.unwrap_or_default())),
        ended: row.try_get(4)?,
        pinned: row.try_get(5)?,
    };
    Ok((row.try_get(0)?, route))
}
