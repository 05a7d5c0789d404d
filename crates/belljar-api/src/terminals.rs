//! `/v1/sessions/{id}/terminal`: a terminal in a session, over a WebSocket.
//!
//! ```text
//!   client ──binary: keys──────────▶         binary: what is printed──▶ client
//!          ──{"type": "resize", ...}▶         {"type": "attached" | "skipped" | "exit" | "error"}──▶
//!          ──{"type": "close"}──────▶
//! ```
//!
//! A lost connection does not end the terminal: a client that connects again with the terminal's id, and the position
//! up to which it has read, gets the rest.

use std::sync::Arc;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocketUpgrade, close_code};
use axum::http::StatusCode;
use axum::response::Response;
use axum::{Extension, Json};
use belljar_engine::{
    AttachedTerminal, EngineError, Principal, TerminalAsk, TerminalControl, TerminalUpdate,
};
use belljar_proto::terminal::{MAX_TERMINAL_INPUT, TerminalEnd, TerminalInfo, TerminalSize};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::input::{Path, Query, in_plain_words};
use crate::socket::{Incoming, Next, Outgoing, Received, Socket, not_a_websocket, text};
use crate::tickets::SUBPROTOCOL;

/// The largest message: text that a person types or pastes.
const MAX_MESSAGE: usize = MAX_TERMINAL_INPUT;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenTerminal {
    /// Attach to this one instead of opening a new one.
    pub terminal: Option<String>,
    /// With `terminal`: the position in its output to continue from. Default: all output that is
    /// kept.
    pub offset: Option<u64>,
    #[param(minimum = 1, maximum = 1000)]
    pub rows: Option<u16>,
    #[param(minimum = 1, maximum = 1000)]
    pub cols: Option<u16>,
    /// The command to run, as text for a shell. Default: a shell.
    pub command: Option<String>,
    pub cwd: Option<String>,
    /// The kind of terminal, as `TERM` names it. Default: `xterm-256color`.
    #[param(pattern = "^[A-Za-z0-9_.+-]{1,64}$")]
    pub term: Option<String>,
}

impl OpenTerminal {
    fn size(&self) -> Option<TerminalSize> {
        let default = TerminalSize::default();
        (self.rows.is_some() || self.cols.is_some()).then(|| TerminalSize {
            rows: self.rows.unwrap_or(default.rows),
            cols: self.cols.unwrap_or(default.cols),
        })
    }

    fn ask(&self) -> TerminalAsk {
        TerminalAsk {
            command: self.command.clone(),
            cwd: self.cwd.clone(),
            term: self.term.clone(),
            size: self.size().unwrap_or_default(),
        }
    }
}

/// Open a terminal in the session over a WebSocket, or attach to an existing one.
///
/// Output and keys are binary messages. Text messages of the server are
/// `{"type": "attached", "terminal", "offset", "rows", "cols"}` first, `{"type": "skipped",
/// "bytes"}` where output was lost, `{"type": "exit", "exit_code", "signal"}` last, and `{"type":
/// "error", "code", "message"}`; text messages of the client are `{"type": "resize", "rows", "cols"}` and
/// `{"type": "close"}`, which ends everything at the terminal. A lost connection ends nothing.
#[utoipa::path(get, path = "/v1/sessions/{id}/terminal", tag = "terminals",
    params(("id" = String, Path), OpenTerminal),
    responses((status = 101, description = "A WebSocket"), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 410, body = ErrorBody),
        (status = 422, body = ErrorBody), (status = 426, body = ErrorBody),
        (status = 429, body = ErrorBody)))]
pub(crate) async fn open(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    Query(query): Query<OpenTerminal>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|rejection| {
        not_a_websocket(&format!("a terminal needs a WebSocket: {}", rejection.body_text()))
    })?;
    let (attached, is_new) = attach(&app, &who, &id, &query).await?;
    let control = attached.control();
    Ok(upgrade
        // A browser expects one of the subprotocols that it offered; the ticket must not be sent back.
        .protocols([SUBPROTOCOL])
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .on_failed_upgrade(move |_| {
            // The client does not know the id of the new terminal, so the terminal is closed.
            if is_new {
                tokio::spawn(async move { control.close().await });
            }
        })
        .on_upgrade(move |socket| serve(Socket::new(app, socket), attached, query.offset)))
}

/// Attaches to a terminal, and returns whether it is new.
async fn attach(
    app: &App,
    who: &Principal,
    id: &str,
    query: &OpenTerminal,
) -> Result<(AttachedTerminal, bool), ApiError> {
    let Some(terminal) = &query.terminal else {
        if query.offset.is_some() {
            return Err(ApiError::invalid("offset: only with `terminal`; a new one has no output"));
        }
        return Ok((app.engine.open_terminal(who, id, query.ask()).await?, true));
    };
    if query.command.is_some() || query.cwd.is_some() || query.term.is_some() {
        return Err(ApiError::invalid(
            "terminal: an existing terminal has its command, cwd and term already",
        ));
    }
    let attached = app.engine.attach_terminal(who, id, terminal, query.offset).await?;
    if let Some(size) = query.size().filter(|_| attached.info.ended.is_none()) {
        let resized = attached.control().resize(size).await;
        // Other errors mean that the program has ended meanwhile; the client gets that event next.
        if let Err(error @ EngineError::Invalid(_)) = resized {
            return Err(error.into());
        }
    }
    Ok((attached, false))
}

