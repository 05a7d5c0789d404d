//! `GET /v1/sessions/{id}/exec`: an execution over a WebSocket.
//!
//! ```text
//!   client ──the body of POST .../exec──▶        {"event": "exec", "data": {"exec_id"}}──▶ client
//!          ──binary: standard input─────▶        {"event": "stdout", "id": 4, "data": {"text"}}──▶
//!          ──{"type": "stdin", ...}─────▶        ... {"event": "done", "id", "data"}──▶
//!          ──{"type": "interrupt"}──────▶        {"event": "refused", "data": {"error"}}──▶
//! ```
//!
//! The events are the same as in the stream of server-sent events ([`crate::stream`]): the same names, ids and data. A
//! lost connection does not end the execution: a client that connects again with `exec_id`, and the last `id` as
//! `offset`, gets the rest.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{WebSocketUpgrade, close_code};
use axum::response::Response;
use belljar_engine::exec::result::ExecResult;
use belljar_engine::exec::transcript::Reader;
use belljar_engine::session::rules::Refusal;
use belljar_engine::{EngineError, Principal};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use utoipa::IntoParams;

use crate::App;
use crate::artifacts::Links;
use crate::error::{ApiError, ErrorBody};
use crate::execs::{ExecBody, Followed};
use crate::input::{Path, Query, in_plain_words, parse};
use crate::socket::{Incoming, Next, Outgoing, Received, SILENCE, Socket, not_a_websocket, text};
use crate::stream::{self, Linked};
use crate::tenants::Share;
use crate::tickets::SUBPROTOCOL;

/// The largest message. Its memory is reserved while the connection is open, so longer code is sent with POST, or as a
/// file.
const MAX_MESSAGE: usize = 256 * 1024;

/// How many pieces of input may wait until the execution begins or reads.
const INPUTS: usize = 16;

/// A subprotocol that a client may offer; the one of terminals is accepted too.
const EXEC_SUBPROTOCOL: &str = "belljar.exec";

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct JoinExec {
    /// Follow this execution, which was started before, instead of starting one.
    pub exec_id: Option<String>,
    /// With `exec_id`: the id of the last event that was seen.
    pub offset: Option<u64>,
}

/// Execute code or a command over a WebSocket, with input while it runs.
///
/// The first message is text: the body of `POST` to this path. Events come as text messages
/// `{"event", "id", "data"}`, with the names, ids and data of the events that `POST` streams; after
/// `done` the server closes the connection. With `"stdin": true` in the first message, binary messages
/// are standard input, and so is `{"type": "stdin", "data": "text", "close": false}`;
/// `{"type": "interrupt"}` interrupts. `failed` instead of events has the error if nothing was
/// executed, `refused` the error in a message. A lost connection ends nothing.
#[utoipa::path(get, path = "/v1/sessions/{id}/exec", tag = "execs", operation_id = "exec_socket",
    params(("id" = String, Path), JoinExec),
    responses((status = 101, description = "A WebSocket"), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 426, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub(crate) async fn open(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    Query(query): Query<JoinExec>,
    Extension(share): Extension<Share>,
    links: Links,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|rejection| {
        not_a_websocket(&format!("GET .../exec needs a WebSocket: {}", rejection.body_text()))
            .hint("POST to the same path executes without one")
    })?;
    let permit = share.enter()?.and(share.reserve(MAX_MESSAGE as u64).await?);
    let joined = match query.exec_id {
        Some(exec_id) => {
            let followed = Followed::find(&app, &who, &share, &id, exec_id).await?;
            Some((followed, query.offset.unwrap_or(0)))
        }
        None if query.offset.is_some() => {
            return Err(ApiError::invalid("offset: only with `exec_id`"));
        }
        None => {
            refuse_ended(&app, &who, &id).await?;
            None
        }
    };
    Ok(upgrade
        .protocols([EXEC_SUBPROTOCOL, SUBPROTOCOL])
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .on_upgrade(move |socket| async move {
            let _permit = permit;
            let socket = Socket::new(Arc::clone(&app), socket);
            let caller = Caller { app, links, who, session: id, share };
            serve(caller, joined, socket).await;
        }))
}

/// Refuses an ended session before the upgrade, as an HTTP error.
async fn refuse_ended(app: &App, who: &Principal, id: &str) -> Result<(), ApiError> {
    let info = app.engine.describe(who, id).await?;
    if info.view.ended_ms.is_none() {
        return Ok(());
    }
    let because = info.view.ended_because;
    Err(EngineError::NotNow { session: info.id, refusal: Refusal::Ended, because }.into())
}

/// The client, and the session that it executes in.
#[derive(Clone)]
struct Caller {
    app: Arc<App>,
    links: Links,
    who: Principal,
    session: String,
    share: Share,
}

