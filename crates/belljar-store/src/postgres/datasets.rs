//! The table of datasets.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::pool::{Failed, Side, Work};
use super::sessions::owned;
use super::{PostgresStore, signed, storable, unsigned};
use crate::{DatasetRecords, DatasetRow, DatasetStatus, Digest, StoreError};

const COLUMNS: &str = "session, name, status, reason, source, sha256, size, updated_ms";

#[async_trait]
impl DatasetRecords for PostgresStore {
    async fn put_dataset(&self, row: DatasetRow) -> Result<(), StoreError> {
        let node = Arc::clone(&self.node);
        self.pool
            .write(Side::Quick, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let sql = format!(
                        "INSERT INTO datasets ({COLUMNS})
                         SELECT id, $2::text, $3::text, $4::text, $5::text, $6::text, $7::bigint,
                             $8::bigint
                         FROM sessions WHERE id = $1 AND owner = $9 AND epoch = $10 FOR SHARE
                         ON CONFLICT (session, name) DO UPDATE SET status = excluded.status,
                             reason = excluded.reason, source = excluded.source,
                             sha256 = excluded.sha256, size = excluded.size,
                             updated_ms = excluded.updated_ms"
                    );
                    let changed = connection
                        .execute(
                            &sql,
                            &[
                                &row.session,
                                &row.name,
                                &row.status.name(),
                                &row.reason.map(storable),
                                &row.source,
                                &row.sha256.map(|sha256| sha256.to_string()),
                                &row.size.map(signed),
                                &row.updated_ms,
                                &node.id,
                                &node.epoch_or_none(&row.session),
                            ],
                        )
                        .await?;
                    owned(changed, &node, &row.session)
                })
            })
            .await
    }

    async fn datasets(&self, session: &str) -> Result<Vec<DatasetRow>, StoreError> {
        let session = session.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, Vec<DatasetRow>> {
                Box::pin(async move {
                    let sql =
                        format!("SELECT {COLUMNS} FROM datasets WHERE session = $1 ORDER BY name");
                    connection.query(&sql, &[&session]).await?.iter().map(from_row).collect()
                })
            })
            .await
    }

    async fn dataset_of_source(
        &self,
        session: &str,
        source: &str,
    ) -> Result<Option<DatasetRow>, StoreError> {
        let (session, source) = (session.to_owned(), source.to_owned());
        self.pool
            .read(move |connection| -> Work<'_, Option<DatasetRow>> {
                Box::pin(async move {
                    let sql = format!(
                        "SELECT {COLUMNS} FROM datasets WHERE session = $1 AND source = $2
                         ORDER BY updated_ms DESC LIMIT 1"
                    );
                    let found = connection.query_opt(&sql, &[&session, &source]).await?;
                    found.as_ref().map(from_row).transpose()
                })
            })
            .await
    }

    async fn remove_dataset(&self, session: &str, name: &str) -> Result<(), StoreError> {
        let (session, name) = (session.to_owned(), name.to_owned());
        let node = Arc::clone(&self.node);
        self.pool
            .write(Side::Quick, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let epoch = node.epoch_or_none(&session);
                    let answer = connection
                        .query_one(
                            "WITH mine AS (SELECT id FROM sessions
                                 WHERE id = $1 AND owner = $3 AND epoch = $4 FOR SHARE),
                             gone AS (DELETE FROM datasets USING mine
                                 WHERE session = mine.id AND name = $2)
                             SELECT count(*) FROM mine",
                            &[&session, &name, &node.id, &epoch],
                        )
                        .await?;
                    owned(unsigned(answer.try_get(0)?), &node, &session)
                })
            })
            .await
    }

    /// Only those of sessions that this node owns.
    async fn fail_pending_datasets(
        &self,
        reason: &'static str,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let node = Arc::clone(&self.node);
        self.pool
            .write(Side::Quick, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    connection
                        .execute(
                            "UPDATE datasets SET status = $1, reason = $2, updated_ms = $3
                             FROM sessions s
                             WHERE status = $4 AND s.id = session AND s.owner = $5",
                            &[
                                &DatasetStatus::Failed.name(),
                                &reason,
                                &now_ms,
                                &DatasetStatus::Pending.name(),
                                &node.id,
                            ],
                        )
                        .await?;
                    Ok(())
                })
            })
            .await
    }
}

fn from_row(row: &Row) -> Result<DatasetRow, Failed> {
    let status: &str = row.try_get(2)?;
    let sha256: Option<&str> = row.try_get(5)?;
    let size: Option<i64> = row.try_get(6)?;
    Ok(DatasetRow {
        session: row.try_get(0)?,
        name: row.try_get(1)?,
        status: DatasetStatus::ALL
            .into_iter()
            .find(|known| known.name() == status)
            .unwrap_or(DatasetStatus::Failed),
        reason: row.try_get(3)?,
        source: row.try_get(4)?,
        sha256: sha256.and_then(|text| text.parse::<Digest>().ok()),
        size: size.map(unsigned),
        updated_ms: row.try_get(7)?,
    })
}
