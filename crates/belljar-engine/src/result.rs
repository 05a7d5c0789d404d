//! The result of an execution, put together from its events.

use belljar_proto::exec::{Dropped, ErrorReport, Event, KernelState, MimeBundle, Outcome, Status};
use belljar_runtime::link::{ExecEvent, Following};
use serde::Serialize;

use crate::artifacts::Artifacts;

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

/// Collects the events of an execution to its end, showing each to `watch` on the way.
///
/// `None` in place of an outcome means that the sandbox was lost before the end.
pub async fn collect(
    exec_id: String,
    following: &mut Following,
    mut watch: impl FnMut(&ExecEvent),
) -> (ExecResult, bool) {
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    let mut results = Vec::new();
    let mut error = None;
    let mut outcome = None;
    while let Some(event) = following.next().await {
        watch(&event);
        match event.event {
            Event::Stdout => stdout.extend(event.body),
            Event::Stderr => stderr.extend(event.body),
            // What does not parse was not written by our kernel; there is nothing to show.
            Event::Display | Event::Result => results.extend(serde_json::from_slice(&event.body)),
            Event::Error => error = serde_json::from_slice(&event.body).ok(),
            Event::Done(end) => {
                outcome = Some(end);
                break;
            }
        }
    }
    let lost = outcome.is_none();
    let end = outcome.unwrap_or_else(sandbox_lost);
    #[expect(clippy::cast_precision_loss, reason = "microseconds of an execution")]
    let duration_ms = end.duration_us as f64 / 1000.0;
    let result = ExecResult {
        exec_id,
        status: end.status,
        exit_code: end.exit_code,
        reason: end.reason,
        stdout: text(stdout),
        stderr: text(stderr),
        dropped: end.dropped,
        results,
        error,
        execution_count: end.execution_count,
        duration_ms,
        kernel_state: end.kernel_state,
        artifacts: Artifacts::default(),
    };
    (result, lost)
}

/// Output is bytes; what is not UTF-8 is replaced, never fatal.
fn text(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

fn sandbox_lost() -> Outcome {
    Outcome {
        status: Status::Crashed,
        exit_code: 137,
        reason: Some("the sandbox ended before the code did".into()),
        kernel_state: KernelState::Lost,
        execution_count: 0,
        duration_us: 0,
        dropped: Dropped::default(),
    }
}
