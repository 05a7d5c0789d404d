//! One SQLite file with one writer.
//!
//! ```text
//!   caller ── job ──▶ writer, if it is free ─────────────────────────────────┐
//!               └──▶ queue ──▶ writer thread ── one transaction for all ─────┴──▶ WAL
//!   caller ── query ──▶ queue ──▶ reader threads, each with a connection
//! ```
//!
//! The threads belong to the database: work that fills tokio's blocking threads does not delay
//! reads or writes here.
//!
//! A commit that need not wait for the disk is a copy to memory, and cheaper than waking a thread
//! for it: a caller that finds the writer free writes on its own thread.
//!
//! A write is in the file when its future resolves: a killed server has lost nothing that a client
//! saw. [`Durability`] says whether it must also survive a power cut, which ends all sandboxes but
//! keeps files on disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::lock;
use super::schema::Schema;
use crate::{BackendError, Durability, StoreError};

/// Jobs waiting for the writer, and queries waiting for readers. When it is full, callers wait.
const QUEUE: usize = 4096;

/// Threads that read. Most queries take less than a millisecond; a page of large executions takes
/// longer and must not delay others.
const READERS: usize = 4;

/// Jobs in one transaction.
const BATCH: usize = 256;

/// How long a write with [`Durability::Soon`] waits for other writes, to share their transaction.
const SOON: Duration = Duration::from_millis(20);

/// After this many jobs a separate thread copies the log into the database, so that writers do not
/// wait for the disk.
const CHECKPOINT_AFTER: usize = 512;

/// A log of this size is truncated while writers wait. It can grow that large because the
/// checkpoints above do not truncate it while writing never pauses.
const MAX_LOG_BYTES: u64 = 64 * 1024 * 1024;

/// Another process, such as `sqlite3`, may lock the database for a moment.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// While it stays locked, further writes wait only this long, so that their callers get an error soon.
const LOCKED_TIMEOUT: Duration = Duration::from_millis(250);

type Failure = Arc<rusqlite::Error>;
/// Runs in a transaction, or gets the reason why there is none.
type Job = (Durability, Work);
type Work = Box<dyn FnOnce(Result<&Connection, &Failure>) -> Outcome + Send>;
/// Reports the result of a job after the transaction; the argument is its failure, if it failed.
type Outcome = Box<dyn FnOnce(Option<&Failure>) + Send>;

/// Reads, on a reader's thread.
type Query = Box<dyn FnOnce(&Connection) + Send>;

/// A message to the writer thread.
enum WriterMessage {
    /// Its place in the queue is free again when it is taken from it.
    Write { job: Job, _place: OwnedSemaphorePermit },
    /// A job with [`Durability::Soon`] waits.
    Nudge,
}

/// Jobs with [`Durability::Soon`].
#[derive(Default)]
struct Soon {
    jobs: Mutex<Vec<Job>>,
    /// Whether the writer sleeps until it gets a message: it must get one for the first of them.
    dozing: AtomicBool,
}

impl std::fmt::Debug for DatabaseState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

/// A handle of the database; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Database {
    shared: Arc<DatabaseState>,
}

