//! The result of an execution, put together from what it said.

use belljar_proto::exec::{
    BundleKind, Dropped, ErrorReport, Event, KernelState, MimeBundle, Outcome, Status,
};
use belljar_runtime::link::{ExecEvent, Following};
use serde::Serialize;

use crate::artifacts::Artifacts;
use crate::exec::transcript::Transcript;
use crate::exec::{SANDBOX_ENDED, ended_by_us};
use crate::text::Text;

/// Everything one wants to know of an execution that has ended.
#[derive(Debug, Clone, Serialize)]
pub struct ExecResult {
    pub exec_id: String,
    pub status: Status,
    pub exit_code: i32,
    /// What is known of the cause, where the status alone does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub stdout: Text,
    pub stderr: Text,
    pub dropped: Dropped,
    /// Displays in the order they were shown, and last the value of the last expression; `kind`
    /// tells them apart.
    pub results: Vec<MimeBundle>,
    pub error: Option<ErrorReport>,
    pub execution_count: u64,
    pub duration_ms: f64,
    /// Memory charged to the sandbox when it ended, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    pub kernel_state: KernelState,
    /// Whether the session can go back to the end of it, where that was wanted; and if not, why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_checkpoint: Option<String>,
    /// Of a run, which has no session to look at: limits that the machine does not enforce.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    #[serde(flatten)]
    pub artifacts: Artifacts,
}

/// Follows an execution to its end, which the transcript is yet to be told of: there may be
/// something to add before. `None` when the sandbox was lost before that.
pub async fn follow(
    transcript: &Transcript,
    following: &mut Following,
    mut watch: impl FnMut(&ExecEvent),
) -> Option<Outcome> {
    loop {
        let event = following.next().await?;
        watch(&event);
        if let Event::Done(outcome) = event.event {
            return Some(outcome);
        }
        // Nobody but our guest speaks on this connection: if this is not our guest's, it was taken
        // over, or is broken.
        transcript.push(event).ok()?;
    }
}

/// Collects an execution from wherever the follower stands to its end, showing each event to
/// `watch` on the way. True when the sandbox was lost before the end.
pub async fn collect(
    exec_id: String,
    following: &mut Following,
    output_limit: u64,
    mut watch: impl FnMut(&ExecEvent),
) -> (ExecResult, bool) {
    let transcript = Transcript::new(output_limit);
    let mut first = None;
    let mut ended = false;
    while !ended && let Some(mut event) = following.next().await {
        watch(&event);
        let (seq, offset) = *first.get_or_insert((event.seq, event.offset));
        if event.seq == seq {
            event.offset = event.offset.saturating_sub(offset);
        }
        event.seq = event.seq.saturating_sub(seq);
        if transcript.push(event).is_err() {
            break;
        }
        ended = transcript.outcome().is_some();
    }
    if !ended {
        transcript.finish(ended_by_us(Status::Crashed, SANDBOX_ENDED));
    }
    (ExecResult::of(exec_id, &transcript), !ended)
}

/// Output is bytes; what is not UTF-8 is replaced, never fatal.
fn text(bytes: Vec<u8>) -> Text {
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
    /// The result that a finished transcript tells.
    #[must_use]
    pub fn of(exec_id: String, transcript: &Transcript) -> ExecResult {
        ExecResult::from(exec_id, transcript, true)
    }

    /// The same without what was printed and shown, for whoever has had that already.
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
            // What does not parse was not written by our kernel; there is nothing to show.
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

pub(crate) const UNANSWERED: &str = "the sandbox does not answer any more and was ended";