/// Serves one client until it disconnects, the program ends, or the server stops.
async fn serve(mut socket: Socket, attached: AttachedTerminal, from: Option<u64>) {
    let keys = Keys(attached.control());
    if socket.send(text(&first_message(&attached.info, from))).await {
        socket.serve(Screen(attached), keys).await;
    }
}

/// The first message: the terminal, and the position of the output that follows.
fn first_message(info: &TerminalInfo, from: Option<u64>) -> Value {
    let TerminalInfo { terminal, size, oldest, newest, .. } = info;
    json!({
        "type": "attached",
        "terminal": terminal,
        "offset": from.unwrap_or(*oldest).min(*newest),
        "rows": size.rows,
        "cols": size.cols,
    })
}

/// The output of a terminal.
struct Screen(AttachedTerminal);

impl Outgoing for Screen {
    async fn next(&mut self) -> Next {
        match self.0.next().await {
            Ok(Some(TerminalUpdate::Output(bytes))) => Next::Message(Message::Binary(bytes.into())),
            Ok(Some(TerminalUpdate::Skipped(bytes))) => {
                Next::Message(text(&json!({"type": "skipped", "bytes": bytes})))
            }
            Ok(Some(TerminalUpdate::Ended(end))) => Next::Close {
                last: Some(text(&exit_message(end))),
                code: close_code::NORMAL,
                reason: "the program has ended",
            },
            Ok(None) => session_ended(&self.0).await,
            Err(error) => Next::Close {
                last: Some(text(&error_message(&error.into()))),
                code: close_code::ERROR,
                reason: "the terminal is lost",
            },
        }
    }
}

fn exit_message(end: TerminalEnd) -> Value {
    json!({"type": "exit", "exit_code": end.exit_code, "signal": end.signal})
}

fn error_message(error: &ApiError) -> Value {
    json!({"type": "error", "code": error.code, "message": error.message})
}

/// The sandbox is gone.
async fn session_ended(attached: &AttachedTerminal) -> Next {
    let because = attached.control().ended_because().await;
    let message = because.map_or("the session has ended".into(), |because| {
        format!("the session has ended: {because}")
    });
    let ended = json!({"type": "error", "code": "session_ended", "message": message});
    Next::Close {
        last: Some(text(&ended)),
        code: close_code::AWAY,
        reason: "the session has ended",
    }
}

/// Input and commands of the client.
struct Keys(TerminalControl);

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum TerminalCommand {
    Resize { rows: u16, cols: u16 },
    Close,
}

impl Incoming for Keys {
    async fn receive(&mut self, message: Received) -> Result<(), ApiError> {
        let command = match message {
            Received::Bytes(bytes) => return Ok(self.0.type_in(&bytes).await?),
            Received::Text(text) => serde_json::from_str(&text).map_err(|error| {
                ApiError::invalid(format!(
                    "expected {{\"type\": \"resize\", \"rows\", \"cols\"}} or {{\"type\": \
                     \"close\"}}: {}",
                    in_plain_words(&error)
                ))
            })?,
        };
        match command {
            TerminalCommand::Resize { rows, cols } => {
                Ok(self.0.resize(TerminalSize { rows, cols }).await?)
            }
            TerminalCommand::Close => Ok(self.0.close().await?),
        }
    }

    fn error(&self, error: &ApiError) -> Value {
        error_message(error)
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TerminalBody {
    pub terminal: String,
    pub command: Vec<String>,
    pub rows: u16,
    pub cols: u16,
    /// How many connections are attached to it.
    pub attached: u32,
    /// The positions between which its output is kept.
    pub oldest: u64,
    pub newest: u64,
    pub running: bool,
    /// Of one whose program has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

impl From<TerminalInfo> for TerminalBody {
    fn from(info: TerminalInfo) -> TerminalBody {
        TerminalBody {
            terminal: info.terminal,
            command: info.argv,
            rows: info.size.rows,
            cols: info.size.cols,
            attached: info.attached,
            oldest: info.oldest,
            newest: info.newest,
            running: info.ended.is_none(),
            exit_code: info.ended.map(|end| end.exit_code),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TerminalsBody {
    pub terminals: Vec<TerminalBody>,
}

/// List the terminals of a session, the oldest first; of those that have ended, the last few.
#[utoipa::path(get, path = "/v1/sessions/{id}/terminals", tag = "terminals",
    params(("id" = String, Path)),
    responses((status = 200, body = TerminalsBody), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody)))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Json<TerminalsBody>, ApiError> {
    let terminals = app.engine.terminals(&who, &id).await?;
    Ok(Json(TerminalsBody { terminals: terminals.into_iter().map(Into::into).collect() }))
}

/// Close a terminal and end everything that was started in it.
#[utoipa::path(delete, path = "/v1/sessions/{id}/terminals/{terminal}", tag = "terminals",
    params(("id" = String, Path), ("terminal" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 410, body = ErrorBody)))]
pub(crate) async fn close(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, terminal)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    app.engine.close_terminal(&who, &id, &terminal).await?;
    Ok(StatusCode::NO_CONTENT)
}
