//! `GET /v1/sessions/{id}/exec`: an execution over a WebSocket.
//!
//! ```text
//!   client ──the body of POST .../exec──▶        {"event": "exec", "data": {"exec_id"}}──▶ client
//!          ──binary: standard input─────▶        {"event": "stdout", "id": 4, "data": {"text"}}──▶
//!          ──{"type": "stdin", ...}─────▶        ... {"event": "done", "id", "data"}──▶
//!          ──{"type": "interrupt"}──────▶        {"event": "refused", "data": {"error"}}──▶
//! ```
//!
//! The events are those of the stream of server-sent events ([`crate::stream`]): the same names, ids and
//! data. A lost connection ends nothing: a client that comes back with `exec_id` and the last `id` as
//! `offset` gets the rest. Keys and tickets are those of terminals ([`crate::terminals`]).

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use belljar_engine::exec::result::ExecResult;
use belljar_engine::exec::transcript::Transcript;
use belljar_engine::session::rules::Refusal;
use belljar_engine::{EngineError, Principal};
use futures_util::StreamExt;
use futures_util::stream::{SplitSink, SplitStream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use utoipa::IntoParams;

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::execs::{ExecBody, transcript};
use crate::input::{Path, Query, parse};
use crate::stream;
use crate::tenants::{Held, Share};
use crate::terminals::{PING, REMARKS, SILENCE, SUBPROTOCOL, bye, not_a_websocket, send, text};

/// The largest message, counted for as long as the connection lives: code that is longer is sent with
/// POST, or as a file.
const MAX_MESSAGE: usize = 256 * 1024;

/// Pieces of input that wait for the execution to begin or to read.
const INPUTS: usize = 16;

/// What a client may offer as a subprotocol; that of terminals does as well.
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
/// The first message is text: the body of `POST` to this path. What happens comes as text messages
/// `{"event", "id", "data"}`, with the names, ids and data of the events that `POST` streams; after
/// `done` the server closes the connection. With `"stdin": true` in the first message, binary messages
/// are standard input, and so is `{"type": "stdin", "data": "text", "close": false}`;
/// `{"type": "interrupt"}` interrupts. `failed` instead of events says why nothing was executed, and
/// `refused` what was wrong with a message. A lost connection ends nothing.
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
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|rejection| {
        not_a_websocket(&format!("GET .../exec needs a WebSocket: {}", rejection.body_text()))
            .hint("POST to the same path executes without one")
    })?;
    let held = share.enter()?.and(share.reserve(MAX_MESSAGE as u64).await?);
    let joined = match query.exec_id {
        Some(exec_id) => {
            let (transcript, stored) = transcript(&app, &who, &share, &id, &exec_id).await?;
            let from = query.offset.unwrap_or(0);
            Some(Followed { exec_id, transcript, from, _held: stored })
        }
        None if query.offset.is_some() => {
            return Err(ApiError::invalid("offset: for an execution that there is (`exec_id`)"));
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
            let _held = held;
            let caller = Caller { app, who, session: id, share };
            serve(caller, joined, socket).await;
        }))
}

/// An ended session is an answer of HTTP; a client that has upgraded would have to read it there.
async fn refuse_ended(app: &App, who: &Principal, id: &str) -> Result<(), ApiError> {
    let info = app.engine.describe(who, id).await?;
    if info.view.ended_ms.is_none() {
        return Ok(());
    }
    let because = info.view.ended_because;
    Err(EngineError::NotNow { session: info.id, refusal: Refusal::Ended, because }.into())
}

/// Who asks, and in which session.
#[derive(Clone)]
struct Caller {
    app: Arc<App>,
    who: Principal,
    session: String,
    share: Share,
}

/// An execution, and the position from which it is told.
struct Followed {
    exec_id: String,
    transcript: Arc<Transcript>,
    from: u64,
    /// Memory of what was read from the database.
    _held: Held,
}

