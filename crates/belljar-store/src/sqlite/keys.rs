//! The table of API keys.

use async_trait::async_trait;
use rusqlite::{Row, params};

use super::{Json, SqliteStore};
use crate::{Durability, KeyLimits, KeyRecords, KeyRow, StoreError};

const COLUMNS: &str = "id, name, tenant, hash, limits, created_ms, revoked_ms";

#[async_trait]
impl KeyRecords for SqliteStore {
    async fn put_key(&self, row: KeyRow) -> Result<(), StoreError> {
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

    async fn revoke_key(&self, id: &str, now_ms: i64) -> Result<bool, StoreError> {
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

    async fn forget_revoked_keys(&self) -> Result<usize, StoreError> {
        self.write(Durability::Power, move |connection| {
            connection.execute(
                "DELETE FROM keys WHERE NOT EXISTS (SELECT 1 FROM keys WHERE revoked_ms IS NULL)",
                params![],
            )
        })
        .await
    }

    async fn keys(&self) -> Result<Vec<KeyRow>, StoreError> {
        self.read(|connection| {
            connection
                .prepare_cached(&format!("SELECT {COLUMNS} FROM keys ORDER BY created_ms, id"))?
                .query_map([], from_row)?
                .collect()
        })
        .await
    }

    async fn data_version(&self) -> Result<i64, StoreError> {
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
