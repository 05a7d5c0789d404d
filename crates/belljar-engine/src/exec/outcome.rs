//! Outcomes that the server sets when the guest could not report one.

use std::time::Duration;

use belljar_proto::exec::{Dropped, KernelState, Outcome, Status};
use belljar_proto::guest::RefusalCode;
use belljar_runtime::{RuntimeError, Sandbox};

use super::request::ExecRequest;
use crate::error::{EngineError, in_full};

/// Exit codes like those of a shell: the command cannot be executed, or does not exist.
const EXIT_NOT_STARTED: i32 = 126;
const EXIT_NOT_FOUND: i32 = 127;

/// How long to wait for the runtime to report the end of a sandbox and its reason, after its
/// connection was closed.
const END_NOTICE: Duration = Duration::from_secs(3);

pub(crate) const SANDBOX_ENDED: &str = "the sandbox ended before the code did";
pub(crate) const UNANSWERED: &str = "the sandbox does not answer any more and was ended";

pub(crate) fn ended_by_us(status: Status, reason: &str) -> Outcome {
    let exit_code = match status {
        Status::Timeout => 124,
        Status::Interrupted => 130,
        _ => 137,
    };
    Outcome {
        status,
        exit_code,
        reason: Some(reason.to_owned()),
        kernel_state: KernelState::Lost,
        execution_count: 0,
        duration_us: 0,
        dropped: Dropped::default(),
        artifacts: None,
        memory_bytes: None,
        checkpoint: None,
        no_checkpoint: None,
    }
}

/// The outcome of an execution that could not be started. A command does not change the kernel.
pub(crate) fn not_started(request: &ExecRequest, error: &EngineError) -> Outcome {
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
        // There was no kernel that could be lost.
        Some(_) if matches!(error, EngineError::NoInterpreter { .. }) => Outcome {
            exit_code: EXIT_NOT_FOUND,
            kernel_state: KernelState::Kept,
            ..ended_by_us(Status::Error, &reason)
        },
        Some(_) if invalid => ended_by_us(Status::Error, &reason),
        Some(_) => ended_by_us(Status::Crashed, &reason),
    }
}

/// Whether a lost sandbox ran out of memory.
pub(crate) async fn ran_out_of_memory(sandbox: &Sandbox) -> bool {
    // If the connection is open, the sandbox was given up for another reason, and the runtime
    // reports no end.
    if !sandbox.link().is_open() {
        let _ = tokio::time::timeout(END_NOTICE, sandbox.ended()).await;
    }
    sandbox.oom_kills() > 0
}

/// Status and reason of the executions in a sandbox that ended by itself.
pub(crate) async fn end_of_lost(sandbox: &Sandbox) -> (Status, &'static str) {
    if ran_out_of_memory(sandbox).await {
        (Status::Oom, "the sandbox ran out of memory")
    } else {
        (Status::Crashed, SANDBOX_ENDED)
    }
}
