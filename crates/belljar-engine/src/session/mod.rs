//! A session: a sandbox that keeps its state, found again by its id or its caller's key.
//!
//! ```text
//!                    sandbox failed
//!       Creating ───────────────────────▶ Failed ◀──┐
//!          │ sandbox ready                  ▲       │ sandbox lost
//!          ▼        work began              │       │
//!        Ready ─────────────────▶ Busy ─────┴───────┤
//!        │ ▲ ◀───────────────────── │               │
//!        │ │        work ended      │               │
//!        ▼ └── Waking ◀── Hibernated ─┐             │
//!     Hibernating ──────────▲         │             │
//!          │                          │             │
//!          └───── stop requested, or expired ───────┤
//!                                                   ▼
//!                              Stopped ◀─────── Stopping
//!                                 │    sandbox gone
//!                                 └── start requested: Creating, on the files it left
//! ```
//!
//! One task, the [`driver`], owns the state of a session: its sandbox, its queues and its phase. Callers hold a
//! [`Session`]: they send commands to the driver, read the state that it publishes, and borrow the sandbox through a
//! [`lease`]. The [`rules`](crate::rules) decide which phase follows which.
//!
//! Cells of one language share a kernel and run one after another, in the order in which they were accepted. Commands
//! run in parallel to them. An execution is stored before it begins and again when it has ended, and the guest keeps
//! its output until then. So nothing is lost if the server is killed at any moment.

mod callers;
mod checkpoint;
mod driver;
mod lease;
mod perform;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use belljar_proto::exec::{Language, Status};
use belljar_proto::guest::KernelVariables;
use belljar_runtime::{RuntimeError, Sandbox};
use tokio::sync::{mpsc, oneshot, watch};

pub use crate::rules;
use callers::Callers;
pub(crate) use callers::HeldSession;
pub(crate) use driver::{DriverStart, Origin, drive};
use lease::LeaseGate;
pub(crate) use lease::SandboxLease;

use crate::admission::Quota;
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::exec::{Exec, ExecAsk};
use crate::network::Traffic;
use crate::session_directory::SessionDirectory;
use crate::snapshots::ForkSource;
use crate::spec::{SessionSpec, Storage};
use crate::state::{EngineState, durability};
use crate::store::{SessionRow, StoreError};
use rules::{Phase, Request};

/// Commands that may wait for the driver.
const COMMANDS: usize = 256;

/// Cells that may wait in a session, and commands that may run in it.
pub const MAX_QUEUED: usize = 64;

/// Retry budget for storing an end, such as on a full disk or while the database cannot be reached. It is much longer
/// than a lease: a node that cannot reach the database for that long loses its sessions.
const STORE_RETRIES: u32 = 600;
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The most connections that follow terminals or files of a session; a guest accepts twice as many.
const MAX_ATTACHED: usize = 32;

/// The changing state of a session, as its driver publishes it.
#[derive(Debug, Clone)]
pub struct View {
    pub phase: Phase,
    pub used_ms: i64,
    pub expires_ms: i64,
    pub ended_ms: Option<i64>,
    pub ended_because: Option<String>,
    /// How many executions run, and how many wait.
    pub running: usize,
    pub queued: usize,
    pub execs: u64,
    /// The execution whose end state the session has now: the last one to end in the foreground, or the one that the
    /// session was restored to.
    pub at: Option<String>,
    /// Problems that did not end the session, such as a full disk that holds the session's log.
    pub warnings: Vec<String>,
}

/// Executions whose end is not stored in the database yet, by id.
type LiveExecs = HashMap<String, Arc<Exec>>;

/// The handle of a live session.
#[derive(Debug)]
pub struct Session {
    pub id: String,
    pub tenant: String,
    pub key: Option<String>,
    pub spec: SessionSpec,
    pub created_ms: i64,
    pub record: Option<SessionDirectory>,
    commands: mpsc::Sender<Command>,
    /// The reason, once a stop is requested. Any caller may set it. It is not a command, because the driver must see it
    /// in every phase.
    stop: watch::Sender<Option<String>>,
    view: watch::Receiver<View>,
    live: watch::Receiver<LiveExecs>,
    /// Lends the sandbox; the driver opens and closes it.
    sandbox: Arc<LeaseGate<Sandbox>>,
    pub(crate) traffic: Arc<Traffic>,
    /// How many connections follow its terminals or files; meanwhile it does not expire. It is an atomic because each
    /// connection counts itself, also when it is dropped. The driver only reads it.
    attached: AtomicUsize,
    callers: Callers,
    /// Becomes true when this node no longer owns the session. Any task that learns of it may set it. It is not a
    /// command, because the driver must see it in every phase.
    fenced: watch::Sender<bool>,
}

/// Why a session that this node no longer has cannot be used here.
const MOVED: &str = "this node no longer has the session";