struct DatabaseState {
    jobs: Mutex<Option<Sender<WriterMessage>>>,
    /// Places in the queue of jobs.
    room: Arc<Semaphore>,
    soon: Arc<Soon>,
    writer: Arc<Mutex<Option<WriteConnection>>>,
    /// Until the store is closed.
    queries: Mutex<Option<mpsc::Sender<Query>>>,
    /// For [`Database::read_now`] and [`Database::data_version`], until the store is closed.
    reader: Arc<Mutex<Option<Connection>>>,
    readers: Mutex<Vec<JoinHandle<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The one connection that writes.
struct WriteConnection {
    connection: Connection,
    /// The present setting of the connection.
    durability: Durability,
    /// Jobs since the last checkpoint.
    jobs: usize,
    grown: SyncSender<()>,
    log: PathBuf,
    /// Whether another process had locked the file at the last attempt.
    locked: bool,
}

impl Database {
    /// Opens the file, creating or migrating it as needed. A file that is damaged, or has another
    /// schema, is not changed.
    pub(super) fn open(path: &Path, schema: &Schema) -> Result<Database, StoreError> {
        schema.create_if_absent(path)?;
        let connection = schema.open(path)?;
        let reader = open_reader(path)?;
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let failed = |cause| StoreError::StateDir { path: path.into(), cause };
        let (queries, waiting) = mpsc::channel(QUEUE);
        let waiting = Arc::new(Mutex::new(waiting));
        let mut readers = Vec::new();
        for _ in 0..READERS {
            let (connection, waiting) = (open_reader(path)?, Arc::clone(&waiting));
            let reading = thread("store-reader").spawn(move || answer(&connection, &waiting));
            readers.push(reading.map_err(failed)?);
        }
        let (grown, due) = sync_channel(1);
        // Inspected already. This connection only copies pages from the log.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let checkpointer = Connection::open_with_flags(path, flags)
            .map_err(|cause| StoreError::Open { path: path.into(), cause: cause.into() })?;
        let keeper = thread("store-keeper").spawn(move || checkpoint(checkpointer, &due));
        let keeper = keeper.map_err(failed)?;
        let (jobs, queue) = channel();
        let soon = Arc::new(Soon::default());
        let log = PathBuf::from(format!("{}-wal", path.display()));
        let durability = Durability::Power;
        let writer = WriteConnection { connection, durability, jobs: 0, grown, log, locked: false };
        let writer = Arc::new(Mutex::new(Some(writer)));
        let (for_thread, soon_for_thread) = (Arc::clone(&writer), Arc::clone(&soon));
        let thread = thread("store-writer")
            .spawn(move || {
                write_until_closed(&for_thread, &queue, &soon_for_thread);
                let _ = keeper.join();
            })
            .map_err(failed)?;
        Ok(Database {
            shared: Arc::new(DatabaseState {
                jobs: Mutex::new(Some(jobs)),
                room: Arc::new(Semaphore::new(QUEUE)),
                soon,
                writer,
                queries: Mutex::new(Some(queries)),
                reader: Arc::new(Mutex::new(Some(reader))),
                readers: Mutex::new(readers),
                thread: Mutex::new(Some(thread)),
            }),
        })
    }

