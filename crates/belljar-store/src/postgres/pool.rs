//! Connections to Postgres.
//!
//! ```text
//!   caller ── job ──▶ task ── quick: commits do not wait for the disk ──▶ Postgres
//!                         └── safe: commits wait for the disk
//! ```
//!
//! A job runs in a task of its own, so that it is completed even if its caller goes away. Every job
//! has a time limit. A connection whose job did not end, or that broke, is closed and not used again;
//! the next job opens another.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::url::DatabaseUrl;
use crate::{BackendError, BackendFailure, StoreError, lock_unpoisoned};

/// The time limit of a job, including the time to connect.
pub(super) const CALL: Duration = Duration::from_millis(2500);

/// The time limit of jobs that read or change whole tables.
pub(super) const LONG_CALL: Duration = Duration::from_secs(120);

/// Connections of each side.
const CONNECTIONS: usize = 6;

/// How long [`Pool::close`] waits for jobs.
const CLOSE: Duration = Duration::from_secs(5);

/// Locks and statements end before the caller's patience does.
const SETUP: &str = "SET statement_timeout = 2500; SET lock_timeout = 2000; \
                     SET idle_in_transaction_session_timeout = 10000; \
                     SET TIME ZONE 'UTC'";

/// A transaction with more time.
const LONG: &str = "BEGIN; SET LOCAL statement_timeout = 120000; SET LOCAL lock_timeout = 60000";

pub(super) type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failed>> + Send + 'a>>;

/// Whether a commit waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Quick,
    Safe,
}

/// Why a job failed.
#[derive(Debug)]
pub(super) enum Failed {
    Postgres(tokio_postgres::Error),
    /// The job, or the connection for it, took too long.
    TimedOut,
    Fenced(String),
    /// A stored value that this version cannot read, or a value that cannot be stored.
    Value(String),
    Closed,
    Other(StoreError),
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Failed {
        Failed::Postgres(error)
    }
}

impl Failed {
    pub(super) fn is_unique_violation(&self) -> bool {
        self.code() == Some(&SqlState::UNIQUE_VIOLATION)
    }

    fn code(&self) -> Option<&SqlState> {
        match self {
            Failed::Postgres(error) => error.code(),
            _ => None,
        }
    }

    /// Whether the same call can succeed later, when the database can be reached again.
    fn is_unavailable(&self) -> bool {
        let Failed::Postgres(error) = self else { return matches!(self, Failed::TimedOut) };
        let Some(code) = error.code() else {
            return error.is_closed() || has_io_cause(error);
        };
        let class = code.code().get(..2).unwrap_or_default();
        // Connection lost, server stopping, cancelled; no connection left; a standby; a deadlock.
        ["08", "57", "40"].contains(&class)
            || [
                &SqlState::TOO_MANY_CONNECTIONS,
                &SqlState::READ_ONLY_SQL_TRANSACTION,
                &SqlState::LOCK_NOT_AVAILABLE,
            ]
            .contains(&code)
    }

    fn into_backend_error(self) -> BackendError {
        let failure = match self.code() {
            Some(code) if *code == SqlState::DISK_FULL => BackendFailure::Full,
            Some(code) if *code == SqlState::UNIQUE_VIOLATION => BackendFailure::Conflict,
            _ if self.is_unavailable() => BackendFailure::Unavailable,
            _ => BackendFailure::Other,
        };
        let text = match self {
            Failed::Postgres(error) => explained(&error),
            Failed::Value(text) => text,
            _ => "it did not answer in time".to_owned(),
        };
        BackendError::new(failure, Explained(text))
    }

    pub(super) fn into_store_error(self, otherwise: fn(BackendError) -> StoreError) -> StoreError {
        match self {
            Failed::Fenced(session) => StoreError::Fenced { session },
            Failed::Closed => StoreError::Closed,
            Failed::Other(error) => error,
            failed if failed.is_unavailable() => {
                StoreError::Unavailable(failed.into_backend_error())
            }
            failed => otherwise(failed.into_backend_error()),
        }
    }
}

fn has_io_cause(error: &tokio_postgres::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.is::<std::io::Error>() {
            return true;
        }
        cause = error.source();
    }
    // A connection that could not be made in time has no cause.
    error.to_string().contains("timeout")
}

