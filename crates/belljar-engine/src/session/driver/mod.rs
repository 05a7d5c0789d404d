//! The task that owns a session.
//!
//! ```text
//!   create ─────────▶ serve ─────────────────▶ end ───────▶ over: stored, room given back, published
//!    │  (inherit)       │  commands, turns,     │ (ending)
//!    │                  │  ends of executions   └──▶ leave: the server ends, the sandbox goes on
//!    │                  ▲ │
//!    │                  │ └▶ quiescent: hibernate, fork, restore
//!    │                  │      │ hibernated
//!    │                  └──────┴▶ sleep: only files are left, until a call needs the session
//!    └─ failed, or stopped before it was created ────────▶ over
//! ```
//!
//! In a cluster there are two more ends. A hibernated session whose snapshot is in S3 is released, and any node can
//! claim it. A session that another node owns is dropped: its sandbox is killed and nothing is written ([`release`]).
//!
//! Only the [`Driver`] changes a session. Tasks that it starts get what they need as arguments and return what the
//! driver has to know:
//!
//! | task | started in | returns |
//! | --- | --- | --- |
//! | performs an execution | [`work`] | how far it got |
//! | stores artifacts, takes a checkpoint | [`aftermath`] | what was stored |
//! | stores the end of an execution | [`settle`] | whether it is stored |
//! | writes files and rows of no urgency | [`chores`] | a warning, perhaps |
//! | moves values to disk | [`idle`] | whether anything is left to move |
//! | copies a snapshot to S3 | [`upload`] | the pointer to it |
//!
//! Tasks use the sandbox through a lease. For work that needs the sandbox exclusively, the driver closes the gate and
//! waits until all leases are returned ([`quiescent`]).

mod aftermath;
mod chores;
mod claimed;
mod create;
mod ending;
mod idle;
mod inherit;
mod lane;
mod moved_checkpoints;
mod quiescent;
mod release;
mod serve;
mod settle;
mod sleep;
mod snapshots;
mod upload;
mod wake;
mod work;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_runtime::{Handle, Sandbox};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub(super) use aftermath::{AftermathSender, EndedExec};

use super::perform::Performed;
use super::rules::{self, Happening, Phase};
use super::{Answer, Command, LiveExecs, SandboxLease, Session, SessionOwner, View};
use crate::EngineError;
use crate::admission::Reservation;
use crate::clock;
use crate::exec::{Exec, Stage};
use crate::snapshots::SnapshotPointer;
use crate::state::EngineState;
use crate::store::StoreError;
use aftermath::AftermathQueue;
use create::Creation;
use idle::Spilling;
use lane::Lane;
use quiescent::QuiescentRequest;
use serve::ServeEnd;
use settle::Settled;
use sleep::SleepEnd;
use upload::SnapshotUploads;

/// Where a session's sandbox comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A warm sandbox of the pool. The row of the session is stored already.
    Pool(Box<Sandbox>),
    /// A new sandbox has to be created.
    Cold,
    /// An earlier server left the sandbox, with executions that it had begun.
    Adopted(Box<Handle>),
    /// An earlier server ended before the sandbox was created.
    Lost,
    /// The session is hibernated. There may be a sandbox that an earlier server had not yet removed, or not yet
    /// restored into.
    Hibernated(Option<Box<Handle>>),
    /// The session begins with the snapshot of another session, and fails if its kernel cannot be restored.
    Fork,
    /// No node had the session, and this node has just claimed it. It is hibernated.
    Claimed,
}

