//! Serves a session that has a sandbox, one event after another.

use std::sync::Arc;

use belljar_runtime::Sandbox;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep_until};

use super::aftermath::{AftermathDone, AftermathRequest};
use super::ending::EndReason;
use super::idle::Spilled;
use super::quiescent::QuiescentRequest;
use super::settle::Settled;
use super::upload::Uploaded;
use super::{Answer, Command, Driver, EXPIRY_PACE, Performed, SandboxLease};
use crate::error::{EngineError, in_full};
use crate::exec::Exec;

/// Why serving a session ends.
pub(super) enum ServeEnd {
    Over(EndReason),
    /// Another node owns the session.
    Fenced,
    /// A request needs a session without running executions. Afterwards the session is served again, or it sleeps.
    Quiescent(QuiescentRequest),
}

impl From<EndReason> for ServeEnd {
    fn from(reason: EndReason) -> ServeEnd {
        ServeEnd::Over(reason)
    }
}

enum Event {
    Fenced,
    StopRequested,
    ServerLeaving,
    Performed(Result<(Arc<Exec>, Performed), JoinError>),
    AftermathRequested(AftermathRequest),
    AftermathDone(Result<AftermathDone, JoinError>),
    Settled(Result<Settled, JoinError>),
    ChoreDone(Option<String>),
    Spilled(Option<Spilled>),
    Uploaded(Result<Uploaded, JoinError>),
    UploadDue,
    /// The deadline of a postponed request has passed.
    PatienceOver,
    Command(Command),
    SandboxEnded,
    Expired,
    VariablesDue,
    SpillDue,
    HibernateDue,
    SnapshotDue,
}

impl Driver {
    pub(super) async fn serve(&mut self, sandbox: &SandboxLease) -> ServeEnd {
        self.write_metadata();
        loop {
            if let Some(end) = self.retry_postponed() {
                return end;
            }
            let event = self.next_event(sandbox).await;
            if let Some(end) = self.handle(sandbox, event) {
                return end;
            }
        }
    }

    /// Waits for the next event. Events that end the session have priority, then those that end work.
    async fn next_event(&mut self, sandbox: &Sandbox) -> Event {
        let deadline = self.deadline();
        let is_attached = self.session.is_attached();
        let may_expire = !self.works() && !is_attached;
        let is_idle = self.is_idle();
        let variables = self.variables_at;
        let spill = self.spill_at().filter(|_| self.spillers.is_empty() && is_idle);
        let may_rest = is_idle && !is_attached && !self.state.availability.is_frozen();
        let hibernate = self.hibernate_at().filter(|_| may_rest);
        let snapshot = self.snapshot_at().filter(|_| may_rest);
        let upload = self.uploads.due();
        let patience = self.postponed.as_ref().map(|(until, _)| *until);
        let mut stop = self.session.stop.subscribe();
        let mut leaving = self.state.leaving.subscribe();
        let mut fenced = self.session.fenced.subscribe();
        tokio::select! {
            biased;
            _ = fenced.wait_for(|fenced| *fenced) => Event::Fenced,
            _ = stop.wait_for(Option::is_some) => Event::StopRequested,
            _ = leaving.wait_for(|leaving| *leaving) => Event::ServerLeaving,
            Some(performed) = self.performing.join_next() => Event::Performed(performed),
            Some(request) = self.aftermath.requests.recv() => Event::AftermathRequested(request),
            Some(done) = self.aftermath.running.join_next() => Event::AftermathDone(done),
            Some(settled) = self.settling.join_next() => Event::Settled(settled),
            Some(done) = self.chores.join_next() => Event::ChoreDone(done.ok().flatten()),
            Some(spilled) = self.spillers.join_next() => Event::Spilled(spilled.ok()),
            Some(uploaded) = self.uploads.running.join_next() => Event::Uploaded(uploaded),
            () = until(upload) => Event::UploadDue,
            () = until(patience) => Event::PatienceOver,
            Some(command) = self.commands.recv(), if patience.is_none() => Event::Command(command),
            () = sandbox.ended() => Event::SandboxEnded,
            () = sleep_until(deadline), if may_expire => Event::Expired,
            () = until(variables) => Event::VariablesDue,
            () = until(spill) => Event::SpillDue,
            () = until(hibernate) => Event::HibernateDue,
            () = until(snapshot) => Event::SnapshotDue,
        }
    }

