//! A session: a sandbox that remembers, found again by its id or its caller's key.
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
//!          └───── stop asked, or its time is up ────┤
//!                                                   ▼
//!                              Stopped ◀─────── Stopping
//!                                 │    sandbox gone
//!                                 └── start asked: Creating, on the files it left
//! ```
//!
//! One task, the [`driver`], owns the session's sandbox and changes its phase; everybody else sends
//! it commands and reads what it publishes. Which phase follows which is decided by [`rules`].
//!
//! Cells of one language share a kernel and run one after another, in the order they were accepted;
//! commands run beside them. An execution is written down before it is begun and again when it has
//! ended, and the guest keeps what it said until then: a server killed at any moment loses nothing.

mod checkpoint;
mod driver;
mod perform;
pub mod rules;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use belljar_proto::exec::{Language, Status};
use belljar_proto::guest::KernelVariables;
use belljar_runtime::{RuntimeError, Sandbox};
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use driver::{Origin, drive};

use crate::admission::Quota;
use crate::artifacts::Memory;
use crate::clock;
use crate::engine::{EngineState, durability};
use crate::error::{EngineError, in_full};
use crate::exec::{Exec, ExecAsk};
use crate::lock;
use crate::network::Traffic;
use crate::record::Record;
use crate::snapshots::ForkSource;
use crate::spec::{SessionSpec, Storage};
use crate::store::{SessionRow, StoreError};
use rules::{Phase, Request};

/// Commands on their way to the driver.
const COMMANDS: usize = 256;

/// Cells that may wait in a session, and commands that may run in it.
pub const MAX_QUEUED: usize = 64;

/// Connections that follow terminals or files of a session; a guest takes twice as many.
const MAX_ATTACHED: usize = 32;

/// What of a session changes.
#[derive(Debug, Clone)]
pub struct View {
    pub phase: Phase,
    pub used_ms: i64,
    pub expires_ms: i64,
    pub ended_ms: Option<i64>,
    pub ended_because: Option<String>,
    /// Executions that run, and that wait.
    pub running: usize,
    pub queued: usize,
    pub execs: u64,
    /// The execution after which it is what it is: the last to end in the foreground, or that which
    /// it was taken back to.
    pub at: Option<String>,
    /// What went wrong without ending anything, such as a full disk below the session's log.
    pub warnings: Vec<String>,
}

/// The handle of a live session.
#[derive(Debug)]
pub struct Session {
    pub id: String,
    pub tenant: String,
    pub key: Option<String>,
    pub spec: SessionSpec,
    pub created_ms: i64,
    pub record: Option<Record>,
    commands: mpsc::Sender<Command>,
    /// Set to the reason once somebody wants it stopped; a channel of its own, because it must be
    /// heard in every phase.
    stop: watch::Sender<Option<String>>,
    view: watch::Sender<View>,
    sandbox: Mutex<Option<Arc<Sandbox>>>,
    /// Why it could not be made, for whoever asked for it.
    pub(crate) failure: Mutex<Option<EngineError>>,
    /// Executions that are safe in the database and that the guest does not know to be so.
    forgettable: Mutex<Vec<String>>,
    /// What went out of it.
    pub(crate) traffic: Arc<Traffic>,
    /// What is known of its artifacts directory; held while that is looked at.
    artifacts: tokio::sync::Mutex<Memory>,
    /// The last snapshot of its Python kernel, or that which it was made of.
    base: Mutex<Option<u64>>,
    /// Held while a checkpoint is taken: several executions may end at the same time.
    checkpointing: tokio::sync::Mutex<()>,
    /// Executions that are not yet safe in the database, by id.
    live: Mutex<HashMap<String, Arc<Exec>>>,
    /// Why the end of an execution could not be stored, while that is tried again.
    unwritten: Mutex<Option<StoreError>>,
    /// How many are at its terminals, or watch its files: it does not expire while somebody is.
    attached: AtomicUsize,
}

/// Somebody follows something in a session, for as long as this lives.
#[derive(Debug)]
pub(crate) struct InUse(Arc<Session>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.attached.fetch_sub(1, Ordering::Relaxed);
        // Its time of being unused begins now.
        let _ = self.0.used();
    }
}

type Answer<T> = oneshot::Sender<Result<T, EngineError>>;

