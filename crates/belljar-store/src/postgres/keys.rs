//! The table of API keys.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::pool::{Failed, Side, Work};
use super::{PostgresStore, from_json, to_json};
use crate::{KeyRecords, KeyRow, StoreError};

const COLUMNS: &str = "id, name, tenant, hash, limits, created_ms, revoked_ms";

/// Begins a statement that changes keys.
const CHANGED: &str = "WITH changed AS (UPDATE keys_version SET version = version + 1)";

#[async_trait]
impl KeyRecords for PostgresStore {
    async fn put_key(&self, row: KeyRow) -> Result<(), StoreError> {
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let sql = format!(
                        "{CHANGED} INSERT INTO keys ({COLUMNS})
                         VALUES ($1, $2, $3, $4, $5, $6, $7)"
                    );
                    connection
                        .execute(
                            &sql,
                            &[
                                &row.id,
                                &row.name,
                                &row.tenant,
                                &row.hash,
                                &to_json(&row.limits)?,
                                &row.created_ms,
                                &row.revoked_ms,
                            ],
                        )
                        .await?;
                    Ok(())
                })
            })
            .await
    }

    async fn revoke_key(&self, id: &str, now_ms: i64) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, bool> {
                Box::pin(async move {
                    let sql = format!(
                        "{CHANGED} UPDATE keys SET revoked_ms = $2
                         WHERE id = $1 AND revoked_ms IS NULL"
                    );
                    Ok(connection.execute(&sql, &[&id, &now_ms]).await? > 0)
                })
            })
            .await
    }

    async fn forget_revoked_keys(&self) -> Result<usize, StoreError> {
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, usize> {
                Box::pin(async move {
                    connection.begin().await?;
                    // No key is added between the check and the deletion.
                    connection.batch("LOCK TABLE keys IN SHARE ROW EXCLUSIVE MODE").await?;
                    let sql = format!(
                        "{CHANGED} DELETE FROM keys
                         WHERE NOT EXISTS (SELECT 1 FROM keys WHERE revoked_ms IS NULL)"
                    );
                    let count = connection.execute(&sql, &[]).await?;
                    connection.commit().await?;
                    Ok(usize::try_from(count).unwrap_or(usize::MAX))
                })
            })
            .await
    }

    async fn keys(&self) -> Result<Vec<KeyRow>, StoreError> {
        self.pool
            .read(move |connection| -> Work<'_, Vec<KeyRow>> {
                Box::pin(async move {
                    let sql = format!("SELECT {COLUMNS} FROM keys ORDER BY created_ms, id");
                    connection.query(&sql, &[]).await?.iter().map(from_row).collect()
                })
            })
            .await
    }

    /// It also changes with writes of this process.
    async fn data_version(&self) -> Result<i64, StoreError> {
        self.pool
            .read(move |connection| -> Work<'_, i64> {
                Box::pin(async move {
                    let sql = "SELECT version FROM keys_version";
                    Ok(connection.query_one(sql, &[]).await?.try_get(0)?)
                })
            })
            .await
    }
}

fn from_row(row: &Row) -> Result<KeyRow, Failed> {
    Ok(KeyRow {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        tenant: row.try_get(2)?,
        hash: row.try_get(3)?,
        limits: from_json(row.try_get(4)?)?,
        created_ms: row.try_get(5)?,
        revoked_ms: row.try_get(6)?,
    })
}
