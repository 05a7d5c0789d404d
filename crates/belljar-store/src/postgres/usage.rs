//! The table of usage.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::pool::{Failed, Side, Work};
use super::{PostgresStore, signed, unsigned};
use crate::{STATUSES, StoreError, UsageDelta, UsageRecords, UsageRow, status_name};

/// Adds to a row, or creates it.
const ADD: &str = "INSERT INTO usage AS u (tenant, day, sessions, runs, ok, error,
         timeout, interrupted, crashed, oom, cpu_us, memory_mib_ms, bytes_in, bytes_out)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
     ON CONFLICT (tenant, day) DO UPDATE SET
         sessions = u.sessions + excluded.sessions, runs = u.runs + excluded.runs,
         ok = u.ok + excluded.ok, error = u.error + excluded.error,
         timeout = u.timeout + excluded.timeout,
         interrupted = u.interrupted + excluded.interrupted,
         crashed = u.crashed + excluded.crashed, oom = u.oom + excluded.oom,
         cpu_us = u.cpu_us + excluded.cpu_us,
         memory_mib_ms = u.memory_mib_ms + excluded.memory_mib_ms,
         bytes_in = u.bytes_in + excluded.bytes_in,
         bytes_out = u.bytes_out + excluded.bytes_out";

#[async_trait]
impl UsageRecords for PostgresStore {
    async fn add_usage(
        &self,
        day: String,
        mut deltas: Vec<(String, UsageDelta)>,
    ) -> Result<(), StoreError> {
        // All nodes lock rows in the same order.
        deltas.sort_by(|(one, _), (other, _)| one.cmp(other));
        self.pool
            .write(Side::Quick, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    connection.begin().await?;
                    for (tenant, delta) in &deltas {
                        let [ok, error, timeout, interrupted, crashed, oom] =
                            delta.execs.map(signed);
                        connection
                            .execute(
                                ADD,
                                &[
                                    tenant,
                                    &day,
                                    &signed(delta.sessions),
                                    &signed(delta.runs),
                                    &ok,
                                    &error,
                                    &timeout,
                                    &interrupted,
                                    &crashed,
                                    &oom,
                                    &signed(delta.cpu_us),
                                    &signed(delta.memory_mib_ms),
                                    &signed(delta.bytes_in),
                                    &signed(delta.bytes_out),
                                ],
                            )
                            .await?;
                    }
                    connection.commit().await
                })
            })
            .await
    }

    async fn usage(
        &self,
        tenant: Option<String>,
        since: String,
    ) -> Result<Vec<UsageRow>, StoreError> {
        self.pool
            .read(move |connection| -> Work<'_, Vec<UsageRow>> {
                Box::pin(async move {
                    let rows = connection
                        .query(
                            "SELECT tenant, day, sessions, runs, ok, error, timeout, interrupted,
                                 crashed, oom, cpu_us, memory_mib_ms, bytes_in, bytes_out
                             FROM usage WHERE ($1::text IS NULL OR tenant = $1) AND day >= $2
                             ORDER BY day, tenant",
                            &[&tenant, &since],
                        )
                        .await?;
                    rows.iter().map(from_row).collect()
                })
            })
            .await
    }
}

#[expect(clippy::cast_precision_loss, reason = "sums for people to read")]
fn from_row(row: &Row) -> Result<UsageRow, Failed> {
    let number = |index: usize| Ok::<u64, Failed>(unsigned(row.try_get(index)?));
    let mut execs = BTreeMap::new();
    for (index, status) in STATUSES.into_iter().enumerate() {
        execs.insert(status_name(status), number(4 + index)?);
    }
    Ok(UsageRow {
        tenant: row.try_get(0)?,
        day: row.try_get(1)?,
        sessions: number(2)?,
        runs: number(3)?,
        execs,
        cpu_seconds: number(10)? as f64 / 1e6,
        memory_gib_seconds: number(11)? as f64 / 1024.0 / 1000.0,
        bytes_in: number(12)?,
        bytes_out: number(13)?,
    })
}