impl Caller {
    /// Starts what the first message asks for. As with POST, the same `exec_id` is executed once.
    async fn begin(&self, message: &str) -> Result<Followed, ApiError> {
        let body: ExecBody = parse(message.as_bytes())?;
        let ask = body.into_ask()?;
        let (request, code, asked_id) =
            (ask.request.clone(), Arc::clone(&ask.code), ask.id.clone());
        let Caller { app, who, session, share } = self;
        match app.engine.exec(who, session, ask).await {
            Ok(exec) => Ok(Followed {
                exec_id: exec.id.clone(),
                transcript: Arc::clone(&exec.transcript),
                from: 0,
                _held: Held::default(),
            }),
            Err(EngineError::DuplicateExec(exec_id)) if asked_id.is_some() => {
                if !app.engine.is_same_exec(who, session, &exec_id, &request, &code).await? {
                    return Err(EngineError::ExecDiffers(exec_id).into());
                }
                let (transcript, stored) = transcript(app, who, share, session, &exec_id).await?;
                Ok(Followed { exec_id, transcript, from: 0, _held: stored })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Serves one client until it leaves, the execution ends, or the server does.
async fn serve(caller: Caller, joined: Option<Followed>, socket: WebSocket) {
    let (mut sink, mut stream) = socket.split();
    let followed = match joined {
        Some(followed) => followed,
        None => {
            let message = tokio::select! {
                message = first_message(&mut stream) => message,
                () = caller.app.drained() => {
                    return bye(&mut sink, close_code::RESTART, "the server is stopping").await;
                }
            };
            let Some(message) = message else { return };
            let begun = match message {
                Message::Text(message) => caller.begin(&message).await,
                _ => Err(ApiError::invalid("the first message is text: what POST .../exec takes")),
            };
            match begun {
                Ok(followed) => followed,
                Err(error) => {
                    let _ = send(&mut sink, text(&failed("failed", &error))).await;
                    return bye(&mut sink, close_code::POLICY, "nothing was executed").await;
                }
            }
        }
    };
    let (remarks, to_say) = mpsc::channel(REMARKS);
    let (inputs, to_feed) = mpsc::channel(INPUTS);
    let exec_id = followed.exec_id.clone();
    // Input waits for the execution to begin; an interrupt must not wait behind it.
    let mut feeding = tokio::spawn(feed(caller.clone(), exec_id.clone(), to_feed, remarks.clone()));
    let mut showing = tokio::spawn(show(Arc::clone(&caller.app), followed, sink, to_say));
    tokio::select! {
        () = hear(&caller, &exec_id, stream, inputs, remarks) => showing.abort(),
        _ = &mut showing => {}
    }
    // What the client had sent before it left still arrives.
    let _ = timeout(SILENCE, &mut feeding).await;
    feeding.abort();
}

/// What the client says first; `None` if it has left.
async fn first_message(stream: &mut SplitStream<WebSocket>) -> Option<Message> {
    loop {
        match timeout(SILENCE, stream.next()).await {
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
            Ok(Some(Ok(Message::Close(_)) | Err(_)) | None) | Err(_) => return None,
            Ok(Some(Ok(message))) => return Some(message),
        }
    }
}

/// Part of standard input, and whether it is the last.
type Input = (Vec<u8>, bool);

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    Stdin {
        #[serde(default)]
        data: String,
        #[serde(default)]
        close: bool,
    },
    Interrupt,
}

/// What the client says. Returns when it has left.
async fn hear(
    caller: &Caller,
    exec_id: &str,
    mut stream: SplitStream<WebSocket>,
    inputs: mpsc::Sender<Input>,
    remarks: mpsc::Sender<Value>,
) {
    loop {
        let message = match timeout(SILENCE, stream.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(_)) | None) | Err(_) => return,
        };
        let obeyed = match message {
            Message::Binary(bytes) => {
                let _ = inputs.send((bytes.into(), false)).await;
                Ok(())
            }
            Message::Text(order) => match read_order(&order) {
                Ok(Order::Stdin { data, close }) => {
                    let _ = inputs.send((data.into_bytes(), close)).await;
                    Ok(())
                }
                Ok(Order::Interrupt) => {
                    let (engine, exec) = (&caller.app.engine, Some(exec_id.to_owned()));
                    let interrupted = engine.interrupt(&caller.who, &caller.session, exec).await;
                    interrupted.map(drop).map_err(ApiError::from)
                }
                Err(error) => Err(error),
            },
            Message::Ping(_) | Message::Pong(_) => Ok(()),
            Message::Close(_) => return,
        };
        if let Err(error) = obeyed
            && remarks.send(failed("refused", &error)).await.is_err()
        {
            return;
        }
    }
}

fn read_order(text: &str) -> Result<Order, ApiError> {
    serde_json::from_str(text).map_err(|error| {
        ApiError::invalid(format!(
            "expected {{\"type\": \"stdin\", \"data\", \"close\"}} or {{\"type\": \"interrupt\"}}: \
             {}",
            crate::input::in_plain_words(&error)
        ))
    })
}

/// Passes input on, in order.
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

/// Tells the client what happens.
async fn show(
    app: Arc<App>,
    followed: Followed,
    mut sink: SplitSink<WebSocket, Message>,
    mut remarks: mpsc::Receiver<Value>,
) {
    let Followed { exec_id, transcript, from, _held } = followed;
    let first = json!({"event": "exec", "data": {"exec_id": exec_id}});
    if from == 0 && !send(&mut sink, text(&first)).await {
        return;
    }
    let linked = app.linker();
    let mut reader = transcript.read_from(from);
    let mut ping = tokio::time::interval(PING);
    ping.reset();
    loop {
        let message = tokio::select! {
            biased;
            () = app.drained() => {
                return bye(&mut sink, close_code::RESTART, "the server is stopping").await;
            }
            Some(remark) = remarks.recv() => text(&remark),
            piece = reader.next() => {
                let Some(piece) = piece else {
                    return bye(&mut sink, close_code::NORMAL, "the execution has ended").await;
                };
                let result = || ExecResult::end_of(exec_id.clone(), &transcript);
                let (event, data) = stream::named(&linked, &piece, result);
                text(&json!({"event": event, "id": piece.next, "data": data}))
            }
            _ = ping.tick() => Message::Ping(Vec::new().into()),
        };
        if !send(&mut sink, message).await {
            return;
        }
    }
}

fn failed(event: &str, error: &ApiError) -> Value {
    let what = json!({"code": error.code, "message": error.message, "hint": error.hint});
    json!({
        "event": event,
        "data": {
            "status": error.status.as_u16(), "retry_after": error.retry_after_s, "error": what,
        },
    })
}
