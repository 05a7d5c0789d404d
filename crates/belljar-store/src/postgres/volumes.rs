//! The table of volumes, and in memory which runs of this process hold them.
//!
//! A volume is used only on its node. A retired volume's row is locked while its users are looked
//! up, and the rows of requested volumes are locked while they are read: one of both sees the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio_postgres::Row;

use super::pool::{Connection, Failed, Side, Work};
use super::{PostgresStore, from_json, signed, to_json, unsigned};
use crate::{
    AskedVolumes, BadVolumeName, StoreError, VolumeAdded, VolumeHold, VolumeName, VolumeQuota,
    VolumeRecords, VolumeRetired, VolumeRow, VolumeUser, VolumesLeft, lock_unpoisoned,
};

/// The tenant and volumes of each run, by the run's id.
pub(super) type RunVolumes = Arc<Mutex<HashMap<String, (String, AskedVolumes)>>>;

const COLUMNS: &str = "tenant, name, id, size, kind, created_ms";

#[async_trait]
impl VolumeRecords for PostgresStore {
    async fn add_volume(
        &self,
        row: VolumeRow,
        quota: VolumeQuota,
    ) -> Result<VolumeAdded, StoreError> {
        let node = Arc::clone(&self.node);
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, VolumeAdded> {
                Box::pin(async move {
                    connection.begin().await?;
                    let added = add(connection, &row, quota, &node.id).await?;
                    connection.commit().await?;
                    Ok(added)
                })
            })
            .await
    }

    async fn volume_ready(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let sql = "UPDATE volumes SET state = 'ready' WHERE id = $1";
                    connection.execute(sql, &[&id]).await.map(|_| ())
                })
            })
            .await
    }

    async fn retire_volume(
        &self,
        tenant: &str,
        name: VolumeName,
    ) -> Result<VolumeRetired, StoreError> {
        let (tenant, runs) = (tenant.to_owned(), Arc::clone(&self.runs));
        let node = Arc::clone(&self.node);
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, VolumeRetired> {
                Box::pin(async move {
                    connection.begin().await?;
                    let found = on_node(connection, &tenant, &name, &node.id, "FOR UPDATE").await?;
                    let Some(row) = found else { return Ok(VolumeRetired::Unknown) };
                    let mut used: Vec<VolumeUser> = users(connection, &tenant)
                        .await?
                        .into_iter()
                        .chain(users_of_runs(&runs, &tenant))
                        .filter_map(|(id, asked)| Some(VolumeUser { id, mode: *asked.get(&name)? }))
                        .collect();
                    if !used.is_empty() {
                        used.sort_by(|one, other| one.id.cmp(&other.id));
                        return Ok(VolumeRetired::Used(used));
                    }
                    let sql = "UPDATE volumes SET state = 'removing' WHERE id = $1";
                    connection.execute(sql, &[&row.id]).await?;
                    connection.commit().await?;
                    Ok(VolumeRetired::Yes(row))
                })
            })
            .await
    }

    async fn forget_volume(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let sql = "DELETE FROM volumes WHERE id = $1";
                    connection.execute(sql, &[&id]).await.map(|_| ())
                })
            })
            .await
    }

    /// A volume of any node.
    async fn volume(
        &self,
        tenant: &str,
        name: &VolumeName,
    ) -> Result<Option<VolumeRow>, StoreError> {
        let (tenant, name) = (tenant.to_owned(), name.clone());
        self.pool
            .read(move |connection| -> Work<'_, Option<VolumeRow>> {
                Box::pin(async move {
                    let sql = format!(
                        "SELECT {COLUMNS} FROM volumes
                         WHERE tenant = $1 AND name = $2 AND state = 'ready'"
                    );
                    let found = connection.query_opt(&sql, &[&tenant, &name.as_str()]).await?;
                    found.as_ref().map(from_row).transpose()
                })
            })
            .await
    }

    /// The volumes of all nodes.
    async fn volumes(&self, tenant: &str) -> Result<Vec<VolumeRow>, StoreError> {
        let tenant = tenant.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, Vec<VolumeRow>> {
                Box::pin(async move {
                    let sql = format!(
                        "SELECT {COLUMNS} FROM volumes WHERE tenant = $1 AND state = 'ready'
                         ORDER BY name"
                    );
                    connection.query(&sql, &[&tenant]).await?.iter().map(from_row).collect()
                })
            })
            .await
    }

    /// Only volumes of this node.
    async fn volumes_left(&self) -> Result<VolumesLeft, StoreError> {
        let node = Arc::clone(&self.node);
        self.pool
            .read(move |connection| -> Work<'_, VolumesLeft> {
                Box::pin(async move {
                    let sql = format!(
                        "SELECT {COLUMNS}, state = 'ready' FROM volumes WHERE node = $1
                         ORDER BY tenant, name"
                    );
                    let mut left = VolumesLeft::default();
                    for row in connection.query(&sql, &[&node.id]).await? {
                        let list = match row.try_get(6)? {
                            true => &mut left.ready,
                            false => &mut left.unfinished,
                        };
                        list.push(from_row(&row)?);
                    }
                    Ok(left)
                })
            })
            .await
    }

    async fn volumes_asked(
        &self,
        tenant: &str,
        asked: AskedVolumes,
    ) -> Result<Result<Vec<VolumeRow>, VolumeName>, StoreError> {
        let (tenant, node) = (tenant.to_owned(), Arc::clone(&self.node));
        self.pool
            .read(move |connection| -> Work<'_, _> {
                Box::pin(async move { all_asked(connection, &tenant, &asked, &node.id).await })
            })
            .await
    }

    async fn hold_volumes(
        &self,
        tenant: &str,
        asked: AskedVolumes,
        run: &str,
    ) -> Result<Result<(Vec<VolumeRow>, VolumeHold), VolumeName>, StoreError> {
        let (tenant, id, runs) = (tenant.to_owned(), run.to_owned(), Arc::clone(&self.runs));
        let node = Arc::clone(&self.node);
        self.pool
            .write(Side::Quick, move |connection| -> Work<'_, _> {
                Box::pin(async move {
                    connection.begin().await?;
                    let found = all_asked(connection, &tenant, &asked, &node.id).await?;
                    // The rows are locked until the run is known as a user.
                    let held = found.map(|rows| {
                        lock_unpoisoned(&runs).insert(id.clone(), (tenant, asked));
                        let release = move || drop(lock_unpoisoned(&runs).remove(&id));
                        (rows, VolumeHold::new(release))
                    });
                    connection.commit().await?;
                    Ok(held)
                })
            })
            .await
    }

    async fn volume_users(&self, tenant: &str) -> Result<Vec<(String, AskedVolumes)>, StoreError> {
        let (tenant, runs) = (tenant.to_owned(), Arc::clone(&self.runs));
        self.pool
            .read(move |connection| -> Work<'_, Vec<(String, AskedVolumes)>> {
                Box::pin(async move {
                    let mut users = users(connection, &tenant).await?;
                    users.extend(users_of_runs(&runs, &tenant));
                    users.sort_by(|(one, _), (other, _)| one.cmp(other));
                    Ok(users)
                })
            })
            .await
    }
}

