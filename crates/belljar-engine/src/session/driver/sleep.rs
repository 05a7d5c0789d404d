//! Sleep: a session as nothing but files, and back. And what else is done with snapshots of it: other
//! sessions begin with one, and it can go back to an earlier one.
//!
//! ```text
//!   serve ── rest ──▶ snapshot ──▶ row: hibernated ──▶ sandbox gone ──▶ sleep
//!     ▲                 │ refused, failed                               │ a call, if there is room
//!     └─────────────────┘                                               ▼
//!     └──── row: ready ◀── files, kernel ◀── row: waking ◀── sandbox ── wake ── failed ──▶ sleep
//! ```
//!
//! Killed before the row says `hibernated`, the session is its sandbox; killed after, it is its
//! snapshot, until the row says `ready` again.

use std::sync::Arc;
use std::time::Duration;

use belljar_runtime::{Handle, Sandbox};
use tokio::time::{Instant, sleep, sleep_until};

use super::ending::Why;
use super::{Driver, later};
use crate::admission::{Quota, Reservation};
use crate::error::{EngineError, in_full};
use crate::exec::Stage;
use crate::lock;
use crate::session::rules::{Happening, Phase};
use crate::session::{Answer, Command, Inbox};
use crate::snapshots::{Ask, ForkSource, Manifest, capture, revive};
use crate::spec::Storage;
use crate::store::{Durability, ExecFilter, ExecRow};

/// How long a call that is in progress may hold up a session's sleep.
const LET_GO: Duration = Duration::from_secs(2);
const LET_GO_PACE: Duration = Duration::from_millis(1);

/// Executions among which that is looked for after which a session is what it is.
const RECENT: u32 = 20;

/// How long reading what executions of an earlier server have said may hold it up.
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// A session that could not be put to sleep is tried again after this.
const AGAIN: Duration = Duration::from_secs(60);

/// What somebody wants of a session at rest.
pub(super) enum Aside {
    /// By itself if nobody asked.
    Hibernate {
        force: bool,
        asked: Option<(Quota, Answer<Vec<String>>)>,
    },
    ForkSource {
        force: bool,
        from: Option<String>,
        answer: Answer<ForkSource>,
    },
    Restore {
        exec: String,
        answer: Answer<()>,
    },
}

/// How a sleep ended.
pub(super) enum Woken {
    Awake(Arc<Sandbox>),
    End(Why),
}

impl Aside {
    fn refuse(self, error: EngineError) {
        match self {
            Aside::Hibernate { asked: Some((_, answer)), .. } => drop(answer.send(Err(error))),
            Aside::Hibernate { asked: None, .. } => {}
            Aside::ForkSource { answer, .. } => drop(answer.send(Err(error))),
            Aside::Restore { answer, .. } => drop(answer.send(Err(error))),
        }
    }
}

impl Driver {
    /// When to put this session to sleep, should nobody use it until then.
    pub(super) fn sleep_at(&self) -> Option<Instant> {
        let due = later(self.used, self.shared.snapshot_store.config().hibernate_after?);
        Some(self.sleep_again_at.map_or(due, |again| again.max(due)))
    }

    /// Something is to be done with the session while it rests; refused if it does not.
    pub(super) fn aside(&mut self, aside: Aside) -> Option<Why> {
        let until = Instant::now() + READ_PATIENCE;
        self.aside_until(aside, until)
    }

    /// The same for what was postponed.
    pub(super) fn postponed_aside(&mut self) -> Option<Why> {
        let (until, aside) = self.postponed.take()?;
        self.aside_until(aside, until)
    }

    fn aside_until(&mut self, aside: Aside, until: Instant) -> Option<Why> {
        match self.must_be_quiescent() {
            Ok(()) => Some(Why::Aside(aside)),
            Err(_) if self.only_reads() && Instant::now() < until => {
                self.postponed = Some((until, aside));
                None
            }
            Err(error) => {
                self.sleep_again_at = Some(Instant::now() + AGAIN);
                aside.refuse(error);
                None
            }
        }
    }

    /// Whether all that goes on is reading what executions of an earlier server have said, which ended before we came.
    fn only_reads(&self) -> bool {
        let live = lock(&self.session.live);
        let mut going_on = live.values().filter(|exec| exec.stage() != Stage::Finished);
        !self.session.is_attached() && going_on.all(|exec| self.ended_before.contains(&exec.id))
    }

