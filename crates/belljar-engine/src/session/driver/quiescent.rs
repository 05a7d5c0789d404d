//! Handles requests that need a session without running executions: hibernate, fork, restore. Also takes exclusive use
//! of the sandbox for the driver.

use std::time::Duration;

use belljar_runtime::Sandbox;
use tokio::time::{Instant, timeout};

use super::serve::ServeEnd;
use super::{Answer, Driver, SandboxLease, later};
use crate::admission::Quota;
use crate::error::{EngineError, in_full};
use crate::exec::Stage;
use crate::rules::Happening;
use crate::snapshots::ForkSource;

/// How long unreturned leases may delay exclusive use.
const LEASE_PATIENCE: Duration = Duration::from_secs(2);

/// How long a request waits until the output of executions of an earlier server is read.
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// The pause after a failed hibernation, before the next attempt.
const HIBERNATE_PAUSE: Duration = Duration::from_secs(60);

pub(super) enum QuiescentRequest {
    /// `asked` is `None` if the driver hibernates the session by itself.
    Hibernate {
        force: bool,
        asked: Option<(Quota, Answer<Vec<String>>)>,
    },
    Fork {
        force: bool,
        from: Option<String>,
        answer: Answer<ForkSource>,
    },
    Restore {
        exec: String,
        answer: Answer<()>,
    },
    /// Renews the snapshot in S3. No client waits for it.
    Snapshot,
}

impl QuiescentRequest {
    fn refuse(self, error: EngineError) {
        match self {
            QuiescentRequest::Hibernate { asked: Some((_, answer)), .. } => {
                drop(answer.send(Err(error)));
            }
            QuiescentRequest::Hibernate { asked: None, .. } | QuiescentRequest::Snapshot => {}
            QuiescentRequest::Fork { answer, .. } => drop(answer.send(Err(error))),
            QuiescentRequest::Restore { answer, .. } => drop(answer.send(Err(error))),
        }
    }
}

impl Driver {
    /// When to hibernate this session, if it is not used until then.
    pub(super) fn hibernate_at(&self) -> Option<Instant> {
        let due = later(self.used, self.state.snapshot_store.config().hibernate_after?);
        Some(self.hibernate_again_at.map_or(due, |again| again.max(due)))
    }

    /// Handles a request now if nothing runs. Otherwise it is refused, or postponed for a moment.
    pub(super) fn when_quiescent(&mut self, request: QuiescentRequest) -> Option<ServeEnd> {
        let until = Instant::now() + READ_PATIENCE;
        self.when_quiescent_until(request, until)
    }

    /// The same for a request that was postponed.
    pub(super) fn retry_postponed(&mut self) -> Option<ServeEnd> {
        let (until, request) = self.postponed.take()?;
        self.when_quiescent_until(request, until)
    }

    fn when_quiescent_until(
        &mut self,
        request: QuiescentRequest,
        until: Instant,
    ) -> Option<ServeEnd> {
        match self.must_be_quiescent() {
            Ok(()) => Some(ServeEnd::Quiescent(request)),
            Err(_) if self.only_reads() && Instant::now() < until => {
                self.postponed = Some((until, request));
                None
            }
            Err(error) => {
                self.hibernate_again_at = Some(Instant::now() + HIBERNATE_PAUSE);
                self.snapshot_later();
                request.refuse(error);
                None
            }
        }
    }

    /// Whether the only remaining work is reading the output of executions that had ended before this server started.
    fn only_reads(&self) -> bool {
        let live = self.live.borrow();
        let mut unfinished = live.values().filter(|exec| exec.stage() != Stage::Finished);
        !self.session.is_attached() && unfinished.all(|exec| self.ended_before.contains(&exec.id))
    }

    fn must_be_quiescent(&self) -> Result<(), EngineError> {
        let live = self.live.borrow();
        if let Some(exec) = live.values().find(|exec| exec.stage() != Stage::Finished) {
            return Err(self.not_quiescent(format!("execution `{}` runs", exec.id)));
        }
        // A drain ends these connections.
        if self.session.is_attached() && !self.state.availability.is_draining() {
            let reason = "a client follows a terminal or changes of files";
            return Err(self.not_quiescent(reason.into()));
        }
        Ok(())
    }

