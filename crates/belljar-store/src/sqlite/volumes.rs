//! Volumes, and which sessions use them.

use belljar_runtime::VolumeKind;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{Durability, Json, Store, StoreError};
use crate::lock;
use crate::volumes::{AskedVolumes, RunHold, Runs, VolumeName, VolumeQuota, VolumeRow, VolumeUser};

/// How far a volume has come; only those that are ready are anybody's to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VolumeState {
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

/// What became of the wish to have a volume.
#[derive(Debug)]
pub(crate) enum Entered {
    Yes,
    Exists,
    /// So many volumes, of so many bytes, are there already.
    NoRoom {
        count: u64,
        bytes: u64,
    },
}

/// What became of the wish to remove one.
#[derive(Debug)]
pub(crate) enum GivenUp {
    Yes(VolumeRow),
    Unknown,
    Used(Vec<VolumeUser>),
}

const COLUMNS: &str = "tenant, name, id, size, kind, created_ms";

impl Store {
    /// Writes down a volume that is about to be made, if its tenant has room for it.
    pub(crate) async fn enter_volume(
        &self,
        row: VolumeRow,
        quota: VolumeQuota,
    ) -> Result<Entered, StoreError> {
        self.write(Durability::Power, move |connection| {
            let name = row.name.as_str();
            let exists = connection
                .prepare_cached("SELECT 1 FROM volumes WHERE tenant = ?1 AND name = ?2")?
                .exists(params![row.tenant, name])?;
            if exists {
                return Ok(Entered::Exists);
            }
            let (count, bytes): (u64, u64) = connection.query_row(
                "SELECT count(*), coalesce(sum(size), 0) FROM volumes WHERE tenant = ?1",
                [&row.tenant],
                |found| Ok((found.get(0)?, found.get(1)?)),
            )?;
            if count >= quota.count || bytes.saturating_add(row.size) > quota.bytes {
                return Ok(Entered::NoRoom { count, bytes });
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
            Ok(Entered::Yes)
        })
        .await
    }

    /// The volume is there: everybody may see it.
    pub(crate) async fn volume_made(&self, id: &str) -> Result<(), StoreError> {
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

    /// From now on nobody gets it, if nobody has it.
    pub(crate) async fn give_volume_up(
        &self,
        tenant: &str,
        name: VolumeName,
        runs: Runs,
    ) -> Result<GivenUp, StoreError> {
        let tenant = tenant.to_owned();
        self.write(Durability::Power, move |connection| {
            let Some(row) = ready(connection, &tenant, &name)? else { return Ok(GivenUp::Unknown) };
            let mut used: Vec<VolumeUser> = users(connection, &tenant)?
                .into_iter()
                .chain(users_of_runs(&runs, &tenant))
                .filter_map(|(id, volumes)| Some(VolumeUser { id, mode: *volumes.get(&name)? }))
                .collect();
            if !used.is_empty() {
                used.sort_by(|one, other| one.id.cmp(&other.id));
                return Ok(GivenUp::Used(used));
            }
            connection.execute(
                "UPDATE volumes SET state = ?2 WHERE id = ?1",
                params![row.id, VolumeState::Removing.name()],
            )?;
            Ok(GivenUp::Yes(row))
        })
        .await
    }

    /// Nothing of it is left on disk.
    pub(crate) async fn forget_volume(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.write(Durability::Process, move |connection| {
            connection.execute("DELETE FROM volumes WHERE id = ?1", [id])
        })
        .await
        .map(|_| ())
    }

    pub(crate) async fn volume(
        &self,
        tenant: &str,
        name: &VolumeName,
    ) -> Result<Option<VolumeRow>, StoreError> {
        let (tenant, name) = (tenant.to_owned(), name.clone());
        self.read(move |connection| ready(connection, &tenant, &name)).await
    }

    /// Of this tenant, by name.
    pub(crate) async fn volumes(&self, tenant: &str) -> Result<Vec<VolumeRow>, StoreError> {
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

    /// Those of all tenants that a server left half-made or half-removed, and the others.
    pub(crate) async fn volumes_left(
        &self,
    ) -> Result<(Vec<VolumeRow>, Vec<VolumeRow>), StoreError> {
        self.read(|connection| {
            let all = |condition: &str| -> rusqlite::Result<Vec<VolumeRow>> {
                connection
                    .prepare(&format!("SELECT {COLUMNS} FROM volumes WHERE {condition}"))?
                    .query_map([], from_row)?
                    .collect()
            };
            Ok((all("state <> 'ready'")?, all("state = 'ready'")?))
        })
        .await
    }

    /// The volumes that a session asks for, in their order; or the name of one that is not there.
    pub(crate) async fn volumes_asked(
        &self,
        tenant: &str,
        asked: AskedVolumes,
    ) -> Result<Result<Vec<VolumeRow>, VolumeName>, StoreError> {
        let tenant = tenant.to_owned();
        self.read(move |connection| all_asked(connection, &tenant, &asked)).await
    }

    /// The same for a run, which holds them from then on. Among the writes, so that none of them is
    /// given up between the look and the hold.
    pub(crate) async fn hold_volumes(
        &self,
        tenant: &str,
        asked: AskedVolumes,
        run: &str,
        runs: Runs,
    ) -> Result<Result<(Vec<VolumeRow>, RunHold), VolumeName>, StoreError> {
        let (tenant, id) = (tenant.to_owned(), run.to_owned());
        self.write(Durability::Process, move |connection| {
            Ok(all_asked(connection, &tenant, &asked)?.map(|rows| {
                lock(&runs).insert(id.clone(), (tenant, asked));
                (rows, RunHold { runs, id })
            }))
        })
        .await
    }

    /// Sessions of this tenant that have not ended, with the volumes they see.
    pub(crate) async fn volume_users(
        &self,
        tenant: &str,
        runs: Runs,
    ) -> Result<Vec<(String, AskedVolumes)>, StoreError> {
        let tenant = tenant.to_owned();
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

fn users_of_runs(runs: &Runs, tenant: &str) -> Vec<(String, AskedVolumes)> {
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
        name: name.parse().map_err(|error: crate::volumes::BadVolumeName| {
            let text = rusqlite::types::Type::Text;
            rusqlite::Error::FromSqlConversionFailure(1, text, error.into())
        })?,
        id: row.get(2)?,
        size: row.get(3)?,
        kind: row.get::<_, Json<VolumeKind>>(4)?.0,
        created_ms: row.get(5)?,
    })
}
