//! The result of an execution, put together from its events.

use belljar_proto::exec::{Dropped, ErrorReport, Event, KernelState, MimeBundle, Outcome, Status};
use belljar_runtime::link::{ExecEvent, Following};
use serde::Serialize;

use crate::artifacts::Artifacts;

/// Displays and results of one execution, together; a guest of ours sends less.
const MAX_RESULT_BYTES: usize = 64 * 1024 * 1024;

/// Everything one wants to know of an execution that has ended.
#[derive(Debug, Clone, Serialize)]
pub struct ExecResult {
    pub exec_id: String,
    pub status: Status,
    pub exit_code: i32,
    /// What is known of the cause, where the status alone does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub stdout: String,
    pub stderr: String,
    pub dropped: Dropped,
    /// Displays in the order they were shown, and last the value of the last expression.
    pub results: Vec<MimeBundle>,
    pub error: Option<ErrorReport>,
    pub execution_count: u64,
    pub duration_ms: f64,
    pub kernel_state: KernelState,
    #[serde(flatten)]
    pub artifacts: Artifacts,
}

/// Collects the events of an execution to its end, showing each to `watch` on the way. True when
/// the sandbox was lost before the end.
pub async fn collect(
    exec_id: String,
    following: &mut Following,
    output_limit: u64,
    mut watch: impl FnMut(&ExecEvent),
) -> (ExecResult, bool) {
    // The guest keeps the same limits, and is not believed to.
    let limit = usize::try_from(output_limit).unwrap_or(usize::MAX);
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    let mut results = Vec::new();
    let mut result_bytes = 0;
    let mut error = None;
    let mut outcome = None;
    while let Some(event) = following.next().await {
        watch(&event);
        match event.event {
            Event::Stdout => extend(&mut stdout, &event.body, limit),
            Event::Stderr => extend(&mut stderr, &event.body, limit),
            // What does not parse was not written by our kernel; there is nothing to show.
            Event::Display | Event::Result => {
                result_bytes += event.body.len();
                if result_bytes <= MAX_RESULT_BYTES {
                    results.extend(serde_json::from_slice::<MimeBundle>(&event.body));
                }
            }
            Event::Error => error = serde_json::from_slice(&event.body).ok(),
            // Nothing that lasts; who follows the events may answer it.
            Event::Input => {}
            Event::Done(end) => {
                outcome = Some(end);
                break;
            }
        }
    }
    let was_lost = outcome.is_none();
    let end = outcome
        .unwrap_or_else(|| lost(Status::Crashed, 137, "the sandbox ended before the code did"));
    let result = ExecResult {
        stdout: text(stdout),
        stderr: text(stderr),
        results,
        error,
        ..ExecResult::new(exec_id, end)
    };
    (result, was_lost)
}

fn extend(kept: &mut Vec<u8>, bytes: &[u8], limit: usize) {
    let room = limit.saturating_sub(kept.len()).min(bytes.len());
    kept.extend_from_slice(&bytes[..room]);
}

/// Output is bytes; what is not UTF-8 is replaced, never fatal.
fn text(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

/// The end of an execution that nobody told us about.
fn lost(status: Status, exit_code: i32, reason: &str) -> Outcome {
    Outcome {
        status,
        exit_code,
        reason: Some(reason.into()),
        kernel_state: KernelState::Lost,
        execution_count: 0,
        duration_us: 0,
        dropped: Dropped::default(),
    }
}

impl ExecResult {
    fn new(exec_id: String, end: Outcome) -> ExecResult {
        #[expect(clippy::cast_precision_loss, reason = "microseconds of an execution")]
        let duration_ms = end.duration_us as f64 / 1000.0;
        ExecResult {
            exec_id,
            status: end.status,
            exit_code: end.exit_code,
            reason: end.reason,
            stdout: String::new(),
            stderr: String::new(),
            dropped: end.dropped,
            results: Vec::new(),
            error: None,
            execution_count: end.execution_count,
            duration_ms,
            kernel_state: end.kernel_state,
            artifacts: Artifacts::default(),
        }
    }

    /// The time is long over and the guest says nothing.
    pub(crate) fn unanswered(exec_id: String) -> ExecResult {
        let reason = "the sandbox does not answer any more and was ended";
        ExecResult::new(exec_id, lost(Status::Timeout, 124, reason))
    }
}
