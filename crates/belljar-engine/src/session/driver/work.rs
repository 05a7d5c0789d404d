//! Accepts, queues and interrupts the executions of a session, and stores their end.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Status;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lane::Lane;
use super::{Answer, Driver, SandboxLease};
use crate::clock;
use crate::error::EngineError;
use crate::exec::{Exec, ExecAsk, Stage, no_interpreter};
use crate::session::MAX_QUEUED;
use crate::session::perform::{Begin, Performed, perform};

/// In a session on disk, the variables are written when nothing has run for this long.
const VARIABLES_DELAY: Duration = Duration::from_millis(500);

impl Driver {
    pub(super) fn accept(
        &mut self,
        sandbox: &SandboxLease,
        ask: ExecAsk,
        answer: Answer<Arc<Exec>>,
    ) {
        if let Some(known) = ask.id.as_ref().and_then(|id| self.session.live_exec(id)) {
            if known.request != ask.request || known.code != ask.code {
                let _ = answer.send(Err(EngineError::ExecDiffers(known.id.clone())));
                return;
            }
            // The first request may not be stored yet, and the database may have the id already, so wait for the
            // result.
            tokio::spawn(async move {
                let _ = answer.send(known.once_accepted().await);
            });
            return;
        }
        if let Err(refusal) = self.has_room_for(sandbox, &ask) {
            let _ = answer.send(Err(refusal));
            return;
        }
        let id = ask.id.unwrap_or_else(|| crate::new_id("exec"));
        let number = self.next_number;
        self.next_number += 1;
        let exec = Arc::new(Exec::new(id, number, ask.request, ask.code, clock::now_ms()));
        self.begin(sandbox, exec, Begin::New(answer));
    }

    fn has_room_for(&self, sandbox: &SandboxLease, ask: &ExecAsk) -> Result<(), EngineError> {
        let lane = ask.request.lane();
        if let Some(language) = lane.filter(|language| sandbox.lacks(*language)) {
            return Err(no_interpreter(sandbox, language));
        }
        let waiting = lane.and_then(|lane| self.lanes.get(&lane)).map_or(0, Lane::waiting);
        if waiting >= MAX_QUEUED || (lane.is_none() && self.beside.len() >= MAX_QUEUED) {
            return Err(EngineError::QueueFull(MAX_QUEUED));
        }
        Ok(())
    }

    /// Starts an execution in parallel to the others, or puts it into the queue of its kernel.
    pub(super) fn begin(&mut self, sandbox: &SandboxLease, exec: Arc<Exec>, begin: Begin) {
        let (go, turn) = oneshot::channel();
        match exec.request.lane() {
            None => {
                self.beside.insert(exec.id.clone());
                let _ = go.send(());
            }
            Some(language) => {
                let lane = self.lanes.entry(language).or_default();
                lane.enter(Arc::clone(&exec), go);
            }
        }
        self.perform(sandbox, exec, begin, turn);
        self.touch(self.session.spec.ttl_s);
        self.publish();
    }

    pub(super) fn perform(
        &mut self,
        sandbox: &SandboxLease,
        exec: Arc<Exec>,
        begin: Begin,
        turn: oneshot::Receiver<()>,
    ) {
        self.live.send_modify(|live| drop(live.insert(exec.id.clone(), Arc::clone(&exec))));
        let (state, session) = (Arc::clone(&self.state), Arc::clone(&self.session));
        let (sandbox, aftermath) = (sandbox.clone(), self.aftermath.sender());
        self.performing.spawn(perform(state, session, sandbox, aftermath, exec, begin, turn));
    }

    /// The performer of an execution has returned. True if the sandbox is lost.
    pub(super) fn performed(
        &mut self,
        sandbox: &SandboxLease,
        exec: Arc<Exec>,
        performed: Performed,
    ) -> bool {
        self.aftermath.forget(&exec.id);
        if matches!(performed, Performed::Never) {
            self.live.send_modify(|live| drop(live.remove(&exec.id)));
            // If no later execution has a number, the next one gets this number.
            if exec.number + 1 == self.next_number {
                self.next_number = exec.number;
            }
        }
        self.release_kernel(&exec);
        let is_lost = matches!(performed, Performed::SandboxLost);
        if is_lost && exec.transcript.outcome().is_none() {
            // Its end is stored when the cause is known.
            return true;
        }
        match performed {
            Performed::Never => {}
            Performed::NotStarted(outcome) => {
                exec.finish(outcome);
                self.settle(Some(sandbox), exec);
            }
            _ => self.settle(Some(sandbox), exec),
        }
        if self.session.record.is_some() && !self.works() {
            self.variables_at = Some(Instant::now() + VARIABLES_DELAY);
        }
        is_lost
    }

    /// Interrupts one execution, or all. Waiting executions are removed from the queue.
    pub(super) fn interrupt(
        &mut self,
        sandbox: &SandboxLease,
        exec_id: Option<&str>,
    ) -> Result<usize, EngineError> {
        let mut chosen = self.session.live_execs();
        chosen.retain(|exec| exec_id.is_none_or(|id| exec.id == id));
        chosen.retain(|exec| exec.stage() != Stage::Finished);
        if let Some(id) = exec_id
            && chosen.is_empty()
        {
            // An execution that has ended counts as interrupted. An unknown one does not: the caller looks it up in the
            // database.
            return match self.session.live_exec(id) {
                Some(_) => Ok(0),
                None => Err(EngineError::NoExec(id.to_owned())),
            };
        }
        for exec in &chosen {
            self.interrupt_one(sandbox, exec);
        }
        Ok(chosen.len())
    }

    fn interrupt_one(&mut self, sandbox: &SandboxLease, exec: &Exec) {
        let lane = exec.request.lane().and_then(|lane| self.lanes.get_mut(&lane));
        if let Some(turn) = lane.and_then(|lane| lane.take_back(&exec.id)) {
            // Its performer returns when its turn is dropped.
            drop(turn);
            self.publish();
            exec.end(Status::Interrupted, "it was interrupted before it began");
            return;
        }
        let (sandbox, id) = (sandbox.clone(), exec.id.clone());
        tokio::spawn(async move {
            if let Err(error) = sandbox.interrupt(&id).await {
                tracing::debug!(exec.id = id, "failed to interrupt: {error}");
            }
        });
    }

    /// An execution no longer needs its kernel, so the next one in the queue starts. This comes before the end of its
    /// transcript: a client that sees the end of the only execution also sees a session that is ready.
    pub(super) fn release_kernel(&mut self, exec: &Exec) {
        match exec.request.lane() {
            None => drop(self.beside.remove(&exec.id)),
            Some(language) => {
                if let Some(lane) = self.lanes.get_mut(&language) {
                    lane.leave(&exec.id);
                }
            }
        }
        self.touch(self.session.spec.ttl_s);
        self.publish();
    }
}
