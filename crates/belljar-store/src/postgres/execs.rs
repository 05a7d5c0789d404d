//! The table of executions.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::pool::{Connection, Failed, Side, Work};
use super::{Node, PostgresStore, from_json, signed, to_json, unsigned};
use crate::{
    ExecFilter, ExecRecords, ExecRow, ExecVisitor, FinishedExec, STATUSES, StoreError, status_name,
};

/// A page ends after this many bytes of code and transcripts, so that its memory is bounded. The
/// last execution may exceed it.
const PAGE_BYTES: u64 = 8 * 1024 * 1024;

/// Executions with more bytes are visited on a thread that may block.
const LARGE_BYTES: usize = 64 * 1024;

const COLUMNS: &str =
    "session, id, number, request, code, accepted_ms, ended_ms, status, transcript";

/// The bytes of an execution. Postgres knows them without reading the content.
const BYTES: &str = "(octet_length(code) + coalesce(octet_length(transcript), 0))::bigint";

/// Adds an execution while the session has this owner. The same execution can be added again, if it
/// has not ended: its answer may have been lost.
const ACCEPT: &str = "
    WITH mine AS (
        SELECT id FROM sessions WHERE id = $1 AND owner = $7 AND epoch = $8 FOR SHARE
    ), added AS (
        INSERT INTO execs AS e (session, id, number, request, code, accepted_ms)
        SELECT $1::text, $2::text, $3::bigint, $4::text, $5::bytea, $6::bigint FROM mine
        ON CONFLICT (session, id) DO UPDATE SET accepted_ms = excluded.accepted_ms
            WHERE e.number = excluded.number AND e.code = excluded.code
                AND e.request = excluded.request AND e.ended_ms IS NULL
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM mine), (SELECT count(*) FROM added)";

#[async_trait]
impl ExecRecords for PostgresStore {
    async fn accept_exec(&self, row: ExecRow) -> Result<bool, StoreError> {
        let node = Arc::clone(&self.node);
        // Not lost with a crash of Postgres: a repeated request must find it, or it would run again.
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, bool> {
                Box::pin(async move {
                    match accept(connection, &row, &node).await {
                        Err(failed) if failed.is_unique_violation() => {
                            drop_unanswered(connection, &row, &node).await?;
                            accept(connection, &row, &node).await
                        }
                        accepted => accepted,
                    }
                })
            })
            .await
    }

    async fn finish_exec(&self, finished: FinishedExec) -> Result<(), StoreError> {
        self.finisher.finish(finished).await
    }

    async fn visit_exec(
        &self,
        session: &str,
        id: &str,
        visit: ExecVisitor,
    ) -> Result<(), StoreError> {
        let (session, id) = (session.to_owned(), id.to_owned());
        let row = self
            .pool
            .read(move |connection| -> Work<'_, _> {
                Box::pin(async move {
                    let sql = format!("SELECT {COLUMNS} FROM execs WHERE session = $1 AND id = $2");
                    let found = connection.query_opt(&sql, &[&session, &id]).await?;
                    found.as_ref().map(from_row).transpose()
                })
            })
            .await?;
        visit_all(row.into_iter().collect(), visit).await
    }

    async fn visit_execs(
        &self,
        session: &str,
        filter: ExecFilter,
        visit: ExecVisitor,
    ) -> Result<bool, StoreError> {
        let session = session.to_owned();
        let (rows, more) = self
            .pool
            .read(move |connection| -> Work<'_, (Vec<ExecRow>, bool)> {
                Box::pin(async move {
                    let page = PageBounds::find(connection, &session, filter).await?;
                    Ok((page.rows(connection, &session, filter).await?, page.more))
                })
            })
            .await?;
        visit_all(rows, visit).await?;
        Ok(more)
    }

    async fn exec_bytes(&self, session: &str, id: &str) -> Result<u64, StoreError> {
        let (session, id) = (session.to_owned(), id.to_owned());
        self.pool
            .read(move |connection| -> Work<'_, u64> {
                Box::pin(async move {
                    let sql = format!("SELECT {BYTES} FROM execs WHERE session = $1 AND id = $2");
                    let found = connection.query_opt(&sql, &[&session, &id]).await?;
                    let bytes = found.map(|row| row.try_get(0)).transpose()?;
                    Ok(unsigned(bytes.unwrap_or(0)))
                })
            })
            .await
    }

    async fn execs_bytes(&self, session: &str, filter: ExecFilter) -> Result<u64, StoreError> {
        let session = session.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, u64> {
                Box::pin(
                    async move { Ok(PageBounds::find(connection, &session, filter).await?.bytes) },
                )
            })
            .await
    }

    async fn unfinished_execs(&self, session: &str) -> Result<Vec<ExecRow>, StoreError> {
        let session = session.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, Vec<ExecRow>> {
                Box::pin(async move {
                    let sql = format!(
                        "SELECT {COLUMNS} FROM execs WHERE session = $1 AND ended_ms IS NULL
                         ORDER BY number"
                    );
                    connection.query(&sql, &[&session]).await?.iter().map(from_row).collect()
                })
            })
            .await
    }
}

