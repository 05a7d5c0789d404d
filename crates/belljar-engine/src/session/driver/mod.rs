//! The one task that owns a session.
//!
//! ```text
//!   make ───────────▶ serve ─────────────────▶ end ───────▶ over: written down, room given back,
//!    │  (inherit)       │  commands, turns,     │ (ending)   published
//!    │                  │  ends of executions   └──▶ leave: the server ends, the sandbox stays
//!    │                  ▲ │
//!    │                  │ └▶ sleep: nothing but files are left, until somebody needs it
//!    │                  └────┘
//!    └─ failed, or stopped before it was made ──────────▶ over
//! ```
//!
//! Only this module and those below it see the [`Driver`]: [`work`] accepts executions and
//! settles them, [`lane`] is the queue before a kernel, [`inherit`] goes on with an earlier server's
//! work, [`notes`] writes files for people, [`idle`] is about what nobody uses, [`sleep`] about sessions as files, [`ending`] is the way
//! out. Executions themselves are performed by tasks of their own (`perform.rs`), which
//! the driver starts, waits for, and has written down.

mod ending;
mod idle;
mod inherit;
mod lane;
mod metadata_files;
mod sleep;
mod work;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_runtime::Sandbox;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use ending::Why;
use idle::Spilling;
use lane::Lane;
use sleep::{Aside, Woken};

use super::perform::Performed;
use super::rules::{self, Happening, Phase};
use super::{Answer, Command, Inbox, Session, lock};
use crate::EngineError;
use crate::admission::Reservation;
use crate::clock;
use crate::engine::EngineState;
use crate::error::in_full;
use crate::exec::{Exec, Stage};
use crate::network;

/// Where a session's sandbox comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// It is there, warm, and written down.
    Pool(Box<Sandbox>),
    /// To be made.
    Cold,
    /// Left by an earlier server, with what it had begun.
    Adopted(Box<belljar_runtime::Handle>),
    /// Left by an earlier server that had not finished making it.
    Lost,
    /// It is its snapshot; with a sandbox that an earlier server did not come to remove, or to fill.
    Asleep(Option<Box<belljar_runtime::Handle>>),
    /// It begins as the snapshot of another, and is of no use without the kernel in it.
    ForkSource,
}

struct Driver {
    shared: Arc<EngineState>,
    session: Arc<Session>,
    /// Room in the server's limits, held for as long as anything of the session lives.
    reservation: Option<Reservation>,
    /// The same among those that sleep, while it does.
    sleeping: Option<Reservation>,
    lanes: HashMap<Language, Lane>,
    /// Commands that run; they wait for nobody.
    beside: usize,
    performing: JoinSet<(Arc<Exec>, Performed)>,
    settling: JoinSet<()>,
    /// Attempts to move values to disk; each says since when there is nothing left to be moved.
    spillers: JoinSet<Option<Instant>>,
    spilling: Spilling,
    /// Executions an earlier server had accepted: their log entry may be there already.
    inherited: Vec<String>,
    /// Those of them that had ended when we came: they are over as soon as their output has been read.
    ended_before: HashSet<String>,
    /// What waits for these, and until when at most. Nothing else is begun meanwhile.
    postponed: Option<(Instant, Aside)>,
    /// Answers those who want to leave, for as long as there is a sandbox.
    attached: Option<belljar_network::Serving>,
    next_number: u64,
    expires: Instant,
    used: Instant,
    /// When to write the variables down.
    snapshot_at: Option<Instant>,
    /// When it was last written down how long it lives.
    expiry_written: Option<Instant>,
    /// It is not put to sleep before this.
    sleep_again_at: Option<Instant>,
    /// It wakes with its kernel, or not at all.
    strictly: bool,
}

/// How exactly the end of a session's life is written down: a successor may end it earlier by this.
const EXPIRY_PACE: Duration = Duration::from_secs(5);

/// What is further ahead than this is as good as never.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

fn later(from: Instant, by: Duration) -> Instant {
    from + by.min(NEVER)
}