/// The error and its causes. Errors of Postgres contain neither the URL nor the password.
fn explained(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} ({})", error.message(), error.code().code());
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Explained(String);

/// A connection, with the statements that were prepared on it.
pub(super) struct Connection {
    client: Client,
    task: AbortHandle,
    statements: HashMap<String, Statement>,
    in_transaction: bool,
}

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl Connection {
    async fn statement(&mut self, sql: &str) -> Result<Statement, Failed> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    pub(super) async fn query(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Failed> {
        let statement = self.statement(sql).await?;
        Ok(self.client.query(&statement, parameters).await?)
    }

    /// A statement that is not kept, because it is valid only in this transaction.
    pub(super) async fn query_uncached(&mut self, sql: &str) -> Result<Vec<Row>, Failed> {
        Ok(self.client.query(sql, &[]).await?)
    }

    /// The first row.
    pub(super) async fn query_opt(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, Failed> {
        Ok(self.query(sql, parameters).await?.into_iter().next())
    }

    pub(super) async fn query_one(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Row, Failed> {
        let missing = || Failed::Value("a query returned no row".to_owned());
        self.query_opt(sql, parameters).await?.ok_or_else(missing)
    }

    /// Returns how many rows were changed.
    pub(super) async fn execute(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<u64, Failed> {
        let statement = self.statement(sql).await?;
        Ok(self.client.execute(&statement, parameters).await?)
    }

    /// Several statements without parameters.
    pub(super) async fn batch(&mut self, sql: &str) -> Result<(), Failed> {
        Ok(self.client.batch_execute(sql).await?)
    }

    /// Begins a transaction. Without a commit it is rolled back when the job ends.
    pub(super) async fn begin(&mut self) -> Result<(), Failed> {
        self.in_transaction = true;
        self.batch("BEGIN").await
    }

    /// Begins a transaction whose statements may take as long as [`LONG_CALL`].
    pub(super) async fn begin_long(&mut self) -> Result<(), Failed> {
        self.in_transaction = true;
        self.batch(LONG).await
    }

    pub(super) async fn commit(&mut self) -> Result<(), Failed> {
        self.batch("COMMIT").await?;
        self.in_transaction = false;
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The connections of one store. Clones share them.
#[derive(Clone)]
pub(super) struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    url: DatabaseUrl,
    tls: MakeRustlsConnect,
    quick: Connections,
    safe: Connections,
    closed: AtomicBool,
    /// When the pool was opened, or when the database could not be reached for the last time.
    reachable_since: Mutex<Instant>,
}

struct Connections {
    slots: Semaphore,
    idle: Mutex<Vec<Connection>>,
    setup: &'static str,
}

impl Connections {
    fn new(setup: &'static str) -> Connections {
        Connections { slots: Semaphore::new(CONNECTIONS), idle: Mutex::default(), setup }
    }
}

impl Pool {
    /// Connects once, so that a wrong URL is found now.
    pub(super) async fn open(url: DatabaseUrl) -> Result<Pool, StoreError> {
        let shown = url.to_string();
        let failed = |failed: Failed| StoreError::Open {
            path: shown.clone().into(),
            cause: failed.into_backend_error(),
        };
        let tls = url.tls().map_err(|error| failed(Failed::Value(error.to_string())))?;
        let inner = Inner {
            url,
            tls,
            quick: Connections::new("SET synchronous_commit = off"),
            // A server whose default is off is set to wait; other defaults are kept.
            safe: Connections::new(
                "SELECT set_config('synchronous_commit', 'on', false)
                 WHERE current_setting('synchronous_commit') = 'off'",
            ),
            closed: AtomicBool::new(false),
            reachable_since: Mutex::new(Instant::now()),
        };
        let connecting = tokio::time::timeout(CALL, inner.connect(&inner.quick)).await;
        let connection = connecting.map_err(|_| Failed::TimedOut).flatten().map_err(failed)?;
        lock_unpoisoned(&inner.quick.idle).push(connection);
        Ok(Pool { inner: Arc::new(inner) })
    }

    pub(super) fn url(&self) -> &DatabaseUrl {
        &self.inner.url
    }

    /// How long this process has reached the database without interruption.
    pub(super) fn reachable_for(&self) -> Duration {
        lock_unpoisoned(&self.inner.reachable_since).elapsed()
    }

    pub(super) async fn read<T, J>(&self, job: J) -> Result<T, StoreError>
    where
        T: Send + 'static,
        J: for<'a> FnOnce(&'a mut Connection) -> Work<'a, T> + Send + 'static,
    {
        self.run(Side::Quick, CALL, job, StoreError::Read).await
    }

    pub(super) async fn read_long<T, J>(&self, job: J) -> Result<T, StoreError>
    where
        T: Send + 'static,
        J: for<'a> FnOnce(&'a mut Connection) -> Work<'a, T> + Send + 'static,
    {
        self.run(Side::Quick, LONG_CALL, job, StoreError::Read).await
    }

    pub(super) async fn write<T, J>(&self, side: Side, job: J) -> Result<T, StoreError>
    where
        T: Send + 'static,
        J: for<'a> FnOnce(&'a mut Connection) -> Work<'a, T> + Send + 'static,
    {
        self.run(side, CALL, job, StoreError::Write).await
    }

    pub(super) async fn write_long<T, J>(&self, side: Side, job: J) -> Result<T, StoreError>
    where
        T: Send + 'static,
        J: for<'a> FnOnce(&'a mut Connection) -> Work<'a, T> + Send + 'static,
    {
        self.run(side, LONG_CALL, job, StoreError::Write).await
    }

    async fn run<T, J>(
        &self,
        side: Side,
        limit: Duration,
        job: J,
        otherwise: fn(BackendError) -> StoreError,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        J: for<'a> FnOnce(&'a mut Connection) -> Work<'a, T> + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let task = tokio::spawn(async move {
            let done = tokio::time::timeout(limit, inner.run_on(side, job)).await;
            let failed = match done {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(failed)) => failed,
                Err(_) => Failed::TimedOut,
            };
            if failed.is_unavailable() {
                *lock_unpoisoned(&inner.reachable_since) = Instant::now();
            }
            Err(failed.into_store_error(otherwise))
        });
        // A job that panics fails alone.
        task.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Waits for jobs, and closes all connections. Later jobs fail.
    pub(super) async fn close(&self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        let slots = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
        for side in [&self.inner.quick, &self.inner.safe] {
            let _ = tokio::time::timeout(CLOSE, side.slots.acquire_many(slots)).await;
            lock_unpoisoned(&side.idle).clear();
        }
    }
}

