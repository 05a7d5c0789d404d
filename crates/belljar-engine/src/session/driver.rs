//! The one task that owns a session.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::{Language, Status};
use belljar_runtime::Sandbox;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::perform::{Begin, Performed, perform, settle};
use super::rules::{self, Happening, Phase};
use super::{Command, ExecAsk, Inbox, MAX_QUEUED, Session, lock};
use crate::EngineError;
use crate::admission::Reservation;
use crate::clock;
use crate::engine::Shared;
use crate::error::in_full;
use crate::exec::{Exec, Stage};
use crate::store::{Durability, ExecRow};

/// In a session with files the variables are written down when it has been quiet for this long.
const SNAPSHOT_DELAY: Duration = Duration::from_millis(500);

/// How exactly the end of a session's life is written down: a successor may end it earlier by this.
const EXPIRY_PACE: Duration = Duration::from_secs(5);

/// The last snapshot, on the way to the end, is not waited for any longer.
const LAST_SNAPSHOT: Duration = Duration::from_secs(2);

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
}

/// A kernel's worth of work.
#[derive(Debug, Default)]
struct Lane {
    /// The execution that has the kernel.
    holder: Option<String>,
    waiting: VecDeque<(Arc<Exec>, oneshot::Sender<()>)>,
}

struct Driver {
    shared: Arc<Shared>,
    session: Arc<Session>,
    /// Room in the server's limits, held for as long as anything of the session lives.
    reservation: Option<Reservation>,
    lanes: HashMap<Language, Lane>,
    beside: usize,
    performing: JoinSet<(Arc<Exec>, Performed)>,
    settling: JoinSet<()>,
    /// Executions an earlier server had accepted: their log entry may be there already.
    inherited: Vec<String>,
    next_number: u64,
    expires: Instant,
    used: Instant,
    /// When to write the variables down.
    snapshot_at: Option<Instant>,
    /// When it was last written down how long it lives.
    expiry_written: Option<Instant>,
}