    /// Does what was asked of a session at rest; the sandbox that it has afterwards, if any.
    pub(super) async fn put_aside(
        &mut self,
        sandbox: Arc<Sandbox>,
        aside: Aside,
    ) -> Option<Arc<Sandbox>> {
        // All have an end, so their performers have too.
        while let Some(performed) = self.performing.join_next().await {
            if let Ok((exec, performed)) = performed {
                self.performed(&sandbox, exec, performed);
            }
        }
        match aside {
            Aside::Hibernate { force, asked } => {
                let (quota, answer) = asked.unzip();
                let slept = self.hibernate(sandbox, force, quota).await;
                let (left, outcome) = match slept {
                    Ok(lost) => (None, Ok(lost)),
                    Err((sandbox, error)) => (Some(sandbox), Err(error)),
                };
                match (answer, outcome) {
                    (Some(answer), outcome) => drop(answer.send(outcome)),
                    (None, Err(error)) => {
                        let id = &self.session.id;
                        self.sleep_again_at = Some(Instant::now() + AGAIN);
                        let why = in_full(&error);
                        if matches!(error, EngineError::NotAtRest { .. }) {
                            tracing::info!(session.id = id, "not put to sleep: {why}");
                        } else {
                            tracing::warn!(session.id = id, "failed to put it to sleep: {why}");
                            self.session.warn_once(&format!("it could not be put to sleep: {why}"));
                        }
                    }
                    (None, Ok(_)) => {}
                }
                left
            }
            Aside::ForkSource { force, from, answer } => {
                let branch = match from {
                    Some(exec) => self.branch_of_checkpoint(&exec),
                    None => self.branch_of_now(&sandbox, force).await,
                };
                let _ = answer.send(branch);
                Some(sandbox)
            }
            Aside::Restore { exec, answer } => {
                let (sandbox, outcome) = self.restore(sandbox, &exec).await;
                let _ = answer.send(outcome);
                Some(sandbox)
            }
        }
    }

    /// Makes files of the session and ends its sandbox. Returns what could not be kept.
    async fn hibernate(
        &mut self,
        sandbox: Arc<Sandbox>,
        force: bool,
        quota: Option<Quota>,
    ) -> Result<Vec<String>, (Arc<Sandbox>, EngineError)> {
        let sleeping = match self.shared.admission.reserve_sleep(&self.session.tenant, quota) {
            Ok(sleeping) => sleeping,
            Err(full) => return Err((sandbox, full.into())),
        };
        let sandbox = self.alone_with(sandbox).await?;
        let places: &[&str] = match self.session.spec.storage {
            Storage::Tmpfs => &["session", "tmp", "shm"],
            // Its files are on disk already.
            Storage::Bind => &["tmp", "shm"],
        };
        let taken = self.take_picture(&sandbox, places, force, true).await;
        let id = self.session.id.clone();
        let written = match taken {
            Ok(manifest) => {
                let phase = Phase::Hibernated;
                let store = &self.shared.store;
                let written = store.set_phase(&id, phase, None, Durability::Power).await;
                written.map(|()| manifest).map_err(EngineError::Store)
            }
            Err(error) => Err(error),
        };
        let manifest = match written {
            Ok(manifest) => manifest,
            Err(error) => return Err((self.go_on(Arc::new(sandbox)), error)),
        };
        // From here on it is its snapshot.
        self.happen(Happening::SandboxAsleep);
        self.attached = None;
        self.shared.usage.close(&id, &self.session.tenant, &sandbox);
        lock(&self.session.forgettable).clear();
        sandbox.destroy().await;
        self.reservation = None;
        self.sleeping = Some(sleeping);
        // Should this not be written, the next server looks for the sandbox and finds none.
        let cleared = self.shared.store.set_sandbox(&id, Phase::Hibernated, None, Durability::Soon);
        let _ = cleared.await;
        self.drop_earlier(&manifest);
        self.write_metadata();
        tracing::info!(session.id = id, bytes = manifest.bytes, "session {id} sleeps");
        Ok(manifest.left_out())
    }

    /// Takes the sandbox away from everybody else: nobody may use it while its snapshot is taken.
    async fn alone_with(
        &mut self,
        sandbox: Arc<Sandbox>,
    ) -> Result<Sandbox, (Arc<Sandbox>, EngineError)> {
        self.happen(Happening::RestBegan);
        *lock(&self.session.sandbox) = None;
        let until = Instant::now() + LET_GO;
        let mut sandbox = sandbox;
        loop {
            match Arc::try_unwrap(sandbox) {
                Ok(sandbox) => return Ok(sandbox),
                Err(shared) => sandbox = shared,
            }
            while self.settling.try_join_next().is_some() {}
            while let Some(done) = self.spillers.try_join_next() {
                self.spilled(done.ok().flatten());
            }
            if Instant::now() > until {
                // With a full disk the end of an execution waits to be stored, and the sandbox with it.
                let error = match lock(&self.session.unwritten).take() {
                    Some(unwritten) => EngineError::Store(unwritten),
                    None => self.not_quiescent("a call that uses it is in progress".into()),
                };
                return Err((self.go_on(sandbox), error));
            }
            sleep(LET_GO_PACE).await;
        }
    }

