//! API keys: only hashes of them are kept.

use rusqlite::{Row, params};
use serde::{Deserialize, Serialize};

use super::{Durability, Json, Store, StoreError};

#[derive(Debug, Clone)]
pub struct KeyRow {
    pub id: String,
    pub name: String,
    pub tenant: String,
    pub hash: Vec<u8>,
    pub limits: KeyLimits,
    pub created_ms: i64,
    pub revoked_ms: Option<i64>,
}

/// What whoever has the key may do and use; `None` is no limit of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyLimits {
    /// Requests per minute with this key.
    pub requests_per_minute: Option<u32>,
    /// Of the key's tenant, at the same time.
    pub sessions: Option<u64>,
    /// Those that sleep; as many as `sessions` if that alone is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleeping: Option<u64>,
    pub memory: Option<u64>,
    pub pids: Option<u64>,
    /// An operator's key: it reads what tells of all tenants, and has no sessions.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub operator: bool,
}

const COLUMNS: &str = "id, name, tenant, hash, limits, created_ms, revoked_ms";

impl Store {
    pub async fn put_key(&self, row: KeyRow) -> Result<(), StoreError> {
        self.write(Durability::Power, move |connection| {
            connection.execute(
                &format!("INSERT INTO keys ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"),
                params![
                    row.id,
                    row.name,
                    row.tenant,
                    row.hash,
                    Json(&row.limits),
                    row.created_ms,
                    row.revoked_ms
                ],
            )
        })
        .await
        .map(|_| ())
    }

    /// Whether there was such a key, not revoked yet.
    pub async fn revoke_key(&self, id: &str, now_ms: i64) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.write(Durability::Power, move |connection| {
            let changed = connection.execute(
                "UPDATE keys SET revoked_ms = ?2 WHERE id = ?1 AND revoked_ms IS NULL",
                params![id, now_ms],
            )?;
            Ok(changed > 0)
        })
        .await
    }

    /// Forgets all keys, if none of them is valid; says how many. Without any key, none is needed.
    pub async fn forget_revoked_keys(&self) -> Result<usize, StoreError> {
        self.write(Durability::Power, move |connection| {
            connection.execute(
                "DELETE FROM keys WHERE NOT EXISTS (SELECT 1 FROM keys WHERE revoked_ms IS NULL)",
                params![],
            )
        })
        .await
    }

    pub async fn keys(&self) -> Result<Vec<KeyRow>, StoreError> {
        self.read(|connection| {
            connection
                .prepare_cached(&format!("SELECT {COLUMNS} FROM keys ORDER BY created_ms, id"))?
                .query_map([], from_row)?
                .collect()
        })
        .await
    }

    /// Changes whenever another process has written to the database.
    pub async fn data_version(&self) -> Result<i64, StoreError> {
        self.database.data_version().await
    }
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<KeyRow> {
    Ok(KeyRow {
        id: row.get(0)?,
        name: row.get(1)?,
        tenant: row.get(2)?,
        hash: row.get(3)?,
        limits: row.get::<_, Json<KeyLimits>>(4)?.0,
        created_ms: row.get(5)?,
        revoked_ms: row.get(6)?,
    })
}
