//! The result of an execution, made from its transcript.

use belljar_proto::exec::{
    BundleKind, Dropped, ErrorReport, Event, KernelState, MimeBundle, Status,
};
use serde::Serialize;

use super::outcome::ended_by_us;
use super::transcript::Transcript;
use crate::artifacts::Artifacts;
use crate::text::LargeText;

/// The result of an execution that has ended.
#[derive(Debug, Clone, Serialize)]
pub struct ExecResult {
    pub exec_id: String,
    pub status: Status,
    pub exit_code: i32,
    /// The cause, if it is known and the status alone is not enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub stdout: LargeText,
    pub stderr: LargeText,
    pub dropped: Dropped,
    /// Displays in order, and last the value of the last expression; `kind` distinguishes them.
    pub results: Vec<MimeBundle>,
    pub error: Option<ErrorReport>,
    pub execution_count: u64,
    pub duration_ms: f64,
    /// Memory charged to the sandbox at the end of the execution, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    pub kernel_state: KernelState,
    /// Whether there is a checkpoint after it, if the session has checkpoints; and the reason if
    /// not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_checkpoint: Option<String>,
    /// For a run: limits that the machine does not enforce.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    #[serde(flatten)]
    pub artifacts: Artifacts,
}

/// Output is bytes. Bytes that are not UTF-8 are replaced and never cause an error.
fn text(bytes: Vec<u8>) -> LargeText {
    match String::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned().into(),
    }
}

fn bundle(kind: BundleKind, body: &[u8]) -> Option<MimeBundle> {
    let parsed = serde_json::from_slice::<MimeBundle>(body).ok()?;
    Some(MimeBundle { kind: Some(kind), ..parsed })
}

impl ExecResult {
    /// The result from a finished transcript.
    #[must_use]
    pub fn of(exec_id: String, transcript: &Transcript) -> ExecResult {
        ExecResult::from(exec_id, transcript, true)
    }

    /// The same without output and displays, for clients that have read the events.
    #[must_use]
    pub fn end_of(exec_id: String, transcript: &Transcript) -> ExecResult {
        ExecResult::from(exec_id, transcript, false)
    }

    fn from(exec_id: String, transcript: &Transcript, whole: bool) -> ExecResult {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut results = Vec::new();
        let mut error = None;
        let mut artifacts = Artifacts::default();
        let mut end = None;
        transcript.for_each(|event, body| match event {
            Event::Stdout | Event::Stderr | Event::Display | Event::Result if !whole => {}
            Event::Stdout => stdout.extend_from_slice(body),
            Event::Stderr => stderr.extend_from_slice(body),
            // Data that does not parse was not written by our kernel, and is left out.
            Event::Display => results.extend(bundle(BundleKind::Display, body)),
            Event::Result => results.extend(bundle(BundleKind::Result, body)),
            Event::Error => error = serde_json::from_slice(body).ok(),
            Event::Input => {}
            Event::Artifacts => artifacts = serde_json::from_slice(body).unwrap_or_default(),
            Event::Done(outcome) => end = Some(outcome.clone()),
        });
        let end = end.unwrap_or_else(|| ended_by_us(Status::Crashed, "its end is not known"));
        #[expect(clippy::cast_precision_loss, reason = "microseconds of an execution")]
        let duration_ms = end.duration_us as f64 / 1000.0;
        ExecResult {
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
            memory_bytes: end.memory_bytes,
            kernel_state: end.kernel_state,
            checkpoint: end.checkpoint,
            no_checkpoint: end.no_checkpoint,
            warnings: Vec::new(),
            artifacts,
        }
    }
}