/// The part of a session that only its driver has.
#[derive(Debug)]
pub(crate) struct SessionOwner {
    session: Arc<Session>,
    commands: mpsc::Receiver<Command>,
    view: watch::Sender<View>,
    live: watch::Sender<LiveExecs>,
    failure: Option<oneshot::Sender<EngineError>>,
}

/// Marks a session as in use while a connection follows its terminals or files.
#[derive(Debug)]
pub(crate) struct InUse(Arc<Session>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.attached.fetch_sub(1, Ordering::Relaxed);
        // The idle time of the session begins now.
        let _ = self.0.used();
    }
}

type Answer<T> = oneshot::Sender<Result<T, EngineError>>;

#[derive(Debug)]
enum Command {
    Exec {
        ask: ExecAsk,
        answer: Answer<Arc<Exec>>,
    },
    /// Answered with the number of executions that were interrupted.
    Interrupt {
        exec_id: Option<String>,
        answer: Answer<usize>,
    },
    Extend {
        ttl_s: u64,
        answer: Answer<()>,
    },
    /// The session is used by something other than an execution.
    Used,
    /// Adds a warning to the view, unless it is there already.
    Warn(String),
    /// Answered with a lease of the sandbox. A hibernated session is woken within this quota.
    Wake {
        quota: Quota,
        answer: Answer<SandboxLease>,
    },
    /// Answered with a description of what could not be kept.
    Hibernate {
        force: bool,
        quota: Quota,
        answer: Answer<Vec<String>>,
    },
    /// Answered with a snapshot from which other sessions begin: of the present state, or the checkpoint of an
    /// execution.
    Fork {
        force: bool,
        from: Option<String>,
        answer: Answer<ForkSource>,
    },
    /// Restores the checkpoint of an execution.
    Restore {
        exec: String,
        answer: Answer<()>,
    },
}

impl Session {
    pub(crate) fn new(
        row: SessionRow,
        view: View,
        traffic: Arc<Traffic>,
        sessions_root: &std::path::Path,
    ) -> (Arc<Session>, SessionOwner) {
        let SessionRow { id, tenant, key, spec, created_ms, .. } = row;
        let (commands, received) = mpsc::channel(COMMANDS);
        let (publish_view, view) = watch::channel(view);
        let (publish_live, live) = watch::channel(LiveExecs::new());
        let record =
            (spec.storage == Storage::Bind).then(|| SessionDirectory::of(sessions_root, &id));
        let session = Arc::new(Session {
            id,
            tenant,
            key,
            spec,
            created_ms,
            record,
            commands,
            stop: watch::Sender::new(None),
            view,
            live,
            sandbox: LeaseGate::new(),
            traffic,
            attached: AtomicUsize::new(0),
            callers: Callers::default(),
            fenced: watch::Sender::new(false),
        });
        let owner = SessionOwner {
            session: Arc::clone(&session),
            commands: received,
            view: publish_view,
            live: publish_live,
            failure: None,
        };
        (session, owner)
    }

    /// What the driver has published.
    #[must_use]
    pub fn view(&self) -> View {
        self.view.borrow().clone()
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.view.borrow().phase
    }

    /// Waits until the session is created, has failed, or is left to the next server.
    pub async fn settled(&self) -> View {
        self.wait_for(|view| view.phase != Phase::Creating).await
    }

    /// Waits until the session has ended and its end is stored. Fails if this server leaves it to the next one, or no
    /// longer owns it.
    pub async fn ended(&self) -> Result<View, EngineError> {
        let view = self.wait_for(|view| view.phase.is_over()).await;
        match view.phase.is_over() {
            true => Ok(view),
            false if self.has_moved() => Err(EngineError::Unavailable(MOVED)),
            false => Err(EngineError::Stopping),
        }
    }

    /// This node no longer owns the session: its sandbox is killed, and the driver ends without writing anything.
    pub(crate) fn fence(&self) {
        self.fenced.send_replace(true);
        if let Some(sandbox) = self.sandbox.lease() {
            sandbox.kill();
        }
    }

    pub(crate) fn is_fenced(&self) -> bool {
        *self.fenced.borrow()
    }

    /// Whether this node has lost the session to another one, or has released it.
    fn has_moved(&self) -> bool {
        self.is_fenced() || self.callers.is_closed()
    }

