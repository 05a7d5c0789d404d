//! One SQLite file with one writer.
//!
//! ```text
//!   anybody ── job ──▶ writer, if it is free ────────────────────────────────┐
//!                └──▶ queue ──▶ writer thread ── one transaction for all ────┴──▶ WAL
//!   anybody ── query ──▶ queue ──▶ reader threads, each with a connection
//! ```
//!
//! The threads are the database's own: work that fills tokio's blocking threads does not keep
//! anybody from reading or writing here.
//!
//! A commit that need not wait for the disk is a copy to memory, and cheaper than waking a thread
//! for it: whoever finds the writer free writes by themselves.
//!
//! A write is in the file when its future resolves: a killed server has lost nothing it has told
//! anybody. [`Durability`] says whether it must also survive a power cut, after which no sandbox is
//! left anyway but files on disk are.

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

/// Jobs waiting for the writer, and queries waiting for readers. Beyond it callers wait, which slows
/// down whoever asks for too much.
const QUEUE: usize = 4096;

/// Threads that read. A query seldom takes longer than a millisecond; a page of large executions does,
/// and must not keep others waiting.
const READERS: usize = 4;

/// Jobs in one transaction.
const BATCH: usize = 256;

/// How long a write that nobody waits for may wait for company.
const SOON: Duration = Duration::from_millis(20);

/// After this many jobs what is in the log is brought into the database itself, by a thread of its
/// own: nobody who writes waits for the disk.
const CHECKPOINT_AFTER: usize = 512;

/// A log that has grown to this size although it was brought in all the time, because writing never
/// paused, is begun anew while writers wait.
const MAX_LOG_BYTES: u64 = 64 * 1024 * 1024;

/// Somebody else, a person with `sqlite3` perhaps, may hold the database for a moment.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// While it stays locked, further writes wait no longer than this: their callers get an error soon.
const LOCKED_TIMEOUT: Duration = Duration::from_millis(250);

type Failure = Arc<rusqlite::Error>;
/// Runs in a transaction, or is told why there is none.
type Job = (Durability, Work);
type Work = Box<dyn FnOnce(Result<&Connection, &Failure>) -> Outcome + Send>;
/// What a job did, to be told once the transaction is over; `Some` if that failed.
type Outcome = Box<dyn FnOnce(Option<&Failure>) + Send>;

/// Reads, on a reader's thread.
type Query = Box<dyn FnOnce(&Connection) + Send>;

/// What the writer is told.
enum Order {
    /// Its place in the queue is free again when it is taken out.
    Write { job: Job, _place: OwnedSemaphorePermit },
    /// There is something to be written soon.
    Nudge,
}