    /// It was put aside for a moment only.
    fn go_on(&mut self, sandbox: Arc<Sandbox>) -> Arc<Sandbox> {
        *lock(&self.session.sandbox) = Some(Arc::clone(&sandbox));
        self.happen(Happening::RestEnded);
        sandbox
    }

    /// A snapshot of what the session is now.
    async fn take_picture(
        &self,
        sandbox: &Sandbox,
        places: &[&str],
        force: bool,
        sync: bool,
    ) -> Result<Manifest, EngineError> {
        let limits = &self.session.spec.limits;
        let ask = Ask {
            session: &self.session.id,
            tenant: &self.session.tenant,
            places,
            // Memory, and files on disk where they are there.
            room: limits.memory.saturating_add(limits.tmpfs).saturating_mul(2),
            force,
            sync,
            exec: None,
            before: *lock(&self.session.base),
            same_files_as: None,
        };
        let taken = capture(&self.shared.snapshot_store, sandbox, ask).await?;
        *lock(&self.session.base) = Some(taken.id);
        Ok(taken)
    }

    /// Only the newest snapshot of what the session is now is of any use.
    fn drop_earlier(&self, newest: &Manifest) {
        let snapshots = self.shared.snapshot_store.of_session(&self.session.id);
        let earlier = snapshots.list().into_iter();
        let earlier = earlier.filter(|other| other.exec.is_none() && other.id < newest.id);
        let earlier: Vec<u64> = earlier.map(|other| other.id).collect();
        if let Err(error) = snapshots.forget(&earlier) {
            let id = &self.session.id;
            tracing::warn!(session.id = id, "failed to remove an old snapshot: {error}");
        }
        self.shared.snapshot_store.count(&self.session.id, &self.session.tenant);
    }

    async fn branch_of_now(
        &mut self,
        sandbox: &Arc<Sandbox>,
        force: bool,
    ) -> Result<ForkSource, EngineError> {
        let taken = self.take_picture(sandbox, &["session", "tmp", "shm"], force, false).await;
        let manifest = taken?;
        self.drop_earlier(&manifest);
        self.branch_of(&manifest)
    }

    fn branch_of_checkpoint(&self, exec: &str) -> Result<ForkSource, EngineError> {
        let snapshots = self.shared.snapshot_store.of_session(&self.session.id);
        let manifest = snapshots.checkpoint(exec);
        self.branch_of(&manifest.ok_or_else(|| EngineError::NoCheckpoint(exec.to_owned()))?)
    }

    fn branch_of(&self, manifest: &Manifest) -> Result<ForkSource, EngineError> {
        let snapshots = self.shared.snapshot_store.of_session(&self.session.id);
        self.shared.snapshot_store.branch(&snapshots, manifest).map_err(EngineError::KeepSnapshot)
    }