/// How the driver of a session begins.
pub(crate) struct DriverStart {
    pub(crate) reservation: Option<Reservation>,
    pub(crate) origin: Origin,
    /// Limits how many sandboxes of an earlier server are taken over at the same time.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

struct Driver {
    state: Arc<EngineState>,
    session: Arc<Session>,
    commands: mpsc::Receiver<Command>,
    view: watch::Sender<View>,
    live: watch::Sender<LiveExecs>,
    /// Receives the error if the session cannot be created.
    failure: Option<oneshot::Sender<EngineError>>,
    /// Capacity reserved while the session has a sandbox.
    reservation: Option<Reservation>,
    /// Capacity reserved while the session is hibernated.
    sleeping: Option<Reservation>,
    lanes: HashMap<Language, Lane>,
    /// The commands that are running; they do not wait for each other.
    beside: HashSet<String>,
    performing: JoinSet<(Arc<Exec>, Performed)>,
    aftermath: AftermathQueue,
    settling: JoinSet<Settled>,
    /// Why the end of an execution could not be stored, while that is retried.
    not_stored: Option<StoreError>,
    /// Executions that are stored in the database; the guest may drop them.
    forgettable: Vec<String>,
    /// Files and rows being written; each returns a warning, or nothing.
    chores: JoinSet<Option<String>>,
    spillers: JoinSet<idle::Spilled>,
    spilling: Spilling,
    /// The last snapshot of its Python kernel, or the one that it was restored from.
    base: Option<u64>,
    /// Executions that an earlier server had accepted. Their log entry may exist already.
    inherited: HashSet<String>,
    /// Those of them that had ended in the guest before this server started. Only their output has to be read.
    ended_before: HashSet<String>,
    /// A request that waits until that output is read, and its deadline. No command is handled meanwhile.
    postponed: Option<(Instant, QuiescentRequest)>,
    /// The sandbox's network access, while there is a sandbox.
    network: Option<belljar_network::Serving>,
    next_number: u64,
    expires: Instant,
    used: Instant,
    /// When to write the variables to `python_state.json`.
    variables_at: Option<Instant>,
    /// When the expiry was last stored.
    expiry_stored: Option<Instant>,
    /// The session does not hibernate by itself before this time.
    hibernate_again_at: Option<Instant>,
    /// Whether waking fails if the kernel cannot be restored.
    kernel_required: bool,
    uploads: SnapshotUploads,
    /// The row may have a pointer to a snapshot in S3 that was not read yet.
    must_read_pointer: bool,
    /// The snapshot in S3 that the session wakes from, if its files are not here.
    unfetched: Option<SnapshotPointer>,
    /// The id of the snapshot that the hibernated session wakes from, if its files are here.
    hibernated_as: Option<u64>,
    /// Why the memory of that snapshot cannot be restored on this node.
    files_only: Option<String>,
    /// What the next result says about the kernel, if the session went back to an earlier snapshot.
    went_back: Option<String>,
    asleep_since: Instant,
    /// A hibernated session is not released before this time.
    release_again_at: Option<Instant>,
    /// The database did not answer a release, so it may still do it.
    release_unanswered: bool,
    /// The last use of the session that its periodic snapshot has, and the time of the next one.
    snapshot_of_use: Option<Instant>,
    snapshot_again_at: Option<Instant>,
}

/// The precision of the stored expiry: the next server may end a session earlier by this much.
const EXPIRY_PACE: Duration = Duration::from_secs(5);

/// The longest time from now for which an `Instant` is computed; later times count as never.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The most warnings that a session keeps.
const MAX_WARNINGS: usize = 20;

fn later(from: Instant, by: Duration) -> Instant {
    from + by.min(NEVER)
}

/// Owns a session from its beginning to its end.
pub(crate) async fn drive(state: Arc<EngineState>, owner: SessionOwner, start: DriverStart) {
    let DriverStart { reservation, origin, permit } = start;
    let mut driver = Driver::new(state, owner, reservation, &origin);
    driver.warn_of_pinning();
    if driver.next_number > 1 {
        driver.find_last_exec().await;
    }
    let present = match origin {
        Origin::Hibernated(left) => {
            driver.begin_hibernated(left.map(|handle| *handle)).await;
            None
        }
        Origin::Fork => {
            driver.begin_hibernated(None).await;
            None
        }
        Origin::Claimed => {
            driver.begin_claimed().await;
            None
        }
        origin => match driver.create(origin).await {
            Creation::Ready(sandbox) => Some(sandbox),
            Creation::Asleep => None,
            Creation::Over => return,
        },
    };
    drop(permit);
    driver.live(present).await;
}

impl Driver {
    fn new(
        state: Arc<EngineState>,
        owner: SessionOwner,
        reservation: Option<Reservation>,
        origin: &Origin,
    ) -> Driver {
        let SessionOwner { session, commands, view, live, failure } = owner;
        let (expires_ms, execs) = {
            let view = view.borrow();
            (view.expires_ms, view.execs)
        };
        let remaining = u64::try_from(expires_ms - clock::now_ms()).unwrap_or(0);
        let now = Instant::now();
        Driver {
            commands,
            view,
            live,
            failure,
            reservation,
            sleeping: None,
            lanes: HashMap::new(),
            beside: HashSet::new(),
            performing: JoinSet::new(),
            aftermath: AftermathQueue::new(),
            settling: JoinSet::new(),
            not_stored: None,
            forgettable: Vec::new(),
            chores: JoinSet::new(),
            spillers: JoinSet::new(),
            spilling: Spilling::default(),
            base: None,
            inherited: HashSet::new(),
            ended_before: HashSet::new(),
            postponed: None,
            network: None,
            next_number: execs + 1,
            expires: later(now, Duration::from_millis(remaining)),
            used: now,
            variables_at: None,
            expiry_stored: None,
            hibernate_again_at: None,
            kernel_required: matches!(origin, Origin::Fork),
            uploads: SnapshotUploads::new(),
            must_read_pointer: false,
            unfetched: None,
            hibernated_as: None,
            files_only: None,
            went_back: None,
            asleep_since: now,
            release_again_at: None,
            release_unanswered: false,
            snapshot_of_use: None,
            snapshot_again_at: state.config.snapshot_every.map(|every| now + every),
            state,
            session,
        }
    }