/// Writes that nobody waits for.
#[derive(Default)]
struct Soon {
    jobs: Mutex<Vec<Job>>,
    /// Whether the writer sleeps until it is woken: it must be told of the first of them.
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
    jobs: Mutex<Option<Sender<Order>>>,
    /// Places in the queue of jobs.
    room: Arc<Semaphore>,
    soon: Arc<Soon>,
    writer: Arc<Mutex<Option<Writer>>>,
    /// Until the store is closed.
    queries: Mutex<Option<mpsc::Sender<Query>>>,
    /// For [`Database::read_now`] and [`Database::data_version`], until the store is closed.
    reader: Arc<Mutex<Option<Connection>>>,
    readers: Mutex<Vec<JoinHandle<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The one connection that writes.
struct Writer {
    connection: Connection,
    /// As it is set at the moment.
    durability: Durability,
    /// Written since the log was last brought in.
    jobs: usize,
    grown: SyncSender<()>,
    log: PathBuf,
    /// Whether somebody else held the file when it was last tried.
    locked: bool,
}

impl Database {
    /// Opens the database, making or migrating it as needed. What is there and is not ours, or is
    /// broken, is left alone and reported.
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
        // Inspected already, and never written to: it only copies pages.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let checkpointer = Connection::open_with_flags(path, flags)
            .map_err(|cause| StoreError::Open { path: path.into(), cause: cause.into() })?;
        let keeper = thread("store-keeper").spawn(move || checkpoint(checkpointer, &due));
        let keeper = keeper.map_err(failed)?;
        let (jobs, queue) = channel();
        let soon = Arc::new(Soon::default());
        let log = PathBuf::from(format!("{}-wal", path.display()));
        let durability = Durability::Power;
        let writer = Writer { connection, durability, jobs: 0, grown, log, locked: false };
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
                // Whoever asked may have given up.
                let _ = sender.send(result.map_err(|cause| StoreError::Write(shared(cause))));
            })
        });
        if !self.order(durability, job).await {
            return Err(StoreError::Closed);
        }
        receiver.await.map_err(|_| StoreError::Closed)?
    }

    /// Hands a job to the writer; false if there is none any more.
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
                let _ = orders.send(Order::Nudge);
            }
            return true;
        }
        let Some(job) = self.write_here((durability, job)) else { return true };
        // Before a place is waited for: the writer ends when nobody can send to it any more.
        drop(orders);
        let Ok(_place) = Arc::clone(&self.shared.room).acquire_owned().await else { return false };
        let orders = lock(&self.shared.jobs).clone();
        orders.is_some_and(|orders| orders.send(Order::Write { job, _place }).is_ok())
    }

    /// Writes a job without a thread, if that takes no waiting; gives it back otherwise.
    fn write_here(&self, job: Job) -> Option<Job> {
        let free = self.shared.writer.try_lock().ok();
        let (Durability::Process, Some(mut writer)) = (job.0, free) else { return Some(job) };
        let Some(writer) = writer.as_mut() else { return Some(job) };
        let mut batch = std::mem::take(&mut *lock(&self.shared.soon.jobs));
        batch.push(job);
        let (mut left, _) = writer.write(batch, Duration::ZERO).err()?;
        // Somebody else has the file: the thread can wait for them.
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
            // Whoever asked may have given up.
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

    /// Changes whenever another connection has written to the database. Each connection counts for
    /// itself, so it is always the same one that is asked.
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

    /// Reads here and now: before there is anybody to be kept waiting.
    pub(super) fn read_now<T>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let reader = lock(&self.shared.reader);
        query(reader.as_ref().ok_or(StoreError::Closed)?)
            .map_err(|cause| StoreError::Read(cause.into()))
    }

    /// Writes what is waiting and closes the file. Whatever comes later fails.
    pub(super) async fn close(&self) {
        // The readers first: the writer leaves one file instead of three if it is the last to close it.
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

/// Answers queries until nobody can ask any more.
fn answer(connection: &Connection, waiting: &Mutex<mpsc::Receiver<Query>>) {
    loop {
        // One of the readers waits for the next query, the others for their turn to do so.
        let query = lock(waiting).blocking_recv();
        let Some(query) = query else { return };
        // Whoever asked for what panics gets an error; the thread is still needed.
        let _ = catch_unwind(AssertUnwindSafe(|| query(connection)));
    }
}

/// Brings the log into the database whenever it is due, beside whoever writes.
fn checkpoint(connection: Connection, due: &Receiver<()>) {
    while due.recv().is_ok() {
        // Somebody reads or writes: next time.
        let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }
    drop(connection);
}

fn write_until_closed(writer: &Mutex<Option<Writer>>, queue: &Receiver<Order>, soon: &Soon) {
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
        // Failing costs the next start a moment.
        writer.checkpoint("TRUNCATE");
    }
}

impl Writer {
    /// Writes all of this in one transaction, or gives it back if that cannot be begun: somebody
    /// else writes for longer than `patience`.
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
        outcomes.into_iter().for_each(|tell| tell(failure.as_ref()));
        self.written(jobs);
        Ok(())
    }

    fn written(&mut self, jobs: usize) {
        self.jobs += jobs;
        // A few large jobs fill it as well as many small ones.
        let too_long = std::fs::metadata(&self.log).is_ok_and(|log| log.len() > MAX_LOG_BYTES);
        if self.jobs < CHECKPOINT_AFTER && !too_long {
            return;
        }
        self.jobs = 0;
        let _ = self.grown.try_send(());
        if too_long {
            // If somebody reads just now it does not happen, and is tried after the next write.
            self.checkpoint("TRUNCATE");
        }
    }

    fn checkpoint(&self, how: &str) {
        let pragma = format!("PRAGMA wal_checkpoint({how})");
        let _ = self.connection.query_row(&pragma, [], |_| Ok(()));
    }
}

/// Waits for something that is to be written now; `None` when nothing will come any more.
fn next_batch(queue: &Receiver<Order>, soon: &Soon) -> Option<Vec<Job>> {
    let first = loop {
        // Set before looking: whoever adds something after we looked finds us dozing and says so.
        soon.dozing.store(true, Ordering::SeqCst);
        let received = if lock(&soon.jobs).is_empty() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            soon.dozing.store(false, Ordering::SeqCst);
            queue.recv_timeout(SOON)
        };
        match received {
            Ok(Order::Write { job, .. }) => break Some(job),
            Ok(Order::Nudge) if lock(&soon.jobs).len() < BATCH => {}
            Ok(Order::Nudge) | Err(RecvTimeoutError::Timeout) => break None,
            Err(RecvTimeoutError::Disconnected) if lock(&soon.jobs).is_empty() => return None,
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    soon.dozing.store(false, Ordering::SeqCst);
    let mut batch = std::mem::take(&mut *lock(&soon.jobs));
    batch.extend(first);
    batch.extend(queue.try_iter().take(BATCH).filter_map(|order| match order {
        Order::Write { job, .. } => Some(job),
        Order::Nudge => None,
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