#[derive(Debug)]
pub(crate) enum Command {
    Exec {
        ask: ExecAsk,
        answer: Answer<Arc<Exec>>,
    },
    Interrupt {
        exec_id: Option<String>,
        answer: Answer<usize>,
    },
    Extend {
        ttl_s: u64,
        answer: Answer<()>,
    },
    /// It is used by something that is no execution.
    Used,
    /// Somebody needs its sandbox, within this quota.
    Wake {
        quota: Quota,
        answer: Answer<()>,
    },
    /// Answered with what could not be kept.
    Hibernate {
        force: bool,
        quota: Quota,
        answer: Answer<Vec<String>>,
    },
    /// A snapshot for others to begin with: of now, or of what was after an execution.
    ForkSource {
        force: bool,
        from: Option<String>,
        answer: Answer<ForkSource>,
    },
    /// Goes back to what was after an execution.
    Restore {
        exec: String,
        answer: Answer<()>,
    },
}

/// What the driver holds of a session, besides the handle.
pub(crate) struct Inbox {
    pub(crate) commands: mpsc::Receiver<Command>,
}

impl Session {
    pub(crate) fn new(
        row: SessionRow,
        view: View,
        traffic: Arc<Traffic>,
        sessions_root: &std::path::Path,
    ) -> (Arc<Session>, Inbox) {
        let SessionRow { id, tenant, key, spec, created_ms, .. } = row;
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let record = (spec.storage == Storage::Bind).then(|| Record::of(sessions_root, &id));
        let session = Session {
            id,
            tenant,
            key,
            spec,
            created_ms,
            record,
            commands,
            stop: watch::Sender::new(None),
            view: watch::Sender::new(view),
            sandbox: Mutex::default(),
            failure: Mutex::default(),
            traffic,
            artifacts: tokio::sync::Mutex::default(),
            base: Mutex::default(),
            checkpointing: tokio::sync::Mutex::default(),
            forgettable: Mutex::default(),
            live: Mutex::default(),
            unwritten: Mutex::default(),
            attached: AtomicUsize::new(0),
        };
        (Arc::new(session), Inbox { commands: inbox })
    }

    #[must_use]
    pub fn view(&self) -> View {
        self.view.borrow().clone()
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.view.borrow().phase
    }

    /// Waits until it has been made, or could not be.
    pub async fn settled(&self) -> View {
        self.wait_for(|view| match view.phase {
            Phase::Creating => false,
            // Its end is published in two steps, and the second says why.
            phase if phase.is_over() => view.ended_ms.is_some(),
            _ => true,
        })
        .await
    }

    /// Waits for its end, and until that is written down.
    pub async fn ended(&self) -> View {
        self.wait_for(|view| view.phase.is_over() && view.ended_ms.is_some()).await
    }

    async fn wait_for(&self, condition: impl FnMut(&View) -> bool) -> View {
        let mut view = self.view.subscribe();
        let seen = view.wait_for(condition).await;
        // The sender is in `self`, so there is always something to wait for.
        seen.map_or_else(|_| self.view(), |view| view.clone())
    }

    /// Accepts something to execute; it has been written down when this returns.
    pub async fn exec(&self, ask: ExecAsk) -> Result<Arc<Exec>, EngineError> {
        self.allows(Request::Exec)?;
        self.ask(|answer| Command::Exec { ask, answer }).await
    }

    /// Interrupts an execution, or everything that runs; says how many that were.
    pub async fn interrupt(&self, exec_id: Option<String>) -> Result<usize, EngineError> {
        self.allows(Request::Attend)?;
        self.ask(|answer| Command::Interrupt { exec_id, answer }).await
    }

    /// Lets it live at least this long from now.
    pub async fn extend(&self, ttl_s: u64) -> Result<(), EngineError> {
        self.allows(Request::Extend)?;
        self.ask(|answer| Command::Extend { ttl_s, answer }).await
    }

    /// Its sandbox; one that sleeps is woken for it.
    pub(crate) async fn awake(&self, quota: Quota) -> Result<Arc<Sandbox>, EngineError> {
        self.settled().await;
        if let Some(sandbox) = lock(&self.sandbox).clone() {
            return Ok(sandbox);
        }
        self.allows(Request::Attend)?;
        self.ask(|answer| Command::Wake { quota, answer }).await?;
        self.sandbox()
    }

    /// Wakes one that sleeps. Of any other, the driver knows what to do.
    pub(crate) async fn awake_for_work(&self, quota: Quota) -> Result<(), EngineError> {
        match self.phase().is_away() {
            true => self.awake(quota).await.map(drop),
            false => Ok(()),
        }
    }

    /// Makes files of it, until somebody needs it. Returns what could not be kept.
    pub(crate) async fn hibernate(
        &self,
        force: bool,
        quota: Quota,
    ) -> Result<Vec<String>, EngineError> {
        self.allows(Request::Attend)?;
        self.ask(|answer| Command::Hibernate { force, quota, answer }).await
    }