/// Owns a session from its beginning to its end.
pub(crate) async fn drive(
    shared: Arc<EngineState>,
    session: Arc<Session>,
    mut inbox: Inbox,
    reservation: Option<Reservation>,
    origin: Origin,
    patience: Option<tokio::sync::OwnedSemaphorePermit>,
) {
    let view = session.view();
    let remaining = u64::try_from(view.expires_ms - clock::now_ms()).unwrap_or(0);
    let now = Instant::now();
    let mut driver = Driver {
        lanes: HashMap::new(),
        beside: 0,
        performing: JoinSet::new(),
        settling: JoinSet::new(),
        spillers: JoinSet::new(),
        spilling: Spilling::default(),
        inherited: Vec::new(),
        ended_before: HashSet::new(),
        postponed: None,
        attached: None,
        next_number: view.execs + 1,
        expires: later(now, Duration::from_millis(remaining)),
        used: now,
        snapshot_at: None,
        expiry_written: None,
        sleep_again_at: None,
        strictly: matches!(origin, Origin::ForkSource),
        sleeping: None,
        reservation,
        shared,
        session,
    };
    let adopted = matches!(origin, Origin::Adopted(_));
    let fresh = matches!(origin, Origin::Cold) && view.execs == 0;
    if view.execs > 0 {
        driver.remember_where().await;
    }
    let origin = match origin {
        Origin::Asleep(left) => {
            driver.lie_down(left.map(|handle| *handle)).await;
            drop(patience);
            return driver.live(None, &mut inbox).await;
        }
        Origin::ForkSource => {
            driver.lie_down(None).await;
            return driver.live(None, &mut inbox).await;
        }
        origin => origin,
    };
    let mut stop = driver.session.stop.subscribe();
    let mut leaving = driver.shared.leaving.subscribe();
    let made = tokio::select! {
        made = driver.make(origin) => Some(made),
        // One that is adopted has a sandbox to be ended, so it is found first.
        _ = stop.wait_for(Option::is_some), if !adopted => None,
        // The next server finds it as this one did, or cleans up what is half-made.
        _ = leaving.wait_for(|leaving| *leaving) => {
            driver.shared.forget(&driver.session);
            return;
        }
    };
    drop(patience);
    let made = match made {
        Some(Ok(sandbox)) => Some(match driver.attach(&sandbox, adopted).await {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                sandbox.destroy().await;
                Err(error)
            }
        }),
        other => other,
    };
    match made {
        Some(Ok(sandbox)) => {
            let sandbox = Arc::new(sandbox);
            *lock(&driver.session.sandbox) = Some(Arc::clone(&sandbox));
            if adopted {
                driver.inherit(&sandbox).await;
            }
            driver.happen(Happening::SandboxReady);
            if !adopted {
                // Its life begins now, not when it was asked for.
                driver.touch(driver.session.spec.ttl_s);
            }
            driver.republish();
            let (id, tenant) = (&driver.session.id, &driver.session.tenant);
            let how = if adopted { "taken over" } else { "ready" };
            tracing::info!(session.id = id, tenant, sandbox = sandbox.name(), "session {id} {how}");
            return driver.live(Some(sandbox), &mut inbox).await;
        }
        // One that was to be stopped has what it wanted.
        Some(Err(error)) if driver.session.stop.borrow().is_none() => {
            let because = in_full(&error);
            driver.finish_unfinished(&because).await;
            if let Some(record) = driver.session.record.clone().filter(|_| fresh) {
                let _ = tokio::task::spawn_blocking(move || record.remove_if_unused()).await;
            }
            // Whoever waits for it gets the error itself.
            *lock(&driver.session.failure) = Some(error);
            driver.over(Happening::SandboxFailed, &because).await;
        }
        Some(Err(_)) | None => {
            let because = driver.stop_reason();
            driver.happen(Happening::StopAsked);
            driver.finish_unfinished(&because).await;
            driver.over(Happening::SandboxGone, &because).await;
        }
    }
    driver.shared.forget(&driver.session);
}

impl Driver {
    /// Awake or asleep, to its end.
    async fn live(&mut self, sandbox: Option<Arc<Sandbox>>, inbox: &mut Inbox) {
        let mut present = sandbox;
        loop {
            present = match present {
                Some(sandbox) => match self.serve(&sandbox, inbox).await {
                    Why::Aside(aside) => self.put_aside(sandbox, aside).await,
                    why => break self.end(sandbox, why).await,
                },
                None => match self.sleep(inbox).await {
                    Woken::Awake(sandbox) => Some(sandbox),
                    Woken::End(why) => break self.end_asleep(why).await,
                },
            };
        }
        self.shared.forget(&self.session);
    }

