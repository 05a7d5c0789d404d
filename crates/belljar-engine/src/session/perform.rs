//! Executions of a session: stored, performed in their turn, and stored again with their end.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Outcome;
use belljar_proto::guest::Call;
use belljar_runtime::{RuntimeError, Sandbox};
use tokio::sync::oneshot;

use super::checkpoint::checkpoint;
use super::{Session, lock};
use crate::EngineError;
use crate::artifacts::{self, Artifacts, Place};
use crate::clock;
use crate::engine::EngineState;
use crate::error::in_full;
use crate::exec::log::LogEntry;
use crate::exec::outcome::not_started;
use crate::exec::perform::{self, Aftermath, Controls, Start};
use crate::exec::result::ExecResult;
use crate::exec::{Exec, Stage};
use crate::store::{ExecRow, FinishedExec};

/// Retry budget for storing a result.
const WRITE_AGAIN: u32 = 600;
const WRITE_PAUSE: Duration = Duration::from_millis(500);

/// How an execution of a session begins.
#[derive(Debug)]
pub(super) enum Begin {
    /// It is new: it is stored first, and then the caller gets it.
    New(oneshot::Sender<Result<Arc<Exec>, EngineError>>),
    /// An earlier server stored it and did not start it.
    Again,
    /// The guest has it: it runs, or has ended.
    Join,
}

/// How far an execution of a session got.
#[derive(Debug)]
pub(super) enum Performed {
    /// It was not accepted; the caller got the error.
    Never,
    /// It has an end.
    Ended,
    /// The sandbox was lost, or does not answer.
    SandboxLost,
    /// It was interrupted before it began.
    Cancelled,
}

/// Stores an execution, waits for its turn and performs it.
pub(super) async fn perform(
    shared: Arc<EngineState>,
    session: Arc<Session>,
    sandbox: Arc<Sandbox>,
    exec: Arc<Exec>,
    begin: Begin,
    turn: oneshot::Receiver<()>,
) -> (Arc<Exec>, Performed) {
    let joined = matches!(begin, Begin::Join);
    if let Begin::New(answer) = begin {
        let accepted = accept(&shared, &session, &exec).await;
        let failed = accepted.is_err();
        exec.accepted.send_replace(Some(!failed));
        // The caller may have gone away: an accepted execution is performed all the same.
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
    let start = match joined {
        true => Start::Join,
        false => {
            let env = session.spec.environment().into_iter().collect();
            Start::New { env, script: None }
        }
    };
    let aftermath =
        InSession { shared: &shared, session: &session, sandbox: &sandbox, exec: &exec, joined };
    let controls = Controls::default();
    let performed = perform::perform(&sandbox, &exec, start, controls, |_| {}, &aftermath).await;
    let performed = match performed {
        Ok(perform::Performed::Finished) => Performed::Ended,
        Ok(perform::Performed::SandboxLost | perform::Performed::Unanswered)
        | Err(
            EngineError::Exec(RuntimeError::Gone | RuntimeError::TimedOut(_))
            | EngineError::StartKernel(RuntimeError::Gone),
        ) => Performed::SandboxLost,
        Err(error) => {
            exec.finish(not_started(&exec.request, &error));
            Performed::Ended
        }
    };
    (exec, performed)
}

async fn accept(shared: &EngineState, session: &Session, exec: &Exec) -> Result<(), EngineError> {
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
    match shared.store.accept_exec(row).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(EngineError::DuplicateExec(exec.id.clone())),
        Err(error) => Err(EngineError::Store(error)),
    }
}

/// What a session does with an execution that has ended: it keeps the artifacts, and takes a
/// checkpoint if it has checkpoints.
struct InSession<'a> {
    shared: &'a EngineState,
    session: &'a Session,
    sandbox: &'a Sandbox,
    exec: &'a Exec,
    /// An earlier server started it, and may have taken its artifacts.
    joined: bool,
}

impl Aftermath for InSession<'_> {
    async fn take_artifacts(&self, outcome: &mut Outcome) -> Artifacts {
        let InSession { shared, session, sandbox, exec, joined } = *self;
        // Measured before anything is cleaned up: it is what the code left.
        outcome.memory_bytes = sandbox.memory_used();
        let fingerprint = outcome.artifacts;
        if fingerprint.is_none() && sandbox.tells_artifacts() {
            return Artifacts::default();
        }
        // Other executions of this session may have ended at the same time.
        let mut memory = session.artifacts.lock().await;
        if !joined && !shared.artifact_store.is_news(&memory, fingerprint) {
            return Artifacts::default();
        }
        let origin = artifacts::Origin {
            tenant: &session.tenant,
            session: &session.id,
            exec: &exec.id,
            place: match session.record.is_some() || shared.artifact_store.shows_all() {
                true => Place::Session,
                false => Place::Nowhere,
            },
        };
        let store = &shared.artifact_store;
        match joined {
            true => store.ingest_again(sandbox, origin, fingerprint, &mut memory).await,
            false => store.ingest(sandbox, origin, fingerprint, &mut memory).await,
        }
    }

    async fn complete(&self, outcome: &mut Outcome) {
        let InSession { shared, session, sandbox, exec, joined } = *self;
        if let Some(taken) = checkpoint(shared, session, sandbox, exec, joined).await {
            outcome.checkpoint = Some(taken.is_ok());
            outcome.no_checkpoint = taken.err();
        }
        if !exec.request.background {
            session.view.send_modify(|view| view.at = Some(exec.id.clone()));
        }
    }
}