    /// Runs `job` in a transaction and returns when that is committed.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let job = Box::new(move |connection: Result<&Connection, &Failure>| -> Outcome {
            let result = match connection {
                Ok(connection) => job(connection).map_err(Arc::new),
                Err(failure) => Err(Arc::clone(failure)),
            };
            Box::new(move |failure| {
                let result = match (result, failure) {
                    (Ok(_), Some(cause)) => Err(Arc::clone(cause)),
                    (result, _) => result,
                };
                // The caller may have given up.
                let _ = sender.send(result.map_err(|cause| StoreError::Write(shared(cause))));
            })
        });
        if !self.order(durability, job).await {
            return Err(StoreError::Closed);
        }
        receiver.await.map_err(|_| StoreError::Closed)?
    }

    /// Hands a job to the writer; false if the database is closed.
    async fn order(&self, durability: Durability, job: Work) -> bool {
        let Some(orders) = lock(&self.shared.jobs).clone() else { return false };
        if durability == Durability::Soon {
            let waiting = {
                let mut soon = lock(&self.shared.soon.jobs);
                soon.push((durability, job));
                soon.len()
            };
            if self.shared.soon.dozing.swap(false, Ordering::SeqCst)
                || waiting.is_multiple_of(BATCH)
            {
                let _ = orders.send(WriterMessage::Nudge);
            }
            return true;
        }
        let Some(job) = self.write_here((durability, job)) else { return true };
        // Dropped before waiting for a place: the writer ends when no sender is left.
        drop(orders);
        let Ok(_place) = Arc::clone(&self.shared.room).acquire_owned().await else { return false };
        let orders = lock(&self.shared.jobs).clone();
        orders.is_some_and(|orders| orders.send(WriterMessage::Write { job, _place }).is_ok())
    }

    /// Writes a job on this thread, if that takes no waiting; returns it otherwise.
    fn write_here(&self, job: Job) -> Option<Job> {
        let free = self.shared.writer.try_lock().ok();
        let (Durability::Process, Some(mut writer)) = (job.0, free) else { return Some(job) };
        let Some(writer) = writer.as_mut() else { return Some(job) };
        let mut batch = std::mem::take(&mut *lock(&self.shared.soon.jobs));
        batch.push(job);
        let (mut left, _) = writer.write(batch, Duration::ZERO).err()?;
        // Another process has the file: the writer thread can wait for it.
        let job = left.pop();
        lock(&self.shared.soon.jobs).splice(..0, left);
        job
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let query: Query = Box::new(move |connection| {
            // The caller may have given up.
            if !sender.is_closed() {
                let _ =
                    sender.send(query(connection).map_err(|cause| StoreError::Read(cause.into())));
            }
        });
        let queries = lock(&self.shared.queries).clone().ok_or(StoreError::Closed)?;
        queries.send(query).await.map_err(|_| StoreError::Closed)?;
        drop(queries);
        receiver.await.map_err(|_| StoreError::Closed)?
    }

    /// Changes whenever another connection has written to the database. Each connection has its own
    /// count, so the same one is asked always.
    pub(super) async fn data_version(&self) -> Result<i64, StoreError> {
        let reader = Arc::clone(&self.shared.reader);
        let version = self.read(move |_| {
            let reader = lock(&reader);
            let version = |reader: &Connection| {
                reader.pragma_query_value(None, "data_version", |row| row.get(0))
            };
            reader.as_ref().map(version).transpose()
        });
        version.await?.ok_or(StoreError::Closed)
    }

    /// Reads on this thread: for use before the server answers requests.
    pub(super) fn read_now<T>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let reader = lock(&self.shared.reader);
        query(reader.as_ref().ok_or(StoreError::Closed)?)
            .map_err(|cause| StoreError::Read(cause.into()))
    }

    /// Completes waiting writes and closes the file. Later calls fail.
    pub(super) async fn close(&self) {
        // The readers first: if the writer closes the file last, SQLite removes the log files.
        lock(&self.shared.queries).take();
        lock(&self.shared.reader).take();
        let readers = std::mem::take(&mut *lock(&self.shared.readers));
        let join = |threads: Vec<JoinHandle<()>>| {
            tokio::task::spawn_blocking(move || {
                threads.into_iter().for_each(|thread| drop(thread.join()));
            })
        };
        let _ = join(readers).await;
        lock(&self.shared.jobs).take();
        let writer = lock(&self.shared.thread).take();
        let _ = join(writer.into_iter().collect()).await;
    }
}

/// One failure fails all jobs of a transaction.
fn shared(failure: Failure) -> BackendError {
    BackendError::new(super::failure(&failure), failure)
}

fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .and_then(|reader| reader.busy_timeout(BUSY_TIMEOUT).map(|()| reader))
        .map_err(|cause| StoreError::Open { path: path.into(), cause: cause.into() })
}

/// Runs queries until the database is closed.
fn answer(connection: &Connection, waiting: &Mutex<mpsc::Receiver<Query>>) {
    loop {
        // One of the readers waits for the next query, the others for their turn to do so.
        let query = lock(waiting).blocking_recv();
        let Some(query) = query else { return };
        // The caller of a query that panics gets an error; the thread goes on.
        let _ = catch_unwind(AssertUnwindSafe(|| query(connection)));
    }
}

/// Copies the log into the database whenever it is due, while others write.
fn checkpoint(connection: Connection, due: &Receiver<()>) {
    while due.recv().is_ok() {
        // It fails while others read or write: next time.
        let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }
    drop(connection);
}

