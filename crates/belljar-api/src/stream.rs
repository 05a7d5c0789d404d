//! Server-sent events: the events of an execution while it runs.
//!
//! The id of an event is the position after it, so a client that was disconnected requests the rest
//! with that number. Events are pulled from the transcript at the speed of the client: a client
//! that does not read delays only itself.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use belljar_engine::artifacts::Artifacts;
use belljar_engine::exec::result::ExecResult;
use belljar_engine::exec::transcript::{Piece, Reader, Transcript};
use belljar_proto::exec::Event;
use futures_util::stream::{self, Stream};
use serde_json::{Value, json};

use crate::tenants::{SharePermit, keeping};

/// Proxies close connections that are silent for longer than a minute.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The events of an execution from `offset` on; `permit` is held until all are sent.
pub(crate) fn events(
    linked: Linked,
    exec_id: String,
    transcript: Arc<Transcript>,
    offset: u64,
    permit: SharePermit,
) -> Response {
    let reader = transcript.read_from(offset);
    let first = (offset == 0)
        .then(|| SseEvent::default().event("exec").data(json!({"exec_id": exec_id}).to_string()));
    keeping(respond(EventStream { linked, exec_id, transcript, reader, first }), permit)
}

/// Adds links to artifacts.
pub(crate) type Linked = Arc<dyn Fn(&mut Artifacts) + Send + Sync>;

struct EventStream {
    linked: Linked,
    exec_id: String,
    transcript: Arc<Transcript>,
    reader: Reader,
    /// Contains the id of the execution, for clients that did not choose it.
    first: Option<SseEvent>,
}

fn respond(events: EventStream) -> Response {
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Sse::new(into_stream(events)).keep_alive(keep_alive).into_response()
}

fn into_stream(events: EventStream) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    stream::unfold(events, |mut events| async move {
        let event = match events.first.take() {
            Some(first) => first,
            None => {
                // If many pieces are ready, reading them does not wait, so other tasks run in
                // between.
                tokio::task::yield_now().await;
                let piece = events.reader.next().await?;
                let result = || ExecResult::end_of(events.exec_id.clone(), &events.transcript);
                render(&events.linked, &piece, result)
            }
        };
        Some((Ok(event), events))
    })
}

pub(crate) fn render(
    linked: &Linked,
    piece: &Piece,
    result: impl FnOnce() -> ExecResult,
) -> SseEvent {
    let (name, data) = named(linked, piece, result);
    SseEvent::default().event(name).id(piece.next.to_string()).data(data.to_string())
}

/// The name and the data of an event, for any transport.
pub(crate) fn named(
    linked: &Linked,
    piece: &Piece,
    result: impl FnOnce() -> ExecResult,
) -> (&'static str, Value) {
    let text = || json!({ "text": String::from_utf8_lossy(&piece.body) });
    // Data that does not parse was not written by our kernel.
    let parsed = || serde_json::from_slice::<Value>(&piece.body).unwrap_or(Value::Null);
    match &piece.event {
        Event::Stdout => ("stdout", text()),
        Event::Stderr => ("stderr", text()),
        Event::Display => ("display", parsed()),
        Event::Result => ("result", parsed()),
        Event::Error => ("error", parsed()),
        Event::Input => ("input", parsed()),
        Event::Artifacts => ("artifacts", artifacts(linked, &piece.body)),
        Event::Done(_) => ("done", done(result())),
    }
}

fn artifacts(linked: &Linked, body: &[u8]) -> Value {
    let mut artifacts: Artifacts = serde_json::from_slice(body).unwrap_or_default();
    linked(&mut artifacts);
    serde_json::to_value(artifacts).unwrap_or(Value::Null)
}

/// The result without the parts that were in earlier events.
pub(crate) fn done(result: ExecResult) -> Value {
    let mut value = serde_json::to_value(result).unwrap_or(Value::Null);
    if let Value::Object(fields) = &mut value {
        for sent in
            ["stdout", "stderr", "results", "artifacts", "artifact_map", "artifacts_refused"]
        {
            fields.remove(sent);
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    /// The clock is paused: it jumps to the next timer.
    #[tokio::test(start_paused = true)]
    async fn a_silent_execution_keeps_its_connection_alive() {
        let transcript = Arc::new(Transcript::new(100));
        let mut body =
            events(Arc::new(|_| {}), "e".into(), transcript, 0, SharePermit::default()).into_body();
        let mut next = async || {
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            String::from_utf8(frame.to_vec()).unwrap()
        };
        assert_eq!(next().await, "event: exec\ndata: {\"exec_id\":\"e\"}\n\n");
        let before = tokio::time::Instant::now();
        assert_eq!(next().await, ":\n\n");
        assert_eq!(next().await, ":\n\n");
        assert_eq!(before.elapsed().as_secs(), 2 * KEEP_ALIVE.as_secs());
    }
}