async fn add(
    connection: &mut Connection,
    row: &VolumeRow,
    quota: VolumeQuota,
    node: &str,
) -> Result<VolumeAdded, Failed> {
    // Quotas are exact: volumes of a tenant are added one after another.
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('volumes ' || $1, 0))";
    connection.query(lock, &[&row.tenant]).await?;
    let name = row.name.as_str();
    let exists = "SELECT 1 FROM volumes WHERE tenant = $1 AND name = $2";
    if connection.query_opt(exists, &[&row.tenant, &name]).await?.is_some() {
        return Ok(VolumeAdded::Exists);
    }
    let total = connection
        .query_one(
            "SELECT count(*), coalesce(sum(size), 0)::bigint FROM volumes WHERE tenant = $1",
            &[&row.tenant],
        )
        .await?;
    let (count, bytes) = (unsigned(total.try_get(0)?), unsigned(total.try_get(1)?));
    if count >= quota.count || bytes.saturating_add(row.size) > quota.bytes {
        return Ok(VolumeAdded::NoRoom { count, bytes });
    }
    let sql = format!(
        "INSERT INTO volumes ({COLUMNS}, state, node) VALUES ($1, $2, $3, $4, $5, $6, 'making', $7)"
    );
    connection
        .execute(
            &sql,
            &[
                &row.tenant,
                &name,
                &row.id,
                &signed(row.size),
                &to_json(&row.kind)?,
                &row.created_ms,
                &node,
            ],
        )
        .await?;
    Ok(VolumeAdded::Yes)
}

/// Sessions of any node.
async fn users(
    connection: &mut Connection,
    tenant: &str,
) -> Result<Vec<(String, AskedVolumes)>, Failed> {
    let rows = connection
        .query(
            "SELECT id, volumes FROM sessions WHERE tenant = $1 AND volumes IS NOT NULL
               AND phase NOT IN ('stopped', 'failed')",
            &[&tenant],
        )
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, from_json(row.try_get(1)?)?))).collect()
}

fn users_of_runs(runs: &RunVolumes, tenant: &str) -> Vec<(String, AskedVolumes)> {
    let runs = lock_unpoisoned(runs);
    let of_tenant = runs.iter().filter(|(_, (owner, _))| owner == tenant);
    of_tenant.map(|(id, (_, volumes))| (id.clone(), volumes.clone())).collect()
}

async fn all_asked(
    connection: &mut Connection,
    tenant: &str,
    asked: &AskedVolumes,
    node: &str,
) -> Result<Result<Vec<VolumeRow>, VolumeName>, Failed> {
    let mut rows = Vec::with_capacity(asked.len());
    for name in asked.keys() {
        match on_node(connection, tenant, name, node, "FOR SHARE").await? {
            Some(row) => rows.push(row),
            None => return Ok(Err(name.clone())),
        }
    }
    Ok(Ok(rows))
}

/// A volume of this node that is ready.
async fn on_node(
    connection: &mut Connection,
    tenant: &str,
    name: &VolumeName,
    node: &str,
    lock: &str,
) -> Result<Option<VolumeRow>, Failed> {
    let sql = format!(
        "SELECT {COLUMNS} FROM volumes
         WHERE tenant = $1 AND name = $2 AND node = $3 AND state = 'ready' {lock}"
    );
    let found = connection.query_opt(&sql, &[&tenant, &name.as_str(), &node]).await?;
    found.as_ref().map(from_row).transpose()
}

fn from_row(row: &Row) -> Result<VolumeRow, Failed> {
    let name: &str = row.try_get(1)?;
    Ok(VolumeRow {
        tenant: row.try_get(0)?,
        name: name.parse().map_err(|error: BadVolumeName| Failed::Value(error.to_string()))?,
        id: row.try_get(2)?,
        size: unsigned(row.try_get(3)?),
        kind: from_json(row.try_get(4)?)?,
        created_ms: row.try_get(5)?,
    })
}