/// Stores an execution that has ended: in the log, in the database and in the usage counters. After
/// that the guest may forget it.
pub(super) async fn settle(
    shared: Arc<EngineState>,
    session: Arc<Session>,
    sandbox: Option<Arc<Sandbox>>,
    exec: Arc<Exec>,
    expires_ms: Option<i64>,
    again: bool,
) {
    let Some(outcome) = exec.transcript.outcome() else { return };
    let ended_ms = clock::now_ms();
    let bytes_out = exec.transcript.output_bytes();
    shared.usage.add(&session.tenant, |delta| {
        delta.count(outcome.status);
        delta.bytes_in += exec.code.len() as u64;
        delta.bytes_out += bytes_out;
    });
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of an execution")]
    let seconds = (ended_ms - exec.accepted_ms).max(0) as f64 / 1000.0;
    shared.metrics.finished(exec.request.language(), &outcome, seconds);
    tracing::debug!(
        session.id = session.id,
        exec.id = exec.id,
        language = exec.request.language(),
        duration_us = outcome.duration_us,
        "execution {} ended: {:?}",
        exec.id,
        outcome.status
    );
    log(&session, &exec, again).await;

    let finished = || FinishedExec {
        session: session.id.clone(),
        id: exec.id.clone(),
        number: exec.number,
        ended_ms,
        status: outcome.status,
        transcript: exec.transcript.encode(),
        expires_ms,
    };
    let first = finished();
    let bytes = first.transcript.len();
    let mut written = shared.store.finish_exec(first).await;
    for _ in 0..WRITE_AGAIN {
        if written.is_ok() || *shared.leaving.borrow() || session.stop.borrow().is_some() {
            break;
        }
        // The disk may be full. Until there is room, the result is in memory and in the guest.
        *lock(&session.unwritten) = written.err();
        tokio::time::sleep(WRITE_PAUSE).await;
        written = shared.store.finish_exec(finished()).await;
    }
    *lock(&session.unwritten) = None;
    match written {
        Ok(()) => {
            if let Some(sandbox) = sandbox {
                forget(&session, &sandbox, &exec.id, bytes).await;
            }
        }
        Err(error) => {
            tracing::error!(
                session.id = session.id,
                exec.id = exec.id,
                "failed to store the end of an execution: {}",
                in_full(&error)
            );
            session.warn(format!("the end of {} could not be stored", exec.id));
        }
    }
    lock(&session.live).remove(&exec.id);
}

/// Lets the guest forget stored executions: several at a time, unless one is large.
async fn forget(session: &Session, sandbox: &Sandbox, exec_id: &str, bytes: usize) {
    const AT_ONCE: usize = 16;
    const LARGE: usize = 64 * 1024;
    let exec_ids = {
        let mut forgettable = lock(&session.forgettable);
        forgettable.push(exec_id.to_owned());
        if forgettable.len() < AT_ONCE && bytes < LARGE {
            return;
        }
        std::mem::take(&mut *forgettable)
    };
    // A guest that cannot be reached forgets by itself after a while.
    let _ = sandbox.link().call(Call::Forget { exec_ids }, &[]).await;
}

async fn log(session: &Arc<Session>, exec: &Arc<Exec>, again: bool) {
    let Some(record) = session.record.clone() else { return };
    let result = ExecResult::of(exec.id.clone(), &exec.transcript);
    let entry = LogEntry::new(exec.number, exec.accepted_ms, &exec.request, &exec.code, result);
    let exec_id = exec.id.clone();
    let written =
        tokio::task::spawn_blocking(move || record.append_log(&exec_id, &entry, again)).await;
    if let Err(error) = written.unwrap_or_else(|panic| Err(std::io::Error::other(panic))) {
        tracing::error!(session.id = session.id, "failed to write to the session's log: {error}");
        session.warn(format!("{} is missing in session.log: {error}", exec.id));
    }
}

impl Session {
    /// Adds a warning to the session, unless it has it already.
    pub(crate) fn warn_once(&self, warning: &str) {
        if !self.view.borrow().warnings.iter().any(|known| known == warning) {
            self.warn(warning.to_owned());
        }
    }

    /// Adds a warning to what clients see of the session.
    pub(super) fn warn(&self, warning: String) {
        const MOST: usize = 20;
        self.view.send_modify(|view| {
            if view.warnings.len() < MOST {
                view.warnings.push(warning);
            }
        });
    }
}
