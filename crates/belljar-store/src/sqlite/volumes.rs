//! The table of volumes, and in memory which runs of this process hold them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use belljar_runtime::VolumeKind;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{Json, SqliteStore, lock};
use crate::{
    AskedVolumes, BadVolumeName, Durability, StoreError, VolumeAdded, VolumeHold, VolumeName,
    VolumeQuota, VolumeRecords, VolumeRetired, VolumeRow, VolumeUser, VolumesLeft,
};

/// The tenant and volumes of each run, by the run's id. Jobs of the writer add to it and read it, so
/// that its changes have the same order as those of the table.
pub(super) type RunVolumes = Arc<Mutex<HashMap<String, (String, AskedVolumes)>>>;

/// The state of a volume. Only ready volumes can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VolumeState {
    Making,
    Ready,
    Removing,
}

impl VolumeState {
    fn name(self) -> &'static str {
        match self {
            VolumeState::Making => "making",
            VolumeState::Ready => "ready",
            VolumeState::Removing => "removing",
        }
    }
}

const COLUMNS: &str = "tenant, name, id, size, kind, created_ms";

#[async_trait]
impl VolumeRecords for SqliteStore {
    async fn add_volume(
        &self,
        row: VolumeRow,
        quota: VolumeQuota,
    ) -> Result<VolumeAdded, StoreError> {
        self.write(Durability::Power, move |connection| {
            let name = row.name.as_str();
            let exists = connection
                .prepare_cached("SELECT 1 FROM volumes WHERE tenant = ?1 AND name = ?2")?
                .exists(params![row.tenant, name])?;
            if exists {
                return Ok(VolumeAdded::Exists);
            }
            let (count, bytes): (u64, u64) = connection.query_row(
                "SELECT count(*), coalesce(sum(size), 0) FROM volumes WHERE tenant = ?1",
                [&row.tenant],
                |found| Ok((found.get(0)?, found.get(1)?)),
            )?;
            if count >= quota.count || bytes.saturating_add(row.size) > quota.bytes {
                return Ok(VolumeAdded::NoRoom { count, bytes });
            }
            connection.execute(
                &format!(
                    "INSERT INTO volumes ({COLUMNS}, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
                ),
                params![
                    row.tenant,
                    name,
                    row.id,
                    row.size,
                    Json(row.kind),
                    row.created_ms,
                    VolumeState::Making.name(),
                ],
            )?;
            Ok(VolumeAdded::Yes)
        })
        .await
    }

    async fn volume_ready(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.write(Durability::Power, move |connection| {
            connection.execute(
                "UPDATE volumes SET state = ?2 WHERE id = ?1",
                params![id, VolumeState::Ready.name()],
            )
        })
        .await
        .map(|_| ())
    }

    async fn retire_volume(
        &self,
        tenant: &str,
        name: VolumeName,
    ) -> Result<VolumeRetired, StoreError> {
        let (tenant, runs) = (tenant.to_owned(), Arc::clone(&self.runs));
        self.write(Durability::Power, move |connection| {
            let Some(row) = ready(connection, &tenant, &name)? else {
                return Ok(VolumeRetired::Unknown);
            };
            let mut used: Vec<VolumeUser> = users(connection, &tenant)?
                .into_iter()
                .chain(users_of_runs(&runs, &tenant))
                .filter_map(|(id, volumes)| Some(VolumeUser { id, mode: *volumes.get(&name)? }))
                .collect();
            if !used.is_empty() {
                used.sort_by(|one, other| one.id.cmp(&other.id));
                return Ok(VolumeRetired::Used(used));
            }
            connection.execute(
                "UPDATE volumes SET state = ?2 WHERE id = ?1",
                params![row.id, VolumeState::Removing.name()],
            )?;
            Ok(VolumeRetired::Yes(row))
        })
        .await
    }

    async fn forget_volume(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.write(Durability::Process, move |connection| {
            connection.execute("DELETE FROM volumes WHERE id = ?1", [id])
        })
        .await
        .map(|_| ())
    }

    async fn volume(
        &self,
        tenant: &str,
        name: &VolumeName,
    ) -> Result<Option<VolumeRow>, StoreError> {
        let (tenant, name) = (tenant.to_owned(), name.clone());
        self.read(move |connection| ready(connection, &tenant, &name)).await
    }