    /// Serves and sleeps until the session ends, or is left to the next server.
    async fn live(&mut self, sandbox: Option<SandboxLease>) {
        let mut present = sandbox;
        loop {
            present = match present {
                Some(sandbox) => match self.serve(&sandbox).await {
                    ServeEnd::Quiescent(request) => self.run_quiescent(sandbox, request).await,
                    ServeEnd::Over(reason) => break self.end(sandbox, reason).await,
                    ServeEnd::Fenced => break self.end_fenced(Some(sandbox)).await,
                },
                None => match self.sleep().await {
                    SleepEnd::Awake(sandbox) => Some(sandbox),
                    SleepEnd::Stop(because) => break self.end_hibernated(&because).await,
                    // The next server finds its row and its snapshot.
                    SleepEnd::ServerLeaving => break,
                    SleepEnd::Fenced => break self.end_fenced(None).await,
                    SleepEnd::Released => break,
                },
            };
        }
    }

    /// Changes the phase according to the rules.
    fn apply(&self, happening: Happening) {
        self.view.send_modify(|view| match rules::next(view.phase, happening) {
            Some(phase) => view.phase = phase,
            None => tracing::error!(
                session.id = self.session.id,
                "{happening:?} happened to a session that is {}",
                view.phase.name()
            ),
        });
    }

    fn phase(&self) -> Phase {
        self.view.borrow().phase
    }

    fn is_at(&self, exec_id: &str) {
        self.view.send_modify(|view| view.at = Some(exec_id.to_owned()));
    }

    /// Adds a warning to the view, unless it is there already.
    fn warn(&self, warning: String) {
        self.view.send_if_modified(|view| {
            let is_new = view.warnings.len() < MAX_WARNINGS && !view.warnings.contains(&warning);
            if is_new {
                view.warnings.push(warning);
            }
            is_new
        });
    }

    /// Removes warnings that no longer hold, by their begin.
    fn unwarn(&self, begin: &str) {
        self.view.send_if_modified(|view| {
            let before = view.warnings.len();
            view.warnings.retain(|warning| !warning.starts_with(begin));
            view.warnings.len() < before
        });
    }

    /// In a cluster, says if only this node can have the session.
    fn warn_of_pinning(&self) {
        if let (Some((_, node)), Some(why)) = (self.state.cluster(), self.session.pinned_by()) {
            self.warn(format!("it is bound to node `{}`: {why}", node.id));
        }
    }

    fn stop_reason(&self) -> String {
        self.session.stop.borrow().clone().unwrap_or_else(|| "it was stopped".into())
    }

    /// Whether anything other than background work is running.
    fn works(&self) -> bool {
        let live = self.live.borrow();
        live.values().any(|exec| !exec.request.background && exec.stage() != Stage::Finished)
    }

    /// Marks the session as used now. It lives at least this long from now on, and never shorter than before.
    fn touch(&mut self, ttl_s: u64) {
        let now = Instant::now();
        self.used = now;
        self.expires = self.expires.max(later(now, Duration::from_secs(ttl_s)));
    }

    fn deadline(&self) -> Instant {
        match self.session.spec.idle_s {
            Some(idle) => self.expires.min(later(self.used, Duration::from_secs(idle))),
            None => self.expires,
        }
    }

    /// The reason of the end for a session whose deadline has passed.
    fn expired(&self) -> String {
        self.state.metrics.expired.inc();
        let idle = self.expires > self.deadline();
        if idle { "it was idle for too long" } else { "it expired" }.into()
    }

    fn expires_ms(&self) -> i64 {
        let left = self.expires.saturating_duration_since(Instant::now());
        clock::now_ms().saturating_add(i64::try_from(left.as_millis()).unwrap_or(i64::MAX))
    }

    /// Publishes the queues and the expiry, and whether the session is busy.
    fn publish(&self) {
        let queued = self.lanes.values().map(Lane::waiting).sum();
        let busy = self.lanes.values().filter(|lane| lane.is_held()).count();
        let running = busy + self.beside.len();
        match (self.phase(), running > 0) {
            (Phase::Ready, true) => self.apply(Happening::WorkBegan),
            (Phase::Busy, false) => self.apply(Happening::WorkEnded),
            _ => {}
        }
        let expires_ms = self.expires_ms();
        self.view.send_modify(|view| {
            view.queued = queued;
            view.running = running;
            view.used_ms = clock::now_ms();
            view.expires_ms = expires_ms;
            view.execs = self.next_number - 1;
        });
    }
}
