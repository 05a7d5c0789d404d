//! Copies the events of an execution from the guest into a transcript.

use belljar_proto::exec::{Event, Outcome, Status};
use belljar_runtime::link::{ExecEvent, Following};

use super::outcome::{SANDBOX_ENDED, ended_by_us};
use super::result::ExecResult;
use super::transcript::Transcript;

/// Follows an execution to its end and returns its outcome. The outcome is not in the transcript
/// yet, because the caller may have to add something before it. `None` if the sandbox was lost.
pub(super) async fn follow(
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
        // Only our guest writes to this connection. An event that our guest never sends means that
        // code took over the guest, or that the guest is broken.
        transcript.push(event).ok()?;
    }
}

/// Follows an execution from the follower's position to its end, and passes each event to `watch`.
/// Also returns whether the sandbox was lost before the end.
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