    async fn volumes(&self, tenant: &str) -> Result<Vec<VolumeRow>, StoreError> {
        let tenant = tenant.to_owned();
        self.read(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM volumes WHERE tenant = ?1 AND state = 'ready'
                     ORDER BY name"
                ))?
                .query_map([tenant], from_row)?
                .collect()
        })
        .await
    }

    async fn volumes_left(&self) -> Result<VolumesLeft, StoreError> {
        self.read(|connection| {
            let all = |condition: &str| -> rusqlite::Result<Vec<VolumeRow>> {
                connection
                    .prepare(&format!("SELECT {COLUMNS} FROM volumes WHERE {condition}"))?
                    .query_map([], from_row)?
                    .collect()
            };
            Ok(VolumesLeft { ready: all("state = 'ready'")?, unfinished: all("state <> 'ready'")? })
        })
        .await
    }

    async fn volumes_asked(
        &self,
        tenant: &str,
        asked: AskedVolumes,
    ) -> Result<Result<Vec<VolumeRow>, VolumeName>, StoreError> {
        let tenant = tenant.to_owned();
        self.read(move |connection| all_asked(connection, &tenant, &asked)).await
    }

    async fn hold_volumes(
        &self,
        tenant: &str,
        asked: AskedVolumes,
        run: &str,
    ) -> Result<Result<(Vec<VolumeRow>, VolumeHold), VolumeName>, StoreError> {
        let (tenant, id, runs) = (tenant.to_owned(), run.to_owned(), Arc::clone(&self.runs));
        // This is a write, so that it cannot run between the check and the update when a volume is
        // retired.
        self.write(Durability::Process, move |connection| {
            Ok(all_asked(connection, &tenant, &asked)?.map(|rows| {
                lock(&runs).insert(id.clone(), (tenant, asked));
                let hold = VolumeHold::new(move || drop(lock(&runs).remove(&id)));
                (rows, hold)
            }))
        })
        .await
    }

    async fn volume_users(&self, tenant: &str) -> Result<Vec<(String, AskedVolumes)>, StoreError> {
        let (tenant, runs) = (tenant.to_owned(), Arc::clone(&self.runs));
        self.read(move |connection| {
            let mut users = users(connection, &tenant)?;
            users.extend(users_of_runs(&runs, &tenant));
            users.sort_by(|(one, _), (other, _)| one.cmp(other));
            Ok(users)
        })
        .await
    }
}

fn users(connection: &Connection, tenant: &str) -> rusqlite::Result<Vec<(String, AskedVolumes)>> {
    connection
        .prepare_cached(
            "SELECT id, spec -> '$.volumes' FROM sessions
             WHERE tenant = ?1 AND phase NOT IN ('stopped', 'failed')
               AND coalesce(spec -> '$.volumes', '{}') <> '{}'",
        )?
        .query_map([tenant], |row| Ok((row.get(0)?, row.get::<_, Json<AskedVolumes>>(1)?.0)))?
        .collect()
}

fn users_of_runs(runs: &RunVolumes, tenant: &str) -> Vec<(String, AskedVolumes)> {
    let runs = lock(runs);
    let of_tenant = runs.iter().filter(|(_, (owner, _))| owner == tenant);
    of_tenant.map(|(id, (_, volumes))| (id.clone(), volumes.clone())).collect()
}

fn all_asked(
    connection: &Connection,
    tenant: &str,
    asked: &AskedVolumes,
) -> rusqlite::Result<Result<Vec<VolumeRow>, VolumeName>> {
    let mut rows = Vec::with_capacity(asked.len());
    for name in asked.keys() {
        match ready(connection, tenant, name)? {
            Some(row) => rows.push(row),
            None => return Ok(Err(name.clone())),
        }
    }
    Ok(Ok(rows))
}

fn ready(
    connection: &Connection,
    tenant: &str,
    name: &VolumeName,
) -> rusqlite::Result<Option<VolumeRow>> {
    connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM volumes WHERE tenant = ?1 AND name = ?2 AND state = 'ready'"
        ))?
        .query_row([tenant, name.as_str()], from_row)
        .optional()
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<VolumeRow> {
    let name: String = row.get(1)?;
    Ok(VolumeRow {
        tenant: row.get(0)?,
        name: name.parse().map_err(|error: BadVolumeName| {
            let text = rusqlite::types::Type::Text;
            rusqlite::Error::FromSqlConversionFailure(1, text, error.into())
        })?,
        id: row.get(2)?,
        size: row.get(3)?,
        kind: row.get::<_, Json<VolumeKind>>(4)?.0,
        created_ms: row.get(5)?,
    })
}
