//! The table of usage.

use async_trait::async_trait;
use rusqlite::{Row, params};

use super::SqliteStore;
use crate::{Durability, STATUSES, StoreError, UsageDelta, UsageRecords, UsageRow, status_name};

/// Adds to a row, or creates it.
const ADD: &str = "INSERT INTO usage (tenant, day, sessions, runs, ok, error, timeout, interrupted,
         crashed, oom, cpu_us, memory_mib_ms, bytes_in, bytes_out)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
     ON CONFLICT DO UPDATE SET
         sessions = sessions + excluded.sessions, runs = runs + excluded.runs,
         ok = ok + excluded.ok, error = error + excluded.error,
         timeout = timeout + excluded.timeout,
         interrupted = interrupted + excluded.interrupted,
         crashed = crashed + excluded.crashed, oom = oom + excluded.oom,
         cpu_us = cpu_us + excluded.cpu_us,
         memory_mib_ms = memory_mib_ms + excluded.memory_mib_ms,
         bytes_in = bytes_in + excluded.bytes_in,
         bytes_out = bytes_out + excluded.bytes_out";

#[async_trait]
impl UsageRecords for SqliteStore {
    async fn add_usage(
        &self,
        day: String,
        deltas: Vec<(String, UsageDelta)>,
    ) -> Result<(), StoreError> {
        self.write(Durability::Process, move |connection| {
            let mut statement = connection.prepare_cached(ADD)?;
            for (tenant, delta) in deltas {
                let [ok, error, timeout, interrupted, crashed, oom] = delta.execs;
                statement.execute(params![
                    tenant,
                    day,
                    delta.sessions,
                    delta.runs,
                    ok,
                    error,
                    timeout,
                    interrupted,
                    crashed,
                    oom,
                    delta.cpu_us,
                    delta.memory_mib_ms,
                    delta.bytes_in,
                    delta.bytes_out
                ])?;
            }
            Ok(())
        })
        .await
    }

    async fn usage(
        &self,
        tenant: Option<String>,
        since: String,
    ) -> Result<Vec<UsageRow>, StoreError> {
        self.read(move |connection| {
            connection
                .prepare_cached(
                    "SELECT tenant, day, sessions, runs, ok, error, timeout, interrupted, crashed,
                         oom, cpu_us, memory_mib_ms, bytes_in, bytes_out
                     FROM usage WHERE (?1 IS NULL OR tenant = ?1) AND day >= ?2
                     ORDER BY day, tenant",
                )?
                .query_map(params![tenant, since], from_row)?
                .collect()
        })
        .await
    }
}

#[expect(clippy::cast_precision_loss, reason = "sums for people to read")]
fn from_row(row: &Row<'_>) -> rusqlite::Result<UsageRow> {
    let mut execs = std::collections::BTreeMap::new();
    for (index, status) in STATUSES.into_iter().enumerate() {
        execs.insert(status_name(status), row.get(4 + index)?);
    }
    Ok(UsageRow {
        tenant: row.get(0)?,
        day: row.get(1)?,
        sessions: row.get(2)?,
        runs: row.get(3)?,
        execs,
        cpu_seconds: row.get::<_, u64>(10)? as f64 / 1e6,
        memory_gib_seconds: row.get::<_, u64>(11)? as f64 / 1024.0 / 1000.0,
        bytes_in: row.get(12)?,
        bytes_out: row.get(13)?,
    })
}
