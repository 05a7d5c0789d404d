//! The executions of a session: accepted, put in their place, interrupted, and settled when they
//! are over.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Status;
use belljar_runtime::Sandbox;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Driver;
use super::lane::Lane;
use crate::clock;
use crate::error::EngineError;
use crate::exec::{Exec, ExecAsk, Stage, no_interpreter};
use crate::lock;
use crate::session::MAX_QUEUED;
use crate::session::perform::{Begin, Performed, perform, settle};

/// In a session with files the variables are written down when it has been quiet for this long.
const SNAPSHOT_DELAY: Duration = Duration::from_millis(500);

impl Driver {
    pub(super) fn accept(
        &mut self,
        sandbox: &Arc<Sandbox>,
        ask: ExecAsk,
        answer: oneshot::Sender<Result<Arc<Exec>, EngineError>>,
    ) {
        if let Some(known) = ask.id.as_ref().and_then(|id| self.session.live_exec(id)) {
            if known.request != ask.request || known.code != ask.code {
                let _ = answer.send(Err(EngineError::ExecDiffers(known.id.clone())));
                return;
            }
            // It may be on its way to the database, which may know it already.
            tokio::spawn(async move {
                let _ = answer.send(known.once_accepted().await);
            });
            return;
        }
        let lane = ask.request.lane();
        if let Some(language) = lane.filter(|language| sandbox.lacks(*language)) {
            let _ = answer.send(Err(no_interpreter(sandbox, language)));
            return;
        }
        let waiting = lane.and_then(|lane| self.lanes.get(&lane)).map_or(0, Lane::waiting);
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
    pub(super) fn begin(&mut self, sandbox: &Arc<Sandbox>, exec: Arc<Exec>, begin: Begin) {
        lock(&self.session.live).insert(exec.id.clone(), Arc::clone(&exec));
        let (go, turn) = oneshot::channel();
        match exec.request.lane() {
            None => {
                self.beside += 1;
                let _ = go.send(());
            }
            Some(language) => {
                let lane = self.lanes.entry(language).or_default();
                lane.enter(Arc::clone(&exec), go);
            }
        }
        let (shared, session) = (Arc::clone(&self.shared), Arc::clone(&self.session));
        self.performing.spawn(perform(shared, session, Arc::clone(sandbox), exec, begin, turn));
        self.touch(self.session.spec.ttl_s);
        self.republish();
    }

    /// An execution is over, one way or another; true if that is because the sandbox is.
    pub(super) fn performed(
        &mut self,
        sandbox: &Arc<Sandbox>,
        exec: Arc<Exec>,
        performed: Performed,
    ) -> bool {
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

    /// Interrupts one execution, or all; those that wait are taken out of the queue.
    pub(super) fn interrupt(
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
            let lane = exec.request.lane().and_then(|lane| self.lanes.get_mut(&lane));
            if let Some(turn) = lane.and_then(|lane| lane.take_back(&exec.id)) {
                exec.end(Status::Interrupted, "it was interrupted before it began");
                // Dropping its turn tells its performer.
                drop(turn);
                continue;
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

    pub(super) fn settle(&mut self, sandbox: Option<&Arc<Sandbox>>, exec: Arc<Exec>) {
        let again = self.inherited.contains(&exec.id);
        let expires_ms = self.expiry_is_due().then(|| self.expires_ms());
        let (shared, session) = (Arc::clone(&self.shared), Arc::clone(&self.session));
        self.settling.spawn(settle(shared, session, sandbox.cloned(), exec, expires_ms, again));
    }

    fn leave_lane(&mut self, exec: &Exec) {
        let Some(language) = exec.request.lane() else {
            self.beside -= 1;
            return;
        };
        if let Some(lane) = self.lanes.get_mut(&language) {
            lane.leave(&exec.id);
        }
    }
}