fn write_until_closed(
    writer: &Mutex<Option<WriteConnection>>,
    queue: &Receiver<WriterMessage>,
    soon: &Soon,
) {
    while let Some(batch) = next_batch(queue, soon) {
        let mut writer = lock(writer);
        let Some(writer) = writer.as_mut() else { continue };
        let patience = if writer.locked { LOCKED_TIMEOUT } else { BUSY_TIMEOUT };
        if let Err((batch, why)) = writer.write(batch, patience) {
            writer.locked = true;
            let why = Arc::new(why);
            batch.into_iter().for_each(|(_, job)| job(Err(&why))(None));
        }
    }
    if let Some(writer) = lock(writer).take() {
        // If it fails, the next start does it.
        writer.checkpoint("TRUNCATE");
    }
}

impl WriteConnection {
    /// Writes all jobs in one transaction, or returns them if that cannot begin because another
    /// process has the file for longer than `patience`.
    fn write(
        &mut self,
        batch: Vec<Job>,
        patience: Duration,
    ) -> Result<(), (Vec<Job>, rusqlite::Error)> {
        let power = batch.iter().any(|(wanted, _)| *wanted == Durability::Power);
        let wanted = if power { Durability::Power } else { Durability::Process };
        if wanted != self.durability && set_durability(&self.connection, wanted).is_ok() {
            self.durability = wanted;
        }
        let begun = self
            .connection
            .busy_timeout(patience)
            .and_then(|()| self.connection.execute_batch("BEGIN IMMEDIATE"));
        if let Err(why) = begun {
            return Err((batch, why));
        }
        self.locked = false;
        let jobs = batch.len();
        let outcomes: Vec<Outcome> =
            batch.into_iter().map(|(_, job)| job(Ok(&self.connection))).collect();
        let failure = self.connection.execute_batch("COMMIT").map_err(Arc::new).err();
        if failure.is_some() && !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        outcomes.into_iter().for_each(|report| report(failure.as_ref()));
        self.written(jobs);
        Ok(())
    }

    fn written(&mut self, jobs: usize) {
        self.jobs += jobs;
        // A few large jobs can fill it too.
        let too_long = std::fs::metadata(&self.log).is_ok_and(|log| log.len() > MAX_LOG_BYTES);
        if self.jobs < CHECKPOINT_AFTER && !too_long {
            return;
        }
        self.jobs = 0;
        let _ = self.grown.try_send(());
        if too_long {
            // It does not happen while a reader is active; the next write tries again.
            self.checkpoint("TRUNCATE");
        }
    }

    fn checkpoint(&self, how: &str) {
        let pragma = format!("PRAGMA wal_checkpoint({how})");
        let _ = self.connection.query_row(&pragma, [], |_| Ok(()));
    }
}

/// Waits for jobs that are due; `None` when the database is closed.
fn next_batch(queue: &Receiver<WriterMessage>, soon: &Soon) -> Option<Vec<Job>> {
    let first = loop {
        // Set before looking: a caller that adds a job after that sees it and sends a message.
        soon.dozing.store(true, Ordering::SeqCst);
        let received = if lock(&soon.jobs).is_empty() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            soon.dozing.store(false, Ordering::SeqCst);
            queue.recv_timeout(SOON)
        };
        match received {
            Ok(WriterMessage::Write { job, .. }) => break Some(job),
            Ok(WriterMessage::Nudge) if lock(&soon.jobs).len() < BATCH => {}
            Ok(WriterMessage::Nudge) | Err(RecvTimeoutError::Timeout) => break None,
            Err(RecvTimeoutError::Disconnected) if lock(&soon.jobs).is_empty() => return None,
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    soon.dozing.store(false, Ordering::SeqCst);
    let mut batch = std::mem::take(&mut *lock(&soon.jobs));
    batch.extend(first);
    batch.extend(queue.try_iter().take(BATCH).filter_map(|order| match order {
        WriterMessage::Write { job, .. } => Some(job),
        WriterMessage::Nudge => None,
    }));
    Some(batch)
}

fn set_durability(connection: &Connection, durability: Durability) -> rusqlite::Result<()> {
    let value = match durability {
        Durability::Soon | Durability::Process => "NORMAL",
        Durability::Power => "FULL",
    };
    connection.pragma_update(None, "synchronous", value)
}