    fn not_quiescent(&self, reason: String) -> EngineError {
        EngineError::NotAtRest { session: self.session.id.clone(), reasons: vec![reason] }
    }

    /// Handles a request. Returns the sandbox that the session has afterwards, if any.
    pub(super) async fn run_quiescent(
        &mut self,
        sandbox: SandboxLease,
        request: QuiescentRequest,
    ) -> Option<SandboxLease> {
        // Every execution has ended, so its performer returns.
        while let Some(performed) = self.performing.join_next().await {
            if let Ok((exec, performed)) = performed {
                self.performed(&sandbox, exec, performed);
            }
        }
        match request {
            QuiescentRequest::Hibernate { force, asked } => {
                let (quota, answer) = asked.unzip();
                let hibernated = self.hibernate(sandbox, force, quota).await;
                self.answer_hibernate(answer, hibernated)
            }
            QuiescentRequest::Fork { force, from, answer } => {
                let source = match from {
                    Some(exec) => self.fork_checkpoint(&exec).await,
                    None => self.fork_now(&sandbox, force).await,
                };
                let _ = answer.send(source);
                Some(sandbox)
            }
            QuiescentRequest::Restore { exec, answer } => {
                let (sandbox, outcome) = self.restore(sandbox, &exec).await;
                let _ = answer.send(outcome);
                sandbox
            }
            QuiescentRequest::Snapshot => {
                self.renew_snapshot(&sandbox).await;
                Some(sandbox)
            }
        }
    }

    fn answer_hibernate(
        &mut self,
        answer: Option<Answer<Vec<String>>>,
        hibernated: Result<Vec<String>, (Option<SandboxLease>, EngineError)>,
    ) -> Option<SandboxLease> {
        let (sandbox, outcome) = match hibernated {
            Ok(lost) => (None, Ok(lost)),
            Err((sandbox, error)) => (sandbox, Err(error)),
        };
        match (answer, outcome) {
            (Some(answer), outcome) => drop(answer.send(outcome)),
            (None, Err(error)) => self.hibernate_later(&error),
            (None, Ok(_)) => {}
        }
        sandbox
    }

    fn hibernate_later(&mut self, error: &EngineError) {
        let (id, why) = (&self.session.id, in_full(error));
        self.hibernate_again_at = Some(Instant::now() + HIBERNATE_PAUSE);
        if matches!(error, EngineError::NotAtRest { .. }) {
            tracing::info!(session.id = id, "not hibernated: {why}");
        } else {
            tracing::warn!(session.id = id, "failed to hibernate: {why}");
            self.warn(format!("it could not be put to sleep: {why}"));
        }
    }

    /// Takes exclusive use of the sandbox: there are no new leases, and it waits for existing ones with a time limit.
    pub(super) async fn exclusive(
        &mut self,
        sandbox: SandboxLease,
    ) -> Result<Sandbox, (Option<SandboxLease>, EngineError)> {
        self.apply(Happening::RestBegan);
        let gate = std::sync::Arc::clone(&self.session.sandbox);
        gate.close();
        drop(sandbox);
        let returned = async {
            // Tasks of the driver have leases too, and results to return.
            self.all_settled().await;
            while let Some(done) = self.chores.join_next().await {
                self.chore_done(done.ok().flatten());
            }
            while let Some(spilled) = self.spillers.join_next().await {
                self.spilled(spilled.ok());
            }
            gate.returned().await
        };
        match timeout(LEASE_PATIENCE, returned).await {
            Ok(Some(sandbox)) => Ok(sandbox),
            Ok(None) | Err(_) => {
                let sandbox = gate.reopen();
                self.apply(Happening::RestEnded);
                // If the disk is full, the end of an execution waits to be stored and keeps its lease.
                let error = match self.not_stored.take() {
                    Some(not_stored) => EngineError::Store(not_stored),
                    None => self.not_quiescent("a call that uses it is in progress".into()),
                };
                Err((sandbox, error))
            }
        }
    }

    /// Ends exclusive use: the sandbox is lent again.
    pub(super) fn end_exclusive(&mut self, sandbox: Sandbox) -> SandboxLease {
        let sandbox = self.session.sandbox.open(sandbox);
        self.apply(Happening::RestEnded);
        sandbox
    }
}
