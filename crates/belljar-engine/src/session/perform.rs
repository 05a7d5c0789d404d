//! Performs an execution of a session: stores it, waits for its turn, and runs it to its end.

use std::sync::Arc;

use belljar_proto::exec::Outcome;
use belljar_runtime::RuntimeError;
use tokio::sync::oneshot;

use super::driver::{AftermathSender, EndedExec};
use super::{SandboxLease, Session};
use crate::EngineError;
use crate::artifacts::Artifacts;
use crate::exec::outcome::not_started;
use crate::exec::perform::{self, Aftermath, Controls, PerformEnd, Start};
use crate::exec::{Exec, Stage};
use crate::state::EngineState;
use crate::store::ExecRow;

/// How an execution of a session begins.
#[derive(Debug)]
pub(super) enum Begin {
    /// The execution is new. It is stored first, and then returned to the caller.
    New(oneshot::Sender<Result<Arc<Exec>, EngineError>>),
    /// An earlier server stored the execution and did not start it.
    Again,
    /// The guest has the execution: it runs, or has ended.
    Join,
}

/// The result of performing an execution of a session.
#[derive(Debug)]
pub(super) enum Performed {
    /// The execution was not accepted; the caller got the error.
    Never,
    /// The execution has ended.
    Ended,
    /// It could not be started. The driver publishes this end.
    NotStarted(Outcome),
    /// The sandbox was lost, or does not answer.
    SandboxLost,
    /// It was interrupted before it began.
    Cancelled,
}

/// Stores an execution, waits for its turn and performs it.
pub(super) async fn perform(
    state: Arc<EngineState>,
    session: Arc<Session>,
    sandbox: SandboxLease,
    driver: AftermathSender,
    exec: Arc<Exec>,
    begin: Begin,
    turn: oneshot::Receiver<()>,
) -> (Arc<Exec>, Performed) {
    let joined = matches!(begin, Begin::Join);
    if let Begin::New(answer) = begin {
        let accepted = accept(&state, &session, &exec).await;
        let failed = accepted.is_err();
        exec.accepted.send_replace(Some(!failed));
        // The caller may have disconnected. An accepted execution is performed anyway.
        let _ = answer.send(accepted.map(|()| Arc::clone(&exec)));
        if failed {
            return (exec, Performed::Never);
        }
    }
    exec.accepted.send_replace(Some(true));
    if turn.await.is_err() {
        return (exec, Performed::Cancelled);
    }
    exec.stage.send_replace(Stage::Running);
    let controls = Controls { frozen: Some(state.availability.frozen()), ..Controls::default() };
    let performed = perform_in_guest(&session, sandbox, &driver, &exec, joined, controls).await;
    (exec, performed)
}

async fn perform_in_guest(
    session: &Session,
    sandbox: SandboxLease,
    driver: &AftermathSender,
    exec: &Arc<Exec>,
    joined: bool,
    controls: Controls,
) -> Performed {
    let start = match joined {
        true => Start::Join,
        false => {
            let env = session.spec.environment().into_iter().collect();
            Start::New { env, script: None }
        }
    };
    let ended = EndedExec { exec: Arc::clone(exec), sandbox: sandbox.clone(), joined };
    let aftermath = InSession { driver, ended };
    match perform::perform(&sandbox, exec, start, controls, |_| {}, &aftermath).await {
        Ok(PerformEnd::Finished) => Performed::Ended,
        Ok(PerformEnd::SandboxLost | PerformEnd::Unanswered)
        | Err(
            EngineError::Exec(RuntimeError::Gone | RuntimeError::TimedOut(_))
            | EngineError::StartKernel(RuntimeError::Gone),
        ) => Performed::SandboxLost,
        Err(error) => Performed::NotStarted(not_started(&exec.request, &error)),
    }
}

async fn accept(state: &EngineState, session: &Session, exec: &Exec) -> Result<(), EngineError> {
    let row = ExecRow {
        session: session.id.clone(),
        id: exec.id.clone(),
        number: exec.number,
        request: exec.request.clone(),
        code: exec.code.to_vec(),
        accepted_ms: exec.accepted_ms,
        ended_ms: None,
        status: None,
        transcript: None,
    };
    match session.noticed(state.store.accept_exec(row).await) {
        Ok(true) => Ok(()),
        Ok(false) => Err(EngineError::DuplicateExec(exec.id.clone())),
        Err(error) => Err(EngineError::Store(error)),
    }
}

/// The steps of a session after the end of an execution: the driver stores its artifacts, and takes
/// a checkpoint if the session has checkpoints.
struct InSession<'a> {
    driver: &'a AftermathSender,
    ended: EndedExec,
}

impl Aftermath for InSession<'_> {
    async fn take_artifacts(&self, outcome: &mut Outcome) -> Artifacts {
        // Measured before anything is cleaned up, so that it is the memory that the code used.
        outcome.memory_bytes = self.ended.sandbox.memory_used();
        self.driver.artifacts(self.ended.clone(), outcome.artifacts).await
    }

    async fn complete(&self, outcome: &mut Outcome) {
        if let Some(taken) = self.driver.checkpoint(self.ended.clone()).await {
            outcome.checkpoint = Some(taken.is_ok());
            outcome.no_checkpoint = taken.err();
        }
    }
}