    async fn make(&self, origin: Origin) -> Result<Sandbox, EngineError> {
        match origin {
            Origin::Pool(sandbox) => Ok(*sandbox),
            Origin::Cold => self.shared.make_sandbox(&self.session).await,
            Origin::Adopted(handle) => self.shared.adopt(&self.session, *handle).await,
            Origin::Lost => {
                self.shared.metrics.adopted("cleaned");
                Err(EngineError::Internal(
                    "the server ended while the session was being made".into(),
                ))
            }
            Origin::Asleep(_) | Origin::ForkSource => {
                Err(EngineError::Internal("a hibernated session cannot be made, only woken".into()))
            }
        }
    }

    /// Opens its way out, if it has one. What an earlier server left is kept even if that fails.
    async fn attach(&mut self, sandbox: &Sandbox, adopted: bool) -> Result<(), EngineError> {
        let (network, policy) = (&self.shared.config.network, &self.session.spec.network);
        match network::attach(network, policy, &self.session.traffic, sandbox.link()).await {
            Ok(attached) => self.attached = attached,
            Err(error) if adopted => {
                let warning = format!("it has no network: {}", in_full(&error));
                tracing::warn!(session.id = self.session.id, "{warning}");
                self.session.view.send_modify(|view| view.warnings.push(warning));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Serves until there is a reason to end.
    async fn serve(&mut self, sandbox: &Arc<Sandbox>, inbox: &mut Inbox) -> Why {
        let mut stop = self.session.stop.subscribe();
        let mut leaving = self.shared.leaving.subscribe();
        self.write_metadata();
        loop {
            let deadline = self.deadline();
            let snapshot = self.snapshot_at;
            let rests = self.rests();
            let spill = self.spill_at().filter(|_| self.spillers.is_empty() && rests);
            let asleep = self.sleep_at().filter(|_| rests && !self.session.is_attached());
            if let Some(why) = self.postponed_aside() {
                return why;
            }
            let patience = self.postponed.as_ref().map(|(until, _)| *until);
            tokio::select! {
                biased;
                _ = stop.wait_for(Option::is_some) => return Why::Stop(self.stop_reason()),
                _ = leaving.wait_for(|leaving| *leaving) => return Why::Left,
                Some(performed) = self.performing.join_next() => match performed {
                    Ok((exec, performed)) => {
                        if self.performed(sandbox, exec, performed) {
                            return Why::SandboxLost;
                        }
                    }
                    // An error of ours. Nobody must wait for ever for what it was about.
                    Err(panic) => {
                        tracing::error!(session.id = self.session.id, "failed to perform: {panic}");
                        return Why::SandboxLost;
                    }
                },
                Some(_) = self.settling.join_next() => self.write_metadata(),
                Some(done) = self.spillers.join_next() => self.spilled(done.ok().flatten()),
                () = sleep_until(patience.unwrap_or(deadline)), if patience.is_some() => {}
                Some(command) = inbox.commands.recv(), if patience.is_none() => {
                    if let Some(why) = self.obey(sandbox, command) {
                        return why;
                    }
                }
                () = sandbox.ended() => return Why::SandboxLost,
                () = sleep_until(deadline), if !self.works() && !self.session.is_attached() => {
                    self.shared.metrics.expired.inc();
                    let idle = self.expires > deadline;
                    let because = if idle { "it was idle for too long" } else { "it expired" };
                    return Why::Stop(because.into());
                }
                () = sleep_until(snapshot.unwrap_or(deadline)), if snapshot.is_some() => {
                    self.snapshot_at = None;
                    self.take_snapshot(sandbox);
                }
                () = sleep_until(spill.unwrap_or(deadline)), if spill.is_some() => {
                    self.spill(sandbox);
                }
                () = sleep_until(asleep.unwrap_or(deadline)), if asleep.is_some() => {
                    let aside = Aside::Hibernate { force: false, asked: None };
                    if let Some(why) = self.aside(aside) {
                        return why;
                    }
                }
            }
        }
    }

    /// Does what was asked; or says why it is not served any longer.
    fn obey(&mut self, sandbox: &Arc<Sandbox>, command: Command) -> Option<Why> {
        match command {
            Command::Wake { answer, .. } => drop(answer.send(Ok(()))),
            Command::Hibernate { force, quota, answer } => {
                let aside = Aside::Hibernate { force, asked: Some((quota, answer)) };
                return self.aside(aside);
            }
            Command::ForkSource { force, from, answer } => {
                return self.aside(Aside::ForkSource { force, from, answer });
            }
            Command::Restore { exec, answer } => {
                return self.aside(Aside::Restore { exec, answer });
            }
            Command::Exec { ask, answer } => self.accept(sandbox, ask, answer),
            Command::Interrupt { exec_id, answer } => {
                let _ = answer.send(self.interrupt(sandbox, exec_id.as_deref()));
            }
            Command::Used => {
                self.touch(self.session.spec.ttl_s);
                self.republish();
                if self.expiry_is_due() {
                    let (shared, session) = (Arc::clone(&self.shared), Arc::clone(&self.session));
                    self.settling.spawn(async move {
                        let view = session.view();
                        let kept =
                            shared.store.set_expiry(&session.id, view.used_ms, view.expires_ms);
                        if let Err(error) = kept.await {
                            tracing::warn!(session.id = session.id, "{}", in_full(&error));
                        }
                    });
                }
            }
            Command::Extend { ttl_s, answer } => self.extend(ttl_s, answer),
        }
        None
    }

    fn extend(&mut self, ttl_s: u64, answer: Answer<()>) {
        self.touch(ttl_s);
        self.republish();
        let (shared, session) = (Arc::clone(&self.shared), Arc::clone(&self.session));
        tokio::spawn(async move {
            let view = session.view();
            let kept = shared.store.set_expiry(&session.id, view.used_ms, view.expires_ms).await;
            let _ = answer.send(kept.map_err(EngineError::Store));
        });
    }

    fn happen(&self, happening: Happening) {
        self.session.view.send_modify(|view| match rules::next(view.phase, happening) {
            Some(phase) => view.phase = phase,
            None => tracing::error!(
                session.id = self.session.id,
                "{happening:?} happened to a session that is {}",
                view.phase.name()
            ),
        });
    }

    fn stop_reason(&self) -> String {
        self.session.stop.borrow().clone().unwrap_or_else(|| "it was stopped".into())
    }

    /// Something other than background work goes on.
    fn works(&self) -> bool {
        lock(&self.session.live)
            .values()
            .any(|exec| !exec.request.background && exec.stage() != Stage::Finished)
    }

    /// It was used now, and lives at least this long from now on; never shorter than before.
    fn touch(&mut self, ttl_s: u64) {
        let now = Instant::now();
        self.used = now;
        // Too far ahead to be told from never is never shortened.
        self.expires = self.expires.max(later(now, Duration::from_secs(ttl_s)));
    }

    /// Whether how long it lives is worth a write, and if so, that it is written now.
    fn expiry_is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = self.expiry_written.is_none_or(|last| now - last >= EXPIRY_PACE);
        if due {
            self.expiry_written = Some(now);
        }
        due
    }

    fn deadline(&self) -> Instant {
        match self.session.spec.idle_s {
            Some(idle) => self.expires.min(later(self.used, Duration::from_secs(idle))),
            None => self.expires,
        }
    }

    fn expires_ms(&self) -> i64 {
        let left = self.expires.saturating_duration_since(Instant::now());
        clock::now_ms().saturating_add(i64::try_from(left.as_millis()).unwrap_or(i64::MAX))
    }

    /// Publishes what the lanes look like.
    fn republish(&self) {
        let queued = self.lanes.values().map(Lane::waiting).sum();
        let busy = self.lanes.values().filter(|lane| lane.is_held()).count();
        let running = busy + self.beside;
        let expires_ms = self.expires_ms();
        let execs = self.next_number - 1;
        let is_busy = self.session.phase() == Phase::Busy;
        match (is_busy, running > 0) {
            (false, true) if self.session.phase() == Phase::Ready => {
                self.happen(Happening::WorkBegan);
            }
            (true, false) => self.happen(Happening::WorkEnded),
            _ => {}
        }
        self.session.view.send_modify(|view| {
            view.queued = queued;
            view.running = running;
            view.used_ms = clock::now_ms();
            view.expires_ms = expires_ms;
            view.execs = execs;
        });
    }
}