    /// Goes back to a checkpoint: a fresh sandbox takes the place of the one there is.
    async fn restore(
        &mut self,
        sandbox: Arc<Sandbox>,
        exec: &str,
    ) -> (Arc<Sandbox>, Result<(), EngineError>) {
        let snapshots = self.shared.snapshot_store.of_session(&self.session.id);
        let Some(manifest) = snapshots.checkpoint(exec) else {
            return (sandbox, Err(EngineError::NoCheckpoint(exec.to_owned())));
        };
        let present = match self.alone_with(sandbox).await {
            Ok(present) => present,
            Err((sandbox, error)) => return (sandbox, Err(error)),
        };
        let fresh = match self.shared.fresh_sandbox(&self.session).await {
            Ok(fresh) => fresh,
            Err(error) => return (self.go_on(Arc::new(present)), Err(error)),
        };
        let revived = match revive(&fresh, &snapshots, &manifest, true).await {
            Ok(()) => {
                let handle = Some(fresh.handle().clone());
                let store = &self.shared.store;
                let written =
                    store.set_sandbox(&self.session.id, Phase::Ready, handle, Durability::Process);
                written.await.map_err(EngineError::Store)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = revived {
            fresh.destroy().await;
            return (self.go_on(Arc::new(present)), Err(error));
        }
        self.attached = None;
        *lock(&self.session.base) = Some(manifest.id);
        self.shared.usage.close(&self.session.id, &self.session.tenant, &present);
        present.destroy().await;
        lock(&self.session.forgettable).clear();
        // It has its place already: without a way out it goes on, and says so.
        let _ = self.attach(&fresh, true).await;
        self.is_at(exec);
        self.touch(self.session.spec.ttl_s);
        (self.go_on(Arc::new(fresh)), Ok(()))
    }

    /// Sleeps until somebody needs the session, or it ends.
    pub(super) async fn sleep(&mut self, inbox: &mut Inbox) -> Woken {
        let mut stop = self.session.stop.subscribe();
        let mut leaving = self.shared.leaving.subscribe();
        loop {
            let deadline = self.deadline();
            let command = tokio::select! {
                biased;
                _ = stop.wait_for(Option::is_some) => {
                    return Woken::End(Why::Stop(self.stop_reason()));
                }
                _ = leaving.wait_for(|leaving| *leaving) => return Woken::End(Why::Left),
                Some(command) = inbox.commands.recv() => command,
                () = sleep_until(deadline) => {
                    self.shared.metrics.expired.inc();
                    let idle = self.expires > deadline;
                    let because = if idle { "it was idle for too long" } else { "it expired" };
                    return Woken::End(Why::Stop(because.into()));
                }
            };
            match command {
                Command::Wake { quota, answer } => match self.wake(quota).await {
                    Ok(sandbox) => {
                        let _ = answer.send(Ok(()));
                        return Woken::Awake(sandbox);
                    }
                    Err(error) => drop(answer.send(Err(error))),
                },
                Command::Exec { ask, answer } => match self.wake(Quota::default()).await {
                    Ok(sandbox) => {
                        self.accept(&sandbox, ask, answer);
                        return Woken::Awake(sandbox);
                    }
                    Err(error) => drop(answer.send(Err(error))),
                },
                Command::Interrupt { exec_id: None, answer } => drop(answer.send(Ok(0))),
                Command::Interrupt { exec_id: Some(id), answer } => {
                    let _ = answer.send(Err(EngineError::NoExec(id)));
                }
                Command::Extend { ttl_s, answer } => self.extend(ttl_s, answer),
                Command::Used => {}
                Command::Hibernate { answer, .. } => {
                    let lost = self.asleep().map(|manifest| manifest.left_out());
                    let _ = answer.send(lost);
                }
                Command::ForkSource { from, answer, .. } => {
                    let _ = answer.send(self.branch_asleep(from.as_deref()));
                }
                Command::Restore { exec, answer } => {
                    let outcome = self.restore_asleep(&exec).await;
                    let _ = answer.send(outcome);
                }
            }
        }
    }

    fn branch_asleep(&self, from: Option<&str>) -> Result<ForkSource, EngineError> {
        match from {
            Some(exec) => self.branch_of_checkpoint(exec),
            None => self.branch_of(&self.asleep()?),
        }
    }

    /// One that sleeps goes on sleeping, as what it was then.
    async fn restore_asleep(&self, exec: &str) -> Result<(), EngineError> {
        let store = &self.shared.snapshot_store;
        let snapshots = store.of_session(&self.session.id);
        let manifest = snapshots.checkpoint(exec);
        let manifest = manifest.ok_or_else(|| EngineError::NoCheckpoint(exec.to_owned()))?;
        let again = snapshots.repeat(&manifest, store.next_id());
        let again = again.map_err(EngineError::KeepSnapshot)?;
        self.drop_earlier(&again);
        self.is_at(exec);
        Ok(())
    }

    fn is_at(&self, exec: &str) {
        self.session.view.send_modify(|view| view.at = Some(exec.to_owned()));
    }

    /// Where an earlier server left it.
    pub(super) async fn remember_where(&self) {
        let filter = ExecFilter { newest_first: true, beyond: None, finished: true, limit: RECENT };
        let last = |row: ExecRow| (!row.request.background).then_some(row.id);
        if let Ok(page) = self.shared.store.execs(&self.session.id, filter, last).await
            && let Some(exec) = page.items.into_iter().flatten().next()
        {
            self.is_at(&exec);
        }
    }

    /// What it is while it sleeps.
    fn asleep(&self) -> Result<Manifest, EngineError> {
        let snapshots = self.shared.snapshot_store.of_session(&self.session.id);
        snapshots.last().ok_or_else(|| {
            let gone = std::io::Error::other("its snapshot is gone");
            EngineError::KeepSnapshot(gone)
        })
    }

    /// Makes a sandbox of the snapshot again. If that fails the session goes on sleeping.
    async fn wake(&mut self, quota: Quota) -> Result<Arc<Sandbox>, EngineError> {
        let begun = Instant::now();
        let reservation = match self.reservation.take() {
            Some(reservation) => reservation,
            None => self.room(quota)?,
        };
        self.happen(Happening::WakeBegan);
        let woken = self.wake_up().await;
        match woken {
            Ok(sandbox) => {
                self.reservation = Some(reservation);
                self.sleeping = None;
                let sandbox = Arc::new(sandbox);
                *lock(&self.session.sandbox) = Some(Arc::clone(&sandbox));
                self.strictly = false;
                self.sleep_again_at = None;
                self.touch(self.session.spec.ttl_s);
                self.happen(Happening::SandboxReady);
                self.republish();
                let id = &self.session.id;
                let ms = begun.elapsed().as_millis();
                tracing::info!(session.id = id, ms, "session {id} woke up");
                Ok(sandbox)
            }
            Err(error) => {
                let id = &self.session.id;
                tracing::warn!(session.id = id, "failed to wake: {}", in_full(&error));
                self.happen(Happening::SandboxAsleep);
                Err(error)
            }
        }
    }

    fn room(&self, quota: Quota) -> Result<Reservation, EngineError> {
        let (tenant, limits) = (&self.session.tenant, &self.session.spec.limits);
        Ok(self.shared.admission.reserve(tenant, quota, limits)?)
    }

    async fn wake_up(&mut self) -> Result<Sandbox, EngineError> {
        let manifest = self.asleep()?;
        let sandbox = self.shared.fresh_sandbox(&self.session).await?;
        let Err(error) = self.fill(&sandbox, &manifest).await else { return Ok(sandbox) };
        self.attached = None;
        sandbox.destroy().await;
        let (store, id) = (&self.shared.store, &self.session.id);
        let _ = store.set_sandbox(id, Phase::Hibernated, None, Durability::Soon).await;
        Err(error)
    }

    async fn fill(&mut self, sandbox: &Sandbox, manifest: &Manifest) -> Result<(), EngineError> {
        let handle = Some(sandbox.handle().clone());
        let id = self.session.id.clone();
        let store = self.shared.store.clone();
        store.set_sandbox(&id, Phase::Waking, handle.clone(), Durability::Process).await?;
        let snapshots = self.shared.snapshot_store.of_session(&id);
        revive(sandbox, &snapshots, manifest, self.strictly).await?;
        *lock(&self.session.base) = Some(manifest.id);
        self.attach(sandbox, false).await?;
        Ok(store.set_sandbox(&id, Phase::Ready, handle, Durability::Process).await?)
    }

    /// Refuses to put a session aside in which something goes on.
    pub(super) fn must_be_quiescent(&self) -> Result<(), EngineError> {
        let live = lock(&self.session.live);
        let runs = live.values().find(|exec| exec.stage() != Stage::Finished);
        if let Some(exec) = runs {
            return Err(self.not_quiescent(format!("execution `{}` runs", exec.id)));
        }
        drop(live);
        if self.session.is_attached() {
            return Err(self.not_quiescent("somebody is at a terminal, or watches files".into()));
        }
        Ok(())
    }

    fn not_quiescent(&self, reason: String) -> EngineError {
        EngineError::NotAtRest { session: self.session.id.clone(), reasons: vec![reason] }
    }

    /// Ends a session that sleeps.
    pub(super) async fn end_asleep(&mut self, why: Why) {
        match why {
            Why::Stop(because) => {
                self.happen(Happening::StopAsked);
                self.over(Happening::SandboxGone, &because).await;
                self.write_metadata();
            }
            // The next server finds its row and its snapshot.
            Why::Left | Why::SandboxLost | Why::Aside(_) => {}
        }
    }

    /// An earlier server put it to sleep, or was about to wake it: what it had of a sandbox goes.
    pub(super) async fn lie_down(&mut self, left: Option<Handle>) {
        if let Some(handle) = left {
            Arc::clone(&self.shared.runtime).discard(&handle).await;
            let (store, id) = (&self.shared.store, &self.session.id);
            let _ = store.set_sandbox(id, Phase::Hibernated, None, Durability::Soon).await;
        }
        if self.reservation.is_none() {
            self.sleeping = Some(self.shared.admission.admit_sleep(&self.session.tenant));
        }
        self.happen(Happening::SandboxAsleep);
    }
}
