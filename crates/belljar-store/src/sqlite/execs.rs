//! Executions: what was asked, and once it has ended, everything that was said.

use belljar_proto::exec::Status;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{Durability, Json, Store, StoreError};
use crate::exec::ExecRequest;

/// Finished executions that are kept of a session.
const KEPT_EXECS: u64 = 100;

/// Bytes of transcripts that are kept of a session.
const KEPT_BYTES: i64 = 64 * 1024 * 1024;

/// How often, counted in executions, a session's oldest are looked for.
const PRUNE_EVERY: u64 = 50;

#[derive(Debug, Clone)]
pub struct ExecRow {
    pub session: String,
    pub id: String,
    pub number: u64,
    pub request: ExecRequest,
    pub code: Vec<u8>,
    pub accepted_ms: i64,
    pub ended_ms: Option<i64>,
    pub status: Option<Status>,
    /// As [`crate::exec::transcript::Transcript::encode`] wrote it.
    pub transcript: Option<Vec<u8>>,
}

/// An execution that has ended, and what that means for its session.
#[derive(Debug)]
pub struct FinishedExec {
    pub session: String,
    pub id: String,
    pub number: u64,
    pub ended_ms: i64,
    pub status: Status,
    pub transcript: Vec<u8>,
    /// The session was in use until now, and lives on until then; said now and then is enough.
    pub expires_ms: Option<i64>,
}

/// Which executions of a session to list.
#[derive(Debug, Clone, Copy)]
pub struct ExecFilter {
    /// The newest first, or the oldest.
    pub newest_first: bool,
    /// Only those beyond this number, in the direction of the list.
    pub beyond: Option<u64>,
    pub finished: bool,
    pub limit: u32,
}

impl ExecFilter {
    fn query(self, columns: &str) -> String {
        let (comparison, order) = if self.newest_first { ("<", "DESC") } else { (">", "ASC") };
        let finished = if self.finished { "AND ended_ms IS NOT NULL" } else { "" };
        format!(
            "SELECT {columns} FROM execs
             WHERE session = ?1 AND (?2 IS NULL OR number {comparison} ?2) {finished}
             ORDER BY number {order}"
        )
    }
}

/// A part of what a filter lets through.
#[derive(Debug)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Whether others lie beyond the last one.
    pub more: bool,
}

/// Code and output on one page: a page takes no more memory than this, however much its executions
/// have said, unless a single one has said more.
const PAGE_BYTES: usize = 8 * 1024 * 1024;

const COLUMNS: &str =
    "session, id, number, request, code, accepted_ms, ended_ms, status, transcript";

/// What an execution takes in memory, without being read.
const BYTES: &str = "length(code) + coalesce(length(transcript), 0)";

impl Store {
    /// Writes an execution down before it begins. False if its id was used in this session before.
    pub(crate) async fn accept_exec(&self, row: ExecRow) -> Result<bool, StoreError> {
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

    pub(crate) async fn finish_exec(&self, finished: FinishedExec) -> Result<(), StoreError> {
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

    /// An execution, made into what it is wanted for on the thread that reads it: taking a large
    /// transcript apart takes a while.
    pub(crate) async fn exec<T: Send + 'static>(
        &self,
        session: &str,
        id: &str,
        view: impl FnOnce(ExecRow) -> T + Send + 'static,
    ) -> Result<Option<T>, StoreError> {
        let (session, id) = (session.to_owned(), id.to_owned());
        self.read(move |connection| {
            let row = connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM execs WHERE session = ?1 AND id = ?2"
                ))?
                .query_row([session, id], from_row)
                .optional();
            row.map(|row| row.map(view))
        })
        .await
    }

    /// How much memory the code and the transcript of an execution take; 0 if there is none.
    pub(crate) async fn exec_bytes(&self, session: &str, id: &str) -> Result<u64, StoreError> {
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

    /// The same of a page of executions, which is not read for it.
    pub(crate) async fn execs_bytes(
        &self,
        session: &str,
        filter: ExecFilter,
    ) -> Result<u64, StoreError> {
        let session = session.to_owned();
        let beyond = filter.beyond.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&filter.query(BYTES))?;
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

    /// A page of executions, each made into what it is wanted for on the thread that reads it.
    pub(crate) async fn execs<T: Send + 'static>(
        &self,
        session: &str,
        filter: ExecFilter,
        mut view: impl FnMut(ExecRow) -> T + Send + 'static,
    ) -> Result<Page<T>, StoreError> {
        let session = session.to_owned();
        // SQLite's numbers end there, and no execution has such a one.
        let beyond = filter.beyond.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&filter.query(COLUMNS))?;
            let mut rows = statement.query(params![session, beyond])?;
            let mut page = Page { items: Vec::new(), more: false };
            let mut bytes = 0;
            while let Some(row) = rows.next()? {
                if page.items.len() >= filter.limit as usize || bytes >= PAGE_BYTES {
                    page.more = true;
                    break;
                }
                let row = from_row(row)?;
                bytes += row.code.len() + row.transcript.as_ref().map_or(0, Vec::len);
                page.items.push(view(row));
            }
            Ok(page)
        })
        .await
    }

    /// Executions of a session that were accepted and whose end was not written down.
    pub(crate) async fn unfinished_execs(&self, session: &str) -> Result<Vec<ExecRow>, StoreError> {
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

pub(crate) const STATUSES: [Status; 6] =
    [Status::Ok, Status::Error, Status::Timeout, Status::Interrupted, Status::Crashed, Status::Oom];

pub(crate) fn status_name(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Error => "error",
        Status::Timeout => "timeout",
        Status::Interrupted => "interrupted",
        Status::Crashed => "crashed",
        Status::Oom => "oom",
    }
}

fn parse_status(name: &str) -> Option<Status> {
    STATUSES.into_iter().find(|status| status_name(*status) == name)
}