    pub(crate) async fn branch(
        &self,
        force: bool,
        from: Option<String>,
    ) -> Result<ForkSource, EngineError> {
        self.allows(Request::Attend)?;
        self.ask(|answer| Command::ForkSource { force, from, answer }).await
    }

    pub(crate) async fn restore(&self, exec: String) -> Result<(), EngineError> {
        self.allows(Request::Attend)?;
        self.ask(|answer| Command::Restore { exec, answer }).await
    }

    /// Counts as use, from which its life is counted.
    pub(crate) fn used(&self) -> Result<(), EngineError> {
        self.allows(Request::Extend)?;
        // One that is too busy to hear of it is in use anyway.
        let _ = self.commands.try_send(Command::Used);
        Ok(())
    }

    /// Somebody sits down at one of its terminals, or watches its files.
    pub(crate) fn in_use(self: &Arc<Self>) -> Result<InUse, EngineError> {
        self.allows(Request::Extend)?;
        let before = self.attached.fetch_add(1, Ordering::Relaxed);
        let in_use = InUse(Arc::clone(self));
        if before >= MAX_ATTACHED {
            return Err(EngineError::TooManyAttached(MAX_ATTACHED));
        }
        Ok(in_use)
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Relaxed) > 0
    }

    /// Asks for its end; the first to ask gives the reason.
    pub fn stop(&self, because: &str) {
        self.stop.send_if_modified(|reason| {
            let first = reason.is_none();
            if first {
                *reason = Some(because.to_owned());
            }
            first
        });
    }

    /// Feeds an execution that takes input.
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
            // It was never started, or is gone: there are no variables.
            Err(RuntimeError::Refused(refusal))
                if refusal.code == belljar_proto::guest::RefusalCode::NoKernel =>
            {
                Ok(KernelVariables::default())
            }
            answer => answer.map_err(EngineError::State),
        }
    }

    /// An execution that has not ended, or only just.
    #[must_use]
    pub fn live_exec(&self, id: &str) -> Option<Arc<Exec>> {
        lock(&self.live).get(id).cloned()
    }

    #[must_use]
    pub fn live_execs(&self) -> Vec<Arc<Exec>> {
        lock(&self.live).values().cloned().collect()
    }

    /// Bytes that its sandbox holds.
    #[must_use]
    pub fn memory_used(&self) -> Option<u64> {
        self.sandbox().ok()?.memory_held()
    }

    /// Ends a session whose driver is no more.
    pub(crate) async fn mourn(&self, shared: &EngineState) {
        let because = "an error in the server ended it";
        let sandbox = lock(&self.sandbox).take();
        if let Some(sandbox) = sandbox {
            sandbox.kill();
            // Whoever holds it last removes what is left of it, which may take a moment.
            let _ = tokio::task::spawn_blocking(move || drop(sandbox)).await;
        }
        for exec in self.live_execs() {
            exec.end(Status::Crashed, because);
        }
        let now = clock::now_ms();
        self.write_end(shared, Phase::Failed, now, because).await;
        self.publish_end(Phase::Failed, now, because);
    }

    async fn write_end(&self, shared: &EngineState, phase: Phase, now: i64, because: &str) {
        let ended = Some((now, because.to_owned()));
        let durability = durability(&self.spec);
        if let Err(error) = shared.store.set_phase(&self.id, phase, ended, durability).await {
            let id = &self.id;
            tracing::error!(session.id = id, "failed to write down an end: {}", in_full(&error));
        }
    }

    fn publish_end(&self, phase: Phase, now: i64, because: &str) {
        self.view.send_modify(|view| {
            view.phase = phase;
            view.running = 0;
            view.queued = 0;
            view.ended_ms = Some(now);
            view.ended_because = Some(because.to_owned());
        });
    }

    fn allows(&self, request: Request) -> Result<(), EngineError> {
        let view = self.view.borrow();
        rules::allows(view.phase, request)
            .map_err(|refusal| EngineError::not_now(&self.id, refusal, view.ended_because.clone()))
    }

    pub(crate) fn sandbox(&self) -> Result<Arc<Sandbox>, EngineError> {
        lock(&self.sandbox).clone().ok_or_else(|| {
            let away = self.phase().is_away();
            let refusal = if away { rules::Refusal::Resting } else { rules::Refusal::Ended };
            EngineError::not_now(&self.id, refusal, None)
        })
    }

    async fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T, EngineError> {
        let (sender, receiver) = oneshot::channel();
        let ended = || {
            let because = self.view.borrow().ended_because.clone();
            EngineError::not_now(&self.id, rules::Refusal::Ended, because)
        };
        self.commands.send(command(sender)).await.map_err(|_| ended())?;
        receiver.await.map_err(|_| ended())?
    }
}