async fn accept(connection: &mut Connection, row: &ExecRow, node: &Node) -> Result<bool, Failed> {
    let answer = connection
        .query_one(
            ACCEPT,
            &[
                &row.session,
                &row.id,
                &signed(row.number),
                &to_json(&row.request)?,
                &row.code,
                &row.accepted_ms,
                &node.id,
                &node.epoch_or_none(&row.session),
            ],
        )
        .await?;
    if answer.try_get::<_, i64>(0)? == 0 {
        node.disown(&row.session);
        return Err(Failed::Fenced(row.session.clone()));
    }
    Ok(answer.try_get::<_, i64>(1)? > 0)
}

/// Another execution has this number and has not ended. Its answer was lost, so that the driver gave
/// its number to this one.
async fn drop_unanswered(
    connection: &mut Connection,
    row: &ExecRow,
    node: &Node,
) -> Result<u64, Failed> {
    connection
        .execute(
            "DELETE FROM execs USING sessions s
             WHERE session = $1 AND number = $2 AND execs.id <> $3 AND execs.ended_ms IS NULL
               AND s.id = $1 AND s.owner = $4 AND s.epoch = $5",
            &[
                &row.session,
                &signed(row.number),
                &row.id,
                &node.id,
                &node.epoch_or_none(&row.session),
            ],
        )
        .await
}

/// Which executions a page has.
struct PageBounds {
    /// The first and the last number, in the order of the page.
    ends: Option<(i64, i64)>,
    bytes: u64,
    more: bool,
}

impl PageBounds {
    async fn find(
        connection: &mut Connection,
        session: &str,
        filter: ExecFilter,
    ) -> Result<PageBounds, Failed> {
        let (comparison, order) = if filter.newest_first { ("<", "DESC") } else { (">", "ASC") };
        let sql = format!(
            "SELECT number, {BYTES} FROM execs
             WHERE session = $1 AND ($2::bigint IS NULL OR number {comparison} $2) {}
             ORDER BY number {order} LIMIT $3",
            finished(filter)
        );
        let beyond = filter.beyond.map(signed);
        let limit = i64::from(filter.limit) + 1;
        let found = connection.query(&sql, &[&session, &beyond, &limit]).await?;
        let mut page = PageBounds { ends: None, bytes: 0, more: false };
        for (index, row) in found.iter().enumerate() {
            if index >= filter.limit as usize || page.bytes >= PAGE_BYTES {
                page.more = true;
                break;
            }
            let number = row.try_get(0)?;
            page.ends = Some((page.ends.map_or(number, |(first, _)| first), number));
            page.bytes += unsigned(row.try_get(1)?);
        }
        Ok(page)
    }

    async fn rows(
        &self,
        connection: &mut Connection,
        session: &str,
        filter: ExecFilter,
    ) -> Result<Vec<ExecRow>, Failed> {
        let Some((first, last)) = self.ends else { return Ok(Vec::new()) };
        let order = if filter.newest_first { "DESC" } else { "ASC" };
        let sql = format!(
            "SELECT {COLUMNS} FROM execs WHERE session = $1 AND number BETWEEN $2 AND $3 {}
             ORDER BY number {order}",
            finished(filter)
        );
        let bounds = (first.min(last), first.max(last));
        let rows = connection.query(&sql, &[&session, &bounds.0, &bounds.1]).await?;
        rows.iter().map(from_row).collect()
    }
}

fn finished(filter: ExecFilter) -> &'static str {
    if filter.finished { "AND ended_ms IS NOT NULL" } else { "" }
}

async fn visit_all(rows: Vec<ExecRow>, mut visit: ExecVisitor) -> Result<(), StoreError> {
    let size = |row: &ExecRow| row.code.len() + row.transcript.as_ref().map_or(0, Vec::len);
    if rows.iter().map(size).sum::<usize>() <= LARGE_BYTES {
        rows.into_iter().for_each(visit);
        return Ok(());
    }
    let visiting = tokio::task::spawn_blocking(move || rows.into_iter().for_each(&mut visit));
    visiting.await.map_err(|_| StoreError::Closed)
}

fn from_row(row: &Row) -> Result<ExecRow, Failed> {
    let status: Option<&str> = row.try_get(7)?;
    Ok(ExecRow {
        session: row.try_get(0)?,
        id: row.try_get(1)?,
        number: unsigned(row.try_get(2)?),
        request: from_json(row.try_get(3)?)?,
        code: row.try_get(4)?,
        accepted_ms: row.try_get(5)?,
        ended_ms: row.try_get(6)?,
        status: status
            .and_then(|name| STATUSES.into_iter().find(|status| status_name(*status) == name)),
        transcript: row.try_get(8)?,
    })
}
