//! The table of executions.

use async_trait::async_trait;
use belljar_proto::exec::Status;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{Json, SqliteStore};
use crate::{
    Durability, ExecFilter, ExecRecords, ExecRequest, ExecRow, ExecVisitor, FinishedExec, STATUSES,
    StoreError, status_name,
};

/// How many finished executions are kept per session.
const KEPT_EXECS: u64 = 100;

/// How many bytes of code and transcripts are kept per session.
const KEPT_BYTES: i64 = 64 * 1024 * 1024;

/// The oldest executions of a session are deleted each time after this many executions.
const PRUNE_EVERY: u64 = 50;

/// A page ends after this many bytes of code and transcripts, so that its memory is bounded. The
/// last execution may exceed it.
const PAGE_BYTES: usize = 8 * 1024 * 1024;

const COLUMNS: &str =
    "session, id, number, request, code, accepted_ms, ended_ms, status, transcript";

/// The bytes of an execution. SQLite knows them without reading the content.
const BYTES: &str = "length(code) + coalesce(length(transcript), 0)";

#[async_trait]
impl ExecRecords for SqliteStore {
    async fn accept_exec(&self, row: ExecRow) -> Result<bool, StoreError> {
        self.write(Durability::Process, move |connection| {
            let added = connection
                .prepare_cached(
                    "INSERT INTO execs (session, id, number, request, code, accepted_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
                )?
                .execute(params![
                    row.session,
                    row.id,
                    row.number,
                    Json(&row.request),
                    row.code,
                    row.accepted_ms
                ])?;
            Ok(added > 0)
        })
        .await
    }

    async fn finish_exec(&self, finished: FinishedExec) -> Result<(), StoreError> {
        self.write(Durability::Soon, move |connection| {
            connection
                .prepare_cached(
                    "UPDATE execs SET ended_ms = ?3, status = ?4, transcript = ?5
                     WHERE session = ?1 AND id = ?2",
                )?
                .execute(params![
                    finished.session,
                    finished.id,
                    finished.ended_ms,
                    status_name(finished.status),
                    finished.transcript
                ])?;
            if let Some(expires_ms) = finished.expires_ms {
                connection
                    .prepare_cached(
                        "UPDATE sessions SET used_ms = max(used_ms, ?2),
                             expires_ms = max(expires_ms, ?3) WHERE id = ?1",
                    )?
                    .execute(params![finished.session, finished.ended_ms, expires_ms])?;
            }
            if finished.number.is_multiple_of(PRUNE_EVERY) {
                prune(connection, &finished.session, finished.number)?;
            }
            Ok(())
        })
        .await
    }

    async fn visit_exec(
        &self,
        session: &str,
        id: &str,
        mut visit: ExecVisitor,
    ) -> Result<(), StoreError> {
        let (session, id) = (session.to_owned(), id.to_owned());
        self.read(move |connection| {
            let row = connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM execs WHERE session = ?1 AND id = ?2"
                ))?
                .query_row([session, id], from_row)
                .optional()?;
            row.into_iter().for_each(&mut visit);
            Ok(())
        })
        .await
    }

    async fn exec_bytes(&self, session: &str, id: &str) -> Result<u64, StoreError> {
        let (session, id) = (session.to_owned(), id.to_owned());
        self.read(move |connection| {
            let bytes = connection
                .prepare_cached(&format!(
                    "SELECT {BYTES} FROM execs WHERE session = ?1 AND id = ?2"
                ))?
                .query_row([session, id], |row| row.get(0))
                .optional();
            bytes.map(Option::unwrap_or_default)
        })
        .await
    }

    async fn execs_bytes(&self, session: &str, filter: ExecFilter) -> Result<u64, StoreError> {
        let (session, beyond) = (session.to_owned(), bound(filter));
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&query(filter, BYTES))?;
            let mut rows = statement.query(params![session, beyond])?;
            let (mut bytes, mut count) = (0, 0);
            while count < filter.limit && bytes < PAGE_BYTES as u64 {
                let Some(row) = rows.next()? else { break };
                bytes += row.get::<_, u64>(0)?;
                count += 1;
            }
            Ok(bytes)
        })
        .await
    }

    async fn visit_execs(
        &self,
        session: &str,
        filter: ExecFilter,
        mut visit: ExecVisitor,
    ) -> Result<bool, StoreError> {
        let (session, beyond) = (session.to_owned(), bound(filter));
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&query(filter, COLUMNS))?;
            let mut rows = statement.query(params![session, beyond])?;
            let (mut bytes, mut count) = (0, 0);
            while let Some(row) = rows.next()? {
                if count >= filter.limit || bytes >= PAGE_BYTES {
                    return Ok(true);
                }
                let row = from_row(row)?;
                bytes += row.code.len() + row.transcript.as_ref().map_or(0, Vec::len);
                count += 1;
                visit(row);
            }
            Ok(false)
        })
        .await
    }

    async fn unfinished_execs(&self, session: &str) -> Result<Vec<ExecRow>, StoreError> {
        let session = session.to_owned();
        self.read(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM execs WHERE session = ?1 AND ended_ms IS NULL
                     ORDER BY number"
                ))?
                .query_map([session], from_row)?
                .collect()
        })
        .await
    }
}

fn query(filter: ExecFilter, columns: &str) -> String {
    let (comparison, order) = if filter.newest_first { ("<", "DESC") } else { (">", "ASC") };
    let finished = if filter.finished { "AND ended_ms IS NOT NULL" } else { "" };
    format!(
        "SELECT {columns} FROM execs
         WHERE session = ?1 AND (?2 IS NULL OR number {comparison} ?2) {finished}
         ORDER BY number {order}"
    )
}

/// The highest number in SQLite is `i64::MAX`, and no execution has such a number.
fn bound(filter: ExecFilter) -> Option<i64> {
    filter.beyond.map(|number| i64::try_from(number).unwrap_or(i64::MAX))
}

fn prune(connection: &Connection, session: &str, newest: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM execs WHERE session = ?1 AND ended_ms IS NOT NULL AND number <= ?2",
        )?
        .execute(params![session, newest.saturating_sub(KEPT_EXECS)])?;
    connection
        .prepare_cached(
            "DELETE FROM execs WHERE session = ?1 AND ended_ms IS NOT NULL AND number < (
                 SELECT coalesce(min(number), ?3) FROM (
                     SELECT number, sum(length(transcript) + length(code))
                         OVER (ORDER BY number DESC) AS bytes
                     FROM execs WHERE session = ?1)
                 WHERE bytes <= ?2)",
        )?
        .execute(params![session, KEPT_BYTES, newest])?;
    Ok(())
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<ExecRow> {
    Ok(ExecRow {
        session: row.get(0)?,
        id: row.get(1)?,
        number: row.get(2)?,
        request: row.get::<_, Json<ExecRequest>>(3)?.0,
        code: row.get(4)?,
        accepted_ms: row.get(5)?,
        ended_ms: row.get(6)?,
        status: row.get::<_, Option<String>>(7)?.and_then(|name| parse_status(&name)),
        transcript: row.get(8)?,
    })
}

fn parse_status(name: &str) -> Option<Status> {
    STATUSES.into_iter().find(|status| status_name(*status) == name)
}