    fn handle(&mut self, sandbox: &SandboxLease, event: Event) -> Option<ServeEnd> {
        match event {
            Event::Fenced => return Some(ServeEnd::Fenced),
            Event::StopRequested => return Some(EndReason::Stop(self.stop_reason()).into()),
            Event::ServerLeaving => return Some(EndReason::ServerLeaving.into()),
            Event::Performed(Ok((exec, performed))) => {
                return self
                    .performed(sandbox, exec, performed)
                    .then_some(EndReason::SandboxLost.into());
            }
            // This is a bug. The execution must not wait forever.
            Event::Performed(Err(panic)) => {
                tracing::error!(session.id = self.session.id, "failed to perform: {panic}");
                return Some(EndReason::SandboxLost.into());
            }
            Event::AftermathRequested(request) => self.aftermath_requested(request),
            Event::AftermathDone(done) => self.aftermath_done(done),
            Event::Settled(settled) => {
                self.settled(settled);
                self.write_metadata();
            }
            Event::ChoreDone(warning) => self.chore_done(warning),
            Event::Spilled(spilled) => self.spilled(spilled),
            Event::Uploaded(uploaded) => self.uploaded(uploaded),
            Event::UploadDue => self.next_upload(),
            Event::PatienceOver => {}
            Event::Command(command) => return self.handle_command(sandbox, command),
            Event::SandboxEnded => return Some(EndReason::SandboxLost.into()),
            Event::Expired => return Some(EndReason::Stop(self.expired()).into()),
            Event::VariablesDue => self.write_variables(sandbox),
            Event::SpillDue => self.spill(sandbox),
            Event::HibernateDue => {
                let request = QuiescentRequest::Hibernate { force: false, asked: None };
                return self.when_quiescent(request);
            }
            Event::SnapshotDue => return self.when_quiescent(QuiescentRequest::Snapshot),
        }
        None
    }

    fn handle_command(&mut self, sandbox: &SandboxLease, command: Command) -> Option<ServeEnd> {
        match command {
            Command::Wake { answer, .. } => drop(answer.send(Ok(sandbox.clone()))),
            Command::Hibernate { force, quota, answer } => {
                let asked = Some((quota, answer));
                return self.when_quiescent(QuiescentRequest::Hibernate { force, asked });
            }
            Command::Fork { force, from, answer } => {
                return self.when_quiescent(QuiescentRequest::Fork { force, from, answer });
            }
            Command::Restore { exec, answer } => {
                return self.when_quiescent(QuiescentRequest::Restore { exec, answer });
            }
            Command::Exec { ask, answer } => self.accept(sandbox, ask, answer),
            Command::Interrupt { exec_id, answer } => {
                let _ = answer.send(self.interrupt(sandbox, exec_id.as_deref()));
            }
            Command::Used => {
                self.touch(self.session.spec.ttl_s);
                self.publish();
                if self.expiry_is_due() {
                    self.store_expiry();
                }
            }
            Command::Warn(warning) => self.warn(warning),
            Command::Extend { ttl_s, answer } => self.extend(ttl_s, answer),
        }
        None
    }

    pub(super) fn extend(&mut self, ttl_s: u64, answer: Answer<()>) {
        self.touch(ttl_s);
        self.publish();
        let (state, view) = (Arc::clone(&self.state), self.session.view());
        let session = Arc::clone(&self.session);
        tokio::spawn(async move {
            let stored = state.store.set_expiry(&session.id, view.used_ms, view.expires_ms).await;
            let _ = answer.send(session.noticed(stored).map_err(EngineError::Store));
        });
    }

    /// Whether the expiry should be stored now. If so, it counts as stored.
    pub(super) fn expiry_is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = self.expiry_stored.is_none_or(|last| now - last >= EXPIRY_PACE);
        if due {
            self.expiry_stored = Some(now);
        }
        due
    }

    fn store_expiry(&mut self) {
        let (state, view) = (Arc::clone(&self.state), self.session.view());
        let session = Arc::clone(&self.session);
        self.chores.spawn(async move {
            let id = &session.id;
            let stored = state.store.set_expiry(id, view.used_ms, view.expires_ms).await;
            if let Err(error) = session.noticed(stored) {
                tracing::warn!(session.id = id, "failed to store the expiry: {}", in_full(&error));
            }
            None
        });
    }
}

/// Waits until a time; without one, forever.
pub(super) async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
