//! The table of datasets.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, params};

use super::SqliteStore;
use crate::{DatasetRecords, DatasetRow, DatasetStatus, Durability, StoreError};

const COLUMNS: &str = "session, name, status, reason, source, sha256, size, updated_ms";

#[async_trait]
impl DatasetRecords for SqliteStore {
    async fn put_dataset(&self, row: DatasetRow) -> Result<(), StoreError> {
        self.write(Durability::Process, move |connection| {
            connection
                .prepare_cached(&format!(
                    "INSERT OR REPLACE INTO datasets ({COLUMNS})
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"
                ))?
                .execute(params![
                    row.session,
                    row.name,
                    row.status.name(),
                    row.reason,
                    row.source,
                    row.sha256.map(|sha256| sha256.to_string()),
                    row.size,
                    row.updated_ms,
                ])?;
            Ok(())
        })
        .await
    }

    async fn datasets(&self, session: &str) -> Result<Vec<DatasetRow>, StoreError> {
        let session = session.to_owned();
        self.read(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM datasets WHERE session = ?1 ORDER BY name"
                ))?
                .query_map([session], from_row)?
                .collect()
        })
        .await
    }

    async fn dataset_of_source(
        &self,
        session: &str,
        source: &str,
    ) -> Result<Option<DatasetRow>, StoreError> {
        let (session, source) = (session.to_owned(), source.to_owned());
        self.read(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM datasets WHERE session = ?1 AND source = ?2
                     ORDER BY updated_ms DESC LIMIT 1"
                ))?
                .query_row([session, source], from_row)
                .optional()
        })
        .await
    }

    async fn remove_dataset(&self, session: &str, name: &str) -> Result<(), StoreError> {
        let (session, name) = (session.to_owned(), name.to_owned());
        self.write(Durability::Process, move |connection| {
            connection
                .prepare_cached("DELETE FROM datasets WHERE session = ?1 AND name = ?2")?
                .execute([session, name])?;
            Ok(())
        })
        .await
    }

    async fn fail_pending_datasets(
        &self,
        reason: &'static str,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.write(Durability::Process, move |connection| {
            connection.execute(
                "UPDATE datasets SET status = ?1, reason = ?2, updated_ms = ?3 WHERE status = ?4",
                params![
                    DatasetStatus::Failed.name(),
                    reason,
                    now_ms,
                    DatasetStatus::Pending.name()
                ],
            )?;
            Ok(())
        })
        .await
    }
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<DatasetRow> {
    let status: String = row.get(2)?;
    let sha256: Option<String> = row.get(5)?;
    Ok(DatasetRow {
        session: row.get(0)?,
        name: row.get(1)?,
        status: DatasetStatus::ALL
            .into_iter()
            .find(|known| known.name() == status)
            .unwrap_or(DatasetStatus::Failed),
        reason: row.get(3)?,
        source: row.get(4)?,
        sha256: sha256.and_then(|text| text.parse().ok()),
        size: row.get(6)?,
        updated_ms: row.get(7)?,
    })
}