impl Caller {
    /// Starts the execution that the first message requests. As with POST, the same `exec_id` is executed once.
    async fn start(&self, first: Received) -> Result<Followed, ApiError> {
        let Received::Text(body) = first else {
            let message = "the first message must be text: the body of POST .../exec";
            return Err(ApiError::invalid(message));
        };
        let body: ExecBody = parse(body.as_bytes())?;
        let Caller { app, who, session, share, .. } = self;
        Followed::start(app, who, share, session, body.into_params()?).await
    }
}

/// Serves one client until it disconnects, the execution ends, or the server stops.
async fn serve(caller: Caller, joined: Option<(Followed, u64)>, mut socket: Socket) {
    let (followed, from) = match joined {
        Some(joined) => joined,
        None => {
            let Some(first) = socket.first().await else { return };
            match caller.start(first).await {
                Ok(followed) => (followed, 0),
                Err(error) => {
                    let _ = socket.send(text(&failed("failed", &error))).await;
                    return socket.close(close_code::POLICY, "nothing was executed").await;
                }
            }
        }
    };
    let first = json!({"event": "exec", "data": {"exec_id": followed.exec_id}});
    if from == 0 && !socket.send(text(&first)).await {
        return;
    }
    let (inputs, to_feed) = mpsc::channel(INPUTS);
    let exec_id = followed.exec_id.clone();
    let messages = Messages { caller: caller.clone(), exec_id: exec_id.clone(), inputs };
    // Input waits until the execution begins. An interrupt must not wait for that, so input has its own task.
    let mut feeding = tokio::spawn(feed(caller.clone(), exec_id, to_feed, socket.remarks()));
    socket.serve(ExecEvents::new(caller.links, followed, from), messages).await;
    // Input that the client sent before it disconnected still arrives.
    let _ = timeout(SILENCE, &mut feeding).await;
    feeding.abort();
}

/// The events of the execution.
struct ExecEvents {
    linked: Linked,
    reader: Reader,
    followed: Followed,
}

impl ExecEvents {
    fn new(links: Links, followed: Followed, from: u64) -> ExecEvents {
        ExecEvents { linked: links.linker(), reader: followed.transcript.read_from(from), followed }
    }
}

impl Outgoing for ExecEvents {
    async fn next(&mut self) -> Next {
        let Some(piece) = self.reader.next().await else {
            let reason = "the execution has ended";
            return Next::Close { last: None, code: close_code::NORMAL, reason };
        };
        let Followed { exec_id, transcript, .. } = &self.followed;
        let result = || ExecResult::end_of(exec_id.clone(), transcript);
        let (event, data) = stream::named(&self.linked, &piece, result);
        Next::Message(text(&json!({"event": event, "id": piece.next, "data": data})))
    }
}

/// A piece of standard input, and whether it is the last.
type Input = (Vec<u8>, bool);

/// Messages of the client while the execution runs.
struct Messages {
    caller: Caller,
    exec_id: String,
    inputs: mpsc::Sender<Input>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ExecCommand {
    Stdin {
        #[serde(default)]
        data: String,
        #[serde(default)]
        close: bool,
    },
    Interrupt,
}

impl Incoming for Messages {
    async fn receive(&mut self, message: Received) -> Result<(), ApiError> {
        let input = match message {
            Received::Bytes(bytes) => (bytes, false),
            Received::Text(text) => match parse_command(&text)? {
                ExecCommand::Stdin { data, close } => (data.into_bytes(), close),
                ExecCommand::Interrupt => {
                    let Caller { app, who, session, .. } = &self.caller;
                    app.engine.interrupt(who, session, Some(self.exec_id.clone())).await?;
                    return Ok(());
                }
            },
        };
        // Fails only if the task that feeds the input has ended, and that task has reported its error.
        let _ = self.inputs.send(input).await;
        Ok(())
    }

    fn error(&self, error: &ApiError) -> Value {
        failed("refused", error)
    }
}

fn parse_command(text: &str) -> Result<ExecCommand, ApiError> {
    serde_json::from_str(text).map_err(|error| {
        ApiError::invalid(format!(
            "expected {{\"type\": \"stdin\", \"data\", \"close\"}} or {{\"type\": \"interrupt\"}}: \
             {}",
            in_plain_words(&error)
        ))
    })
}

/// Sends the input to the execution, in order.
async fn feed(
    caller: Caller,
    exec_id: String,
    mut inputs: mpsc::Receiver<Input>,
    remarks: mpsc::Sender<Value>,
) {
    while let Some((bytes, close)) = inputs.recv().await {
        let Caller { app, who, session, .. } = &caller;
        let fed = app.engine.stdin(who, session, &exec_id, &bytes, close).await;
        if let Err(error) = fed
            && remarks.send(failed("refused", &error.into())).await.is_err()
        {
            return;
        }
    }
}

fn failed(event: &str, error: &ApiError) -> Value {
    json!({"event": event, "data": error.event_data()})
}
