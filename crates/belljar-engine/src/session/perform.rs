//! One execution from its acceptance to its end.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::{DEFAULT_GRACE_MS, KernelState, Outcome, Status, What};
use belljar_proto::guest::{Call, RefusalCode};
use belljar_runtime::link::Following;
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
use crate::exec::result::{ExecResult, UNANSWERED, follow};
use crate::exec::{Exec, ExecRequest, GUEST_SLACK, Stage, ended_by_us, start_in};
use crate::store::{ExecRow, FinishedExec};

/// What a shell says of a command that is there and cannot be executed, and of one that is not.
const EXIT_NOT_STARTED: i32 = 126;
const EXIT_NOT_FOUND: i32 = 127;

/// How often, and how long apart, an end is tried to be written down again that could not be.
const WRITE_AGAIN: u32 = 600;
const WRITE_PAUSE: Duration = Duration::from_millis(500);

/// How an execution is begun.
#[derive(Debug)]
pub(super) enum Begin {
    /// It is new: to be written down, and whoever asked is told.
    New(oneshot::Sender<Result<Arc<Exec>, EngineError>>),
    /// An earlier server wrote it down and did not get to begin it.
    Again,
    /// It runs, or ran, in the guest.
    Join,
}

/// How far an execution got.
#[derive(Debug)]
pub(super) enum Performed {
    /// It was never accepted; whoever asked knows why.
    Never,
    /// It has an end.
    Ended,
    /// The sandbox was lost, or does not answer.
    SandboxLost,
    /// Somebody took it back before it began.
    Cancelled,
}

/// Writes an execution down, waits for its turn and follows it to its end.
pub(super) async fn perform(
    shared: Arc<EngineState>,
    session: Arc<Session>,
    sandbox: Arc<Sandbox>,
    exec: Arc<Exec>,
    begin: Begin,
    turn: oneshot::Receiver<()>,
) -> (Arc<Exec>, Performed) {
    let join = matches!(begin, Begin::Join);
    if let Begin::New(answer) = begin {
        let accepted = accept(&shared, &session, &exec).await;
        let failed = accepted.is_err();
        exec.accepted.send_replace(Some(!failed));
        // Whoever asked may have gone: what was accepted is executed all the same.
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
    let following = if join {
        let (entry, offset) = exec.transcript.place();
        sandbox.link().join(&exec.id, entry, offset).await.map_err(EngineError::Exec)
    } else {
        start(&session, &sandbox, &exec).await
    };
    let performed = match following {
        Ok(following) => {
            follow_to_the_end(&shared, &session, &sandbox, &exec, following, join).await
        }
        Err(
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

/// The end of what never began. A command leaves the kernel as it was.
fn not_started(request: &ExecRequest, error: &EngineError) -> Outcome {
    let reason = format!("it could not be started: {}", in_full(error));
    let invalid = matches!(error,
        EngineError::Exec(RuntimeError::Refused(refusal))
        | EngineError::StartKernel(RuntimeError::Refused(refusal))
            if refusal.code == RefusalCode::Invalid);
    match request.lane() {
        None => Outcome {
            exit_code: EXIT_NOT_STARTED,
            kernel_state: KernelState::Kept,
            ..ended_by_us(Status::Error, &reason)
        },
        // There was no kernel to lose.
        Some(_) if matches!(error, EngineError::NoInterpreter { .. }) => Outcome {
            exit_code: EXIT_NOT_FOUND,
            kernel_state: KernelState::Kept,
            ..ended_by_us(Status::Error, &reason)
        },
        Some(_) if invalid => ended_by_us(Status::Error, &reason),
        Some(_) => ended_by_us(Status::Crashed, &reason),
    }
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

async fn start(
    session: &Session,
    sandbox: &Sandbox,
    exec: &Exec,
) -> Result<Following, EngineError> {
    let own = session.spec.environment().into_iter();
    let env: Vec<(String, String)> = match &exec.request.what {
        // The kernel has the rest of the environment already.
        What::Cell { .. } => own.collect(),
        What::Command { .. } => sandbox.environment().into_iter().chain(own).collect(),
    };
    start_in(sandbox, exec.request.spec(&exec.id, &env), &exec.code).await
}

async fn follow_to_the_end(
    shared: &EngineState,
    session: &Session,
    sandbox: &Sandbox,
    exec: &Exec,
    mut following: Following,
    joined: bool,
) -> Performed {
    // The guest keeps the time. Should it not be able to any more, we do.
    let limit = Duration::from_millis(exec.request.timeout_ms)
        .saturating_add(Duration::from_millis(DEFAULT_GRACE_MS) + GUEST_SLACK);
    let followed = follow(&exec.transcript, &mut following, |_| {});
    match tokio::time::timeout(limit, followed).await {
        Ok(Some(mut outcome)) => {
            // Before anything is tidied up: what it came to is what the code left behind.
            outcome.memory_bytes = sandbox.memory_used();
            (outcome.checkpoint, outcome.no_checkpoint) = (None, None);
            let artifacts = take_artifacts(shared, session, sandbox, exec, &outcome, joined).await;
            exec.transcript.tell_artifacts(&artifacts);
            if let Some(taken) = checkpoint(shared, session, sandbox, exec, joined).await {
                outcome.checkpoint = Some(taken.is_ok());
                outcome.no_checkpoint = taken.err();
            }
            if !exec.request.background {
                session.view.send_modify(|view| view.at = Some(exec.id.clone()));
            }
            exec.finish(outcome);
            Performed::Ended
        }
        Ok(None) => Performed::SandboxLost,
        Err(_) => {
            exec.end(Status::Timeout, UNANSWERED);
            Performed::SandboxLost
        }
    }
}

/// Brings what the code left behind to the artifact_store, before its end is told: whoever hears of that
/// finds everything there.
async fn take_artifacts(
    shared: &EngineState,
    session: &Session,
    sandbox: &Sandbox,
    exec: &Exec,
    outcome: &Outcome,
    joined: bool,
) -> Artifacts {
    let fingerprint = outcome.artifacts;
    if fingerprint.is_none() && sandbox.tells_artifacts() {
        return Artifacts::default();
    }
    // Others of this session may have ended at the same time.
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
    if joined {
        return shared.artifact_store.ingest_again(sandbox, origin, fingerprint, &mut memory).await;
    }
    shared.artifact_store.ingest(sandbox, origin, fingerprint, &mut memory).await
}

/// Brings an execution that has ended into safety: the log, the database, the books. Only then may
/// the guest forget it.
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
        // The disk is full, perhaps. Until there is room, it is known to us and to the guest.
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
                "failed to write down how an execution ended: {}",
                in_full(&error)
            );
            session.warn(format!("the end of {} could not be written down", exec.id));
        }
    }
    lock(&session.live).remove(&exec.id);
}

/// Lets the guest forget what is safe with us: a few at a time, unless they are large.
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
    // If it cannot be told it forgets by itself, in time.
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
    /// The same, unless it is there already.
    pub(crate) fn warn_once(&self, warning: &str) {
        if !self.view.borrow().warnings.iter().any(|known| known == warning) {
            self.warn(warning.to_owned());
        }
    }

    /// Notes something that went wrong, for whoever looks at the session.
    pub(super) fn warn(&self, warning: String) {
        const MOST: usize = 20;
        self.view.send_modify(|view| {
            if view.warnings.len() < MOST {
                view.warnings.push(warning);
            }
        });
    }
}