    /// Returns the result of a write about the session. If it says that another node owns the session, it is fenced.
    fn noticed<T>(&self, written: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::Fenced { .. }) = &written
            && !self.is_fenced()
        {
            let id = &self.id;
            tracing::warn!(session.id = id, "this node no longer owns session {id}; it is dropped");
            self.fence();
        }
        written
    }

    /// Why only this node can have the session, if so.
    pub(crate) fn pinned_by(&self) -> Option<&'static str> {
        match () {
            () if self.record.is_some() => Some("its files are on the disk of this node"),
            () if !self.spec.volumes.is_empty() => Some("it uses volumes of this node"),
            () if self.spec.workspace.is_some() => Some("it uses a directory of this node"),
            () => None,
        }
    }

    async fn wait_for(&self, condition: impl FnMut(&View) -> bool) -> View {
        let mut view = self.view.clone();
        let seen = view.wait_for(condition).await.map(|view| view.clone());
        // An error means that this server leaves the session to the next one, so the view does not change any more.
        seen.unwrap_or_else(|_| self.view())
    }

    /// Accepts an execution; it is stored when this returns.
    pub async fn exec(&self, ask: ExecAsk) -> Result<Arc<Exec>, EngineError> {
        self.allows(Request::Exec)?;
        self.ask(|answer| Command::Exec { ask, answer }).await
    }

    /// Interrupts one execution, or all that run. Returns how many were interrupted.
    pub async fn interrupt(&self, exec_id: Option<String>) -> Result<usize, EngineError> {
        self.allows(Request::Attend)?;
        self.ask(|answer| Command::Interrupt { exec_id, answer }).await
    }

    /// Extends its life to at least this long from now.
    pub async fn extend(&self, ttl_s: u64) -> Result<(), EngineError> {
        self.allows(Request::Extend)?;
        self.ask(|answer| Command::Extend { ttl_s, answer }).await
    }

    /// A lease of its sandbox; a hibernated session is woken.
    pub(crate) async fn awake(&self, quota: Quota) -> Result<SandboxLease, EngineError> {
        self.settled().await;
        if let Some(sandbox) = self.sandbox.lease() {
            return Ok(sandbox);
        }
        self.allows(Request::Attend)?;
        self.ask(|answer| Command::Wake { quota, answer }).await
    }

    /// Wakes a hibernated session. In any other phase the driver handles the command itself.
    pub(crate) async fn awake_for_work(&self, quota: Quota) -> Result<(), EngineError> {
        match self.phase().is_away() {
            true => self.awake(quota).await.map(drop),
            false => Ok(()),
        }
    }

    /// Writes the session to files and ends its sandbox. Returns a description of what could not be kept.
    pub(crate) async fn hibernate(
        &self,
        force: bool,
        quota: Quota,
    ) -> Result<Vec<String>, EngineError> {
        self.allows(Request::Attend)?;
        self.ask(|answer| Command::Hibernate { force, quota, answer }).await
    }

    pub(crate) async fn fork(
        &self,
        force: bool,
        from: Option<String>,
    ) -> Result<ForkSource, EngineError> {
        self.allows(Request::Attend)?;
        self.ask(|answer| Command::Fork { force, from, answer }).await
    }

    pub(crate) async fn restore(&self, exec: String) -> Result<(), EngineError> {
        self.allows(Request::Attend)?;
        self.ask(|answer| Command::Restore { exec, answer }).await
    }

    /// Marks the session as used, which extends its life.
    pub(crate) fn used(&self) -> Result<(), EngineError> {
        self.allows(Request::Extend)?;
        // If the queue is full, the session is in use anyway.
        let _ = self.commands.try_send(Command::Used);
        Ok(())
    }

    /// Marks the session as in use while a connection follows one of its terminals or changes of its files.
    pub(crate) fn in_use(self: &Arc<Self>) -> Result<InUse, EngineError> {
        self.allows(Request::Extend)?;
        let before = self.attached.fetch_add(1, Ordering::Relaxed);
        let in_use = InUse(Arc::clone(self));
        if before >= MAX_ATTACHED {
            return Err(EngineError::TooManyAttached(MAX_ATTACHED));
        }
        Ok(in_use)
    }

    /// Waits until no execution runs or waits.
    pub(crate) async fn until_idle(&self) {
        self.wait_for(|view| view.running == 0 && view.queued == 0).await;
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Relaxed) > 0
    }

    /// Requests the end of the session. Only the first reason is kept.
    pub fn stop(&self, because: &str) {
        self.stop.send_if_modified(|reason| {
            let first = reason.is_none();
            if first {
                *reason = Some(because.to_owned());
            }
            first
        });
    }

    /// Adds a warning to its view, unless it is there already.
    pub(crate) fn warn(&self, warning: String) {
        if self.commands.try_send(Command::Warn(warning)).is_err() {
            tracing::debug!(
                session.id = self.id,
                "a warning was dropped: the driver is busy or gone"
            );
        }
    }

    /// Sends standard input to an execution.
    pub async fn stdin(&self, exec_id: &str, bytes: &[u8], close: bool) -> Result<(), EngineError> {
        self.allows(Request::Attend)?;
        let sandbox = self.sandbox()?;
        sandbox.stdin(exec_id, bytes, close).await.map_err(EngineError::Stdin)
    }

    /// The variables of a kernel.
    pub async fn state(
        &self,
        language: Language,
        quota: Quota,
    ) -> Result<KernelVariables, EngineError> {
        self.allows(Request::Attend)?;
        match self.awake(quota).await?.kernel_state(language).await {
            // The kernel was never started, or it is gone, so there are no variables.
            Err(RuntimeError::Refused(refusal))
                if refusal.code == belljar_proto::guest::RefusalCode::NoKernel =>
            {
                Ok(KernelVariables::default())
            }
            answer => answer.map_err(EngineError::State),
        }
    }

    /// An execution that has not ended, or whose end is not yet stored.
    #[must_use]
    pub fn live_exec(&self, id: &str) -> Option<Arc<Exec>> {
        self.live.borrow().get(id).cloned()
    }

    #[must_use]
    pub fn live_execs(&self) -> Vec<Arc<Exec>> {
        self.live.borrow().values().cloned().collect()
    }

    /// Bytes of memory that its sandbox uses.
    #[must_use]
    pub fn memory_used(&self) -> Option<u64> {
        self.sandbox.lease()?.memory_held()
    }

    /// A lease of the sandbox, if the session has one now.
    pub(crate) fn sandbox(&self) -> Result<SandboxLease, EngineError> {
        self.sandbox.lease().ok_or_else(|| {
            let away = self.phase().is_away();
            let refusal = if away { rules::Refusal::Resting } else { rules::Refusal::Ended };
            EngineError::not_now(&self.id, refusal, None)
        })
    }

    fn allows(&self, request: Request) -> Result<(), EngineError> {
        let view = self.view.borrow();
        rules::allows(view.phase, request)
            .map_err(|refusal| EngineError::not_now(&self.id, refusal, view.ended_because.clone()))
    }

    async fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T, EngineError> {
        let (sender, receiver) = oneshot::channel();
        let ended = || {
            if self.has_moved() {
                return EngineError::Unavailable(MOVED);
            }
            let because = self.view.borrow().ended_because.clone();
            EngineError::not_now(&self.id, rules::Refusal::Ended, because)
        };
        self.commands.send(command(sender)).await.map_err(|_| ended())?;
        receiver.await.map_err(|_| ended())?
    }

    async fn store_end(&self, state: &EngineState, end: &View) {
        let durability = durability(&self.spec);
        for left in (0..=STORE_RETRIES).rev() {
            let ended = end.ended_ms.zip(end.ended_because.clone());
            let stored = state.store.set_phase(&self.id, end.phase, ended, durability).await;
            let Err(error) = self.noticed(stored) else { return };
            // A client that asks for the end gets it when it is stored.
            if left > 0 && matches!(error, StoreError::Unavailable(_)) {
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
            let id = &self.id;
            tracing::error!(session.id = id, "failed to store the end: {}", in_full(&error));
            return;
        }
    }
}