impl Inner {
    async fn run_on<T, J>(&self, side: Side, job: J) -> Result<T, Failed>
    where
        J: for<'a> FnOnce(&'a mut Connection) -> Work<'a, T>,
    {
        let side = match side {
            Side::Quick => &self.quick,
            Side::Safe => &self.safe,
        };
        let (_slot, mut connection) = self.take(side).await?;
        let done = job(&mut connection).await;
        if connection.in_transaction {
            connection.batch("ROLLBACK").await?;
            connection.in_transaction = false;
        }
        if !connection.client.is_closed() && !self.closed.load(Ordering::SeqCst) {
            lock_unpoisoned(&side.idle).push(connection);
        }
        done
    }

    async fn take<'a>(
        &self,
        side: &'a Connections,
    ) -> Result<(SemaphorePermit<'a>, Connection), Failed> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Failed::Closed);
        }
        let slot = side.slots.acquire().await.map_err(|_| Failed::Closed)?;
        if self.closed.load(Ordering::SeqCst) {
            return Err(Failed::Closed);
        }
        while let Some(connection) = { lock_unpoisoned(&side.idle).pop() } {
            if !connection.client.is_closed() {
                return Ok((slot, connection));
            }
        }
        Ok((slot, self.connect(side).await?))
    }

    async fn connect(&self, side: &Connections) -> Result<Connection, Failed> {
        let (client, connection) = self.url.config.connect(self.tls.clone()).await?;
        let task = tokio::spawn(async move {
            // Its error is also the error of the job that uses it.
            let _ = connection.await;
        });
        let mut connection = Connection {
            client,
            task: task.abort_handle(),
            statements: HashMap::new(),
            in_transaction: false,
        };
        connection.batch(&format!("{SETUP}; {}", side.setup)).await?;
        Ok(connection)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("url", &self.inner.url).finish_non_exhaustive()
    }
}