/// Owns a session from its beginning to its end.
pub(crate) async fn drive(
    shared: Arc<Shared>,
    session: Arc<Session>,
    mut inbox: Inbox,
    reservation: Reservation,
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
        inherited: Vec::new(),
        next_number: view.execs + 1,
        expires: now + Duration::from_millis(remaining),
        used: now,
        snapshot_at: None,
        expiry_written: None,
        reservation: Some(reservation),
        shared,
        session,
    };
    let adopted = matches!(origin, Origin::Adopted(_));
    let fresh = matches!(origin, Origin::Cold) && view.execs == 0;
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
    match made {
        Some(Ok(sandbox)) => {
            let sandbox = Arc::new(sandbox);
            *lock(&driver.session.sandbox) = Some(Arc::clone(&sandbox));
            if adopted {
                driver.inherit(&sandbox).await;
            }
            driver.happen(Happening::SandboxReady);
            driver.republish();
            let (id, tenant) = (&driver.session.id, &driver.session.tenant);
            let how = if adopted { "taken over" } else { "ready" };
            tracing::info!(session.id = id, tenant, sandbox = sandbox.name(), "session {id} {how}");
            let why = driver.serve(&sandbox, &mut inbox).await;
            driver.end(sandbox, why).await;
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

/// Why a session is to end.
enum Why {
    Stop(String),
    SandboxLost,
    /// The server ends; the sandbox stays for its successor.
    Left,
}

impl Driver {
    async fn make(&self, origin: Origin) -> Result<Sandbox, EngineError> {
        match origin {
            Origin::Pool(sandbox) => Ok(*sandbox),
            Origin::Cold => self.shared.make_sandbox(&self.session).await,
            Origin::Adopted(handle) => self.shared.adopt(&self.session, *handle).await,
            Origin::Lost => {
                self.shared.metrics.adopted("cleaned");
                Err(EngineError::Invalid("the server ended while it was being made".into()))
            }
        }
    }

    /// Serves until there is a reason to end.
    async fn serve(&mut self, sandbox: &Arc<Sandbox>, inbox: &mut Inbox) -> Why {
        let mut stop = self.session.stop.subscribe();
        let mut leaving = self.shared.leaving.subscribe();
        self.write_metadata();
        loop {
            let deadline = self.deadline();
            let snapshot = self.snapshot_at;
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
                Some(command) = inbox.commands.recv() => self.obey(sandbox, command),
                () = sandbox.ended() => return Why::SandboxLost,
                () = sleep_until(deadline), if !self.works() => {
                    self.shared.metrics.expired.inc();
                    let idle = self.expires > deadline;
                    let because = if idle { "it was idle for too long" } else { "it expired" };
                    return Why::Stop(because.into());
                }
                () = sleep_until(snapshot.unwrap_or(deadline)), if snapshot.is_some() => {
                    self.snapshot_at = None;
                    self.take_snapshot(sandbox);
                }
            }
        }
    }

    fn obey(&mut self, sandbox: &Arc<Sandbox>, command: Command) {
        match command {
            Command::Exec { ask, answer } => self.accept(sandbox, ask, answer),
            Command::Interrupt { exec_id, answer } => {
                let _ = answer.send(self.interrupt(sandbox, exec_id.as_deref()));
            }
            Command::Extend { ttl_s, answer } => {
                self.touch(ttl_s);
                self.republish();
                let (shared, session) = (Arc::clone(&self.shared), Arc::clone(&self.session));
                tokio::spawn(async move {
                    let view = session.view();
                    let kept =
                        shared.store.set_expiry(&session.id, view.used_ms, view.expires_ms).await;
                    let _ = answer.send(kept.map_err(EngineError::Store));
                });
            }
        }
    }

    fn accept(
        &mut self,
        sandbox: &Arc<Sandbox>,
        ask: ExecAsk,
        answer: oneshot::Sender<Result<Arc<Exec>, EngineError>>,
    ) {
        if let Some(known) = ask.id.as_ref().and_then(|id| self.session.live_exec(id)) {
            // It may be on its way to the database, which may know it already.
            tokio::spawn(async move {
                let _ = answer.send(known.once_accepted().await);
            });
            return;
        }
        let lane = ask.request.lane();
        let waiting = lane.and_then(|lane| self.lanes.get(&lane)).map_or(0, |l| l.waiting.len());
        if waiting >= MAX_QUEUED || (lane.is_none() && self.beside >= MAX_QUEUED) {
            let _ = answer.send(Err(EngineError::QueueFull(MAX_QUEUED)));
            return;
        }
        let id = ask.id.unwrap_or_else(|| crate::new_id("exec"));
        let number = self.next_number;
        self.next_number += 1;
        let exec = Arc::new(Exec::new(id, number, ask.request, ask.code, clock::now_ms()));
        self.begin(sandbox, exec, Begin::New(answer));
    }

    /// Puts an execution in its place: beside the others, or in the queue of its kernel.
    fn begin(&mut self, sandbox: &Arc<Sandbox>, exec: Arc<Exec>, begin: Begin) {
        lock(&self.session.live).insert(exec.id.clone(), Arc::clone(&exec));
        let (go, turn) = oneshot::channel();
        match exec.request.lane() {
            None => {
                self.beside += 1;
                let _ = go.send(());
            }
            Some(language) => {
                let lane = self.lanes.entry(language).or_default();
                lane.waiting.push_back((Arc::clone(&exec), go));
                lane.advance();
            }
        }
        let (shared, session) = (Arc::clone(&self.shared), Arc::clone(&self.session));
        self.performing.spawn(perform(shared, session, Arc::clone(sandbox), exec, begin, turn));
        self.touch(self.session.spec.ttl_s);
        self.republish();
    }

    /// An execution is over, one way or another; true if that is because the sandbox is.
    fn performed(&mut self, sandbox: &Arc<Sandbox>, exec: Arc<Exec>, performed: Performed) -> bool {
        self.leave_lane(&exec);
        if matches!(performed, Performed::SandboxLost) && exec.transcript.outcome().is_none() {
            // Its end is written when the cause is known.
            return true;
        }
        match performed {
            Performed::Never => {
                lock(&self.session.live).remove(&exec.id);
                // Nobody else has got a number since: it is the next one's.
                if exec.number + 1 == self.next_number {
                    self.next_number = exec.number;
                }
            }
            _ => self.settle(Some(sandbox), exec),
        }
        self.touch(self.session.spec.ttl_s);
        if self.session.record.is_some() && !self.works() {
            self.snapshot_at = Some(Instant::now() + SNAPSHOT_DELAY);
        }
        self.republish();
        matches!(performed, Performed::SandboxLost)
    }

    fn leave_lane(&mut self, exec: &Exec) {
        let Some(language) = exec.request.lane() else {
            self.beside -= 1;
            return;
        };
        let Some(lane) = self.lanes.get_mut(&language) else { return };
        // It may have been waiting still: taken back, or not accepted.
        lane.waiting.retain(|(waiting, _)| waiting.id != exec.id);
        if lane.holder.as_deref() == Some(&exec.id) {
            lane.holder = None;
        }
        lane.advance();
    }

    fn settle(&mut self, sandbox: Option<&Arc<Sandbox>>, exec: Arc<Exec>) {
        let again = self.inherited.contains(&exec.id);
        // How long it lives is worth a write of its own only now and then.
        let now = Instant::now();
        let due = self.expiry_written.is_none_or(|last| now - last >= EXPIRY_PACE);
        let expires_ms = due.then(|| self.expires_ms());
        if due {
            self.expiry_written = Some(now);
        }
        let (shared, session) = (Arc::clone(&self.shared), Arc::clone(&self.session));
        self.settling.spawn(settle(shared, session, sandbox.cloned(), exec, expires_ms, again));
    }

    /// Interrupts one execution, or all; those that wait are taken out of the queue.
    fn interrupt(
        &mut self,
        sandbox: &Arc<Sandbox>,
        exec_id: Option<&str>,
    ) -> Result<usize, EngineError> {
        let mut chosen = self.session.live_execs();
        chosen.retain(|exec| exec_id.is_none_or(|id| exec.id == id));
        chosen.retain(|exec| exec.stage() != Stage::Finished);
        if let Some(id) = exec_id
            && chosen.is_empty()
        {
            // Over already is as good as interrupted; never heard of is not, and the caller knows.
            return match self.session.live_exec(id) {
                Some(_) => Ok(0),
                None => Err(EngineError::NoExec(id.to_owned())),
            };
        }
        for exec in &chosen {
            if let Some(lane) = exec.request.lane().and_then(|lane| self.lanes.get_mut(&lane)) {
                // Dropping its turn tells its performer.
                let waiting = lane.waiting.iter().position(|(other, _)| other.id == exec.id);
                if let Some(index) = waiting {
                    exec.end(Status::Interrupted, "it was interrupted before it began");
                    drop(lane.waiting.remove(index));
                    continue;
                }
            }
            let (sandbox, id) = (Arc::clone(sandbox), exec.id.clone());
            tokio::spawn(async move {
                if let Err(error) = sandbox.interrupt(&id).await {
                    tracing::debug!(exec.id = id, "failed to interrupt: {error}");
                }
            });
        }
        Ok(chosen.len())
    }

    /// Goes on with what an earlier server had begun.
    async fn inherit(&mut self, sandbox: &Arc<Sandbox>) {
        let unfinished = match self.shared.store.unfinished_execs(&self.session.id).await {
            Ok(unfinished) => unfinished,
            Err(error) => {
                tracing::error!(session.id = self.session.id, "{}", in_full(&error));
                return;
            }
        };
        let known: Vec<&str> =
            sandbox.link().known_execs().iter().map(|known| known.exec_id.as_str()).collect();
        // What is safe with us may be forgotten; an earlier server may not have come to say so.
        let safe = known.iter().filter(|id| !unfinished.iter().any(|row| row.id == **id));
        lock(&self.session.forgettable).extend(safe.map(|id| (*id).to_owned()));
        // Those the guest knows are ahead of those it does not.
        let (joined, again): (Vec<ExecRow>, Vec<ExecRow>) =
            unfinished.into_iter().partition(|row| known.contains(&row.id.as_str()));
        for (rows, join) in [(joined, true), (again, false)] {
            for row in rows {
                self.next_number = self.next_number.max(row.number + 1);
                self.inherited.push(row.id.clone());
                let exec =
                    Exec::new(row.id, row.number, row.request, row.code.into(), row.accepted_ms);
                let begin = if join { Begin::Join } else { Begin::Again };
                if join {
                    self.join(sandbox, Arc::new(exec), begin);
                } else {
                    self.begin(sandbox, Arc::new(exec), begin);
                }
            }
        }
    }

    /// Several of one lane may have ended while nobody looked: none of them waits for another.
    fn join(&mut self, sandbox: &Arc<Sandbox>, exec: Arc<Exec>, begin: Begin) {
        lock(&self.session.live).insert(exec.id.clone(), Arc::clone(&exec));
        let running = sandbox.link().known_execs().iter();
        let running = running.filter(|known| known.running).any(|known| known.exec_id == exec.id);
        match exec.request.lane() {
            Some(language) if running => {
                self.lanes.entry(language).or_default().holder = Some(exec.id.clone());
            }
            Some(_) => {}
            None => self.beside += 1,
        }
        let (go, turn) = oneshot::channel();
        let _ = go.send(());
        let (shared, session) = (Arc::clone(&self.shared), Arc::clone(&self.session));
        self.performing.spawn(perform(shared, session, Arc::clone(sandbox), exec, begin, turn));
    }

    /// Ends the executions of a session that will not come back.
    async fn finish_unfinished(&mut self, because: &str) {
        let Ok(rows) = self.shared.store.unfinished_execs(&self.session.id).await else { return };
        for row in rows {
            self.inherited.push(row.id.clone());
            let exec = Exec::new(row.id, row.number, row.request, row.code.into(), row.accepted_ms);
            exec.end(Status::Crashed, &format!("the sandbox was lost: {because}"));
            self.settle(None, Arc::new(exec));
        }
        while self.settling.join_next().await.is_some() {}
    }

    async fn end(&mut self, sandbox: Arc<Sandbox>, why: Why) {
        let (phase, because) = match why {
            Why::Left => return self.leave(sandbox).await,
            Why::Stop(because) => {
                self.happen(Happening::StopAsked);
                self.republish();
                let id = &self.session.id;
                let durability = self.durability();
                let written =
                    self.shared.store.set_phase(id, Phase::Stopping, None, durability).await;
                if let Err(error) = written {
                    // It ends all the same: whoever asked wants its resources back.
                    tracing::error!(session.id = id, "failed to write down: {}", in_full(&error));
                }
                if self.session.record.is_some() && !self.works() {
                    let taking = snapshot(Arc::clone(&self.session), Arc::clone(&sandbox));
                    let _ = tokio::time::timeout(LAST_SNAPSHOT, taking).await;
                }
                (Phase::Stopped, because)
            }
            Why::SandboxLost => {
                let oom = sandbox.oom_kills() > 0;
                let because = if oom { "it ran out of memory" } else { "its sandbox ended" };
                (Phase::Failed, because.to_owned())
            }
        };
        self.end_execs(&sandbox, phase, &because).await;
        *lock(&self.session.sandbox) = None;
        self.shared.usage.close(&self.session.id, &self.session.tenant, &sandbox);
        match Arc::try_unwrap(sandbox) {
            Ok(sandbox) => sandbox.destroy().await,
            // Somebody is still asking it something; its end is theirs.
            Err(shared) => {
                shared.kill();
                drop(shared);
            }
        }
        let happening = match phase {
            Phase::Stopped => Happening::SandboxGone,
            _ => Happening::SandboxLost,
        };
        self.over(happening, &because).await;
        self.write_metadata();
    }

    /// Gives everything that runs or waits an end that says why.
    async fn end_execs(&mut self, sandbox: &Arc<Sandbox>, phase: Phase, because: &str) {
        let (status, reason) = match phase {
            Phase::Stopped => (Status::Interrupted, format!("the session was ended: {because}")),
            _ if sandbox.oom_kills() > 0 => {
                (Status::Oom, "the sandbox ran out of memory".to_owned())
            }
            _ => (Status::Crashed, "the sandbox ended before the code did".to_owned()),
        };
        sandbox.kill();
        for exec in self.session.live_execs() {
            exec.end(status, &reason);
        }
        self.lanes.clear();
        while let Some(performed) = self.performing.join_next().await {
            if let Ok((exec, performed)) = performed
                && !matches!(performed, Performed::Never)
            {
                self.settle(None, exec);
            }
        }
        // Those whose performer had returned already when the sandbox was found to be lost.
        let settling_later = self.session.live_execs();
        while self.settling.join_next().await.is_some() {}
        for exec in settling_later {
            if self.session.live_exec(&exec.id).is_some() {
                self.settle(None, exec);
            }
        }
        while self.settling.join_next().await.is_some() {}
    }

    /// The server ends and the session does not: what runs goes on in the sandbox.
    async fn leave(&mut self, sandbox: Arc<Sandbox>) {
        while self.settling.join_next().await.is_some() {}
        self.performing.abort_all();
        while self.performing.join_next().await.is_some() {}
        *lock(&self.session.sandbox) = None;
        self.shared.usage.close(&self.session.id, &self.session.tenant, &sandbox);
        match Arc::try_unwrap(sandbox) {
            Ok(sandbox) => sandbox.leave(),
            Err(shared) => std::mem::forget(shared),
        }
    }

    /// Writes down that the session has ended, gives its room back, and publishes it: in this order,
    /// so that whoever hears of it can have a new one with the same key, in the same place.
    async fn over(&mut self, happening: Happening, because: &str) {
        let now = clock::now_ms();
        let id = &self.session.id;
        let phase = rules::next(self.session.phase(), happening).unwrap_or_else(|| {
            let phase = self.session.phase().name();
            tracing::error!(session.id = id, "{happening:?} happened to a session that is {phase}");
            Phase::Failed
        });
        let ended = Some((now, because.to_owned()));
        let written = self.shared.store.set_phase(id, phase, ended, self.durability()).await;
        if let Err(error) = written {
            tracing::error!(session.id = id, "failed to write down an end: {}", in_full(&error));
        }
        tracing::info!(session.id = id, "session {id} {}: {because}", phase.name());
        self.reservation = None;
        self.session.view.send_modify(|view| {
            view.phase = phase;
            view.running = 0;
            view.queued = 0;
            view.ended_ms = Some(now);
            view.ended_because = Some(because.to_owned());
        });
    }

    fn durability(&self) -> Durability {
        // A power cut takes what is in memory with it; files on disk stay and must be found again.
        if self.session.record.is_some() { Durability::Power } else { Durability::Process }
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
        self.session
            .live_execs()
            .iter()
            .any(|exec| !exec.request.background && exec.stage() != Stage::Finished)
    }

    /// It was used now, and lives at least this long from now on; never shorter than before.
    fn touch(&mut self, ttl_s: u64) {
        let now = Instant::now();
        self.used = now;
        self.expires = self.expires.max(now + Duration::from_secs(ttl_s));
    }

    fn deadline(&self) -> Instant {
        match self.session.spec.idle_s {
            Some(idle) => self.expires.min(self.used + Duration::from_secs(idle)),
            None => self.expires,
        }
    }

    fn expires_ms(&self) -> i64 {
        let left = self.expires.saturating_duration_since(Instant::now());
        clock::now_ms().saturating_add(i64::try_from(left.as_millis()).unwrap_or(i64::MAX))
    }

    /// Publishes what the lanes look like.
    fn republish(&self) {
        let queued = self.lanes.values().map(|lane| lane.waiting.len()).sum();
        let busy = self.lanes.values().filter(|lane| lane.holder.is_some()).count();
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

    fn take_snapshot(&mut self, sandbox: &Arc<Sandbox>) {
        self.settling.spawn(snapshot(Arc::clone(&self.session), Arc::clone(sandbox)));
    }

    /// Keeps `session_metadata.json` up to date.
    fn write_metadata(&self) {
        let Some(record) = self.session.record.clone() else { return };
        let session = Arc::clone(&self.session);
        tokio::task::spawn_blocking(move || {
            let view = session.view();
            let metadata = json!({
                "session_id": session.id,
                "key": session.key,
                "tenant": session.tenant,
                "created": clock::rfc3339(session.created_ms),
                "last_used": clock::rfc3339(view.used_ms),
                "expires": clock::rfc3339(view.expires_ms),
                "ended": view.ended_ms.map(clock::rfc3339),
                "ended_because": view.ended_because,
                "state": view.phase.name(),
                "image": session.spec.image,
                "storage": session.spec.storage,
                "datasets": session.spec.datasets,
                "limits": session.spec.limits,
                "metadata": session.spec.metadata,
                "statistics": { "execs": view.execs },
            });
            if let Err(error) = record.write_metadata(&metadata) {
                tracing::warn!(session.id = session.id, "failed to write metadata: {error}");
                session.warn(format!("session_metadata.json is out of date: {error}"));
            }
        });
    }
}

impl Lane {
    /// Gives a free kernel to the next in the queue, and tells the others where they are.
    fn advance(&mut self) {
        while self.holder.is_none()
            && let Some((exec, go)) = self.waiting.pop_front()
        {
            // One whose performer is gone cannot take its turn; the next can.
            if go.send(()).is_ok() {
                self.holder = Some(exec.id.clone());
            }
        }
        for (index, (exec, _)) in self.waiting.iter().enumerate() {
            exec.stage.send_replace(Stage::Queued { position: index + 1 });
        }
    }
}

/// Writes the variables of the Python kernel down, for people.
async fn snapshot(session: Arc<Session>, sandbox: Arc<Sandbox>) {
    let Some(record) = session.record.clone() else { return };
    // Busy, gone or silent: there will be another occasion.
    let Ok(state) = sandbox.kernel_state(Language::Python).await else { return };
    let written = tokio::task::spawn_blocking(move || {
        let text = serde_json::to_vec_pretty(&state)?;
        record.write_state(&text)
    });
    if let Ok(Err(error)) = written.await {
        tracing::warn!(session.id = session.id, "failed to write python_state.json: {error}");
        session.warn(format!("python_state.json is out of date: {error}"));
    }
}