impl SessionOwner {
    /// Receives the error if the session cannot be created.
    pub(crate) fn on_failure(&mut self) -> oneshot::Receiver<EngineError> {
        let (failure, receiver) = oneshot::channel();
        self.failure = Some(failure);
        receiver
    }

    /// The parts that are needed to end the session if its driver panics.
    pub(crate) fn after_panic(&self) -> AfterPanic {
        AfterPanic { session: Arc::clone(&self.session), view: self.view.clone() }
    }
}

/// Ends a session whose driver has panicked. It publishes nothing before that.
pub(crate) struct AfterPanic {
    session: Arc<Session>,
    view: watch::Sender<View>,
}

impl AfterPanic {
    pub(crate) async fn end(self, state: &EngineState) {
        let because = "an error in the server ended it";
        // A sandbox that the driver had taken out of the gate was killed when the panic dropped it.
        if let Some(sandbox) = self.session.sandbox.take() {
            sandbox.kill();
            // Dropping the last reference removes what is left of the sandbox, which may block for a moment.
            let _ = tokio::task::spawn_blocking(move || drop(sandbox)).await;
        }
        for exec in self.session.live_execs() {
            exec.end(Status::Crashed, because);
        }
        let end = ended(self.session.view(), Phase::Failed, because);
        if self.session.is_fenced() {
            return;
        }
        self.session.store_end(state, &end).await;
        self.view.send_replace(end);
    }
}

/// The view of a session that ends now.
fn ended(view: View, phase: Phase, because: &str) -> View {
    View {
        phase,
        running: 0,
        queued: 0,
        ended_ms: Some(clock::now_ms()),
        ended_because: Some(because.to_owned()),
        ..view
    }
}

/// The warning for a session whose files exceed a size limit that is not enforced.
pub(crate) fn too_large_on_disk(limit: u64) -> String {
    format!("its files on disk take more than {limit} bytes (BELLJAR_SESSION_SIZE)")
}
