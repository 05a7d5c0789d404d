//! `/v1/sessions/{id}/terminal`: a terminal in a session, over a WebSocket.
//!
//! ```text
//!   client ──binary: keys──────────▶         binary: what is printed──▶ client
//!          ──{"type": "resize", ...}▶         {"type": "attached" | "skipped" | "exit" | "error"}──▶
//!          ──{"type": "close"}──────▶
//! ```
//!
//! A connection that is lost leaves the terminal where it is: whoever comes back with its id, and
//! the position up to which he has read, gets the rest. Both directions are independent: a key
//! overtakes output that the client has not read yet.
//!
//! A page in a browser cannot show a key here: it shows a ticket, which its own server asked for, among
//! the subprotocols that it offers. There it stands in no address, and so in no log of addresses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_engine::tickets::TICKET_LIFE;
use belljar_engine::{Attached, Principal, Shown, TerminalAsk, TerminalControl};
use belljar_proto::terminal::{MAX_TERMINAL_INPUT, TerminalEnd, TerminalInfo, TerminalSize};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::execs::{check_argv, path_inside};
use crate::input::{Path, Query};

/// A message that is longer than this is refused: what a person types, or pastes.
const MAX_MESSAGE: usize = MAX_TERMINAL_INPUT;

/// Rows and columns: more make no terminal, and programs allocate by them.
const MAX_SIDE: u16 = 1_000;

/// How long a client may take nothing before it is given up; the terminal stays.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a silent client is asked whether it is there; proxies close what is silent longer.
pub(crate) const PING: Duration = Duration::from_secs(20);

/// A client that says nothing for this long, not even that it is there, is not.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// Things to be told that are not output: errors, and answers to pings.
pub(crate) const REMARKS: usize = 16;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenTerminal {
    /// Attach to this one instead of opening a new one.
    pub terminal: Option<String>,
    /// With `terminal`: the position in its output to go on from; everything that is kept, if
    /// nothing is said.
    pub offset: Option<u64>,
    #[param(minimum = 1, maximum = 1000)]
    pub rows: Option<u16>,
    #[param(minimum = 1, maximum = 1000)]
    pub cols: Option<u16>,
    /// What runs in it, as text for a shell; a shell itself, if nothing is said.
    pub command: Option<String>,
    pub cwd: Option<String>,
    /// What kind of terminal the client is: `xterm-256color`, if nothing is said.
    #[param(pattern = "^[A-Za-z0-9_.+-]{1,64}$")]
    pub term: Option<String>,
}

impl OpenTerminal {
    fn size(&self) -> Result<Option<TerminalSize>, ApiError> {
        let default = TerminalSize::default();
        let size = TerminalSize {
            rows: self.rows.unwrap_or(default.rows),
            cols: self.cols.unwrap_or(default.cols),
        };
        check_size(size)?;
        Ok((self.rows.is_some() || self.cols.is_some()).then_some(size))
    }

    fn ask(&self) -> Result<TerminalAsk, ApiError> {
        let argv = match &self.command {
            None => None,
            Some(command) => {
                let argv = vec!["/bin/bash".into(), "-c".into(), command.clone()];
                check_argv(&argv)?;
                Some(argv)
            }
        };
        let term = self.term.clone().unwrap_or_else(|| "xterm-256color".into());
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
        if term.is_empty() || term.len() > 64 || !term.bytes().all(known) {
            return Err(ApiError::invalid("term: expected the name of a kind of terminal"));
        }
        let cwd = self.cwd.as_deref().map(|cwd| path_inside(Some(cwd))).transpose()?;
        let size = self.size()?.unwrap_or_default();
        Ok(TerminalAsk { argv, cwd, term, size })
    }
}

fn check_size(size: TerminalSize) -> Result<(), ApiError> {
    let sides = 1..=MAX_SIDE;
    match sides.contains(&size.rows) && sides.contains(&size.cols) {
        true => Ok(()),
        false => Err(ApiError::invalid(format!("rows and cols must be between 1 and {MAX_SIDE}"))),
    }
}

/// A terminal in the session, over a WebSocket: a new one, or one that there is.
///
/// What is printed comes in binary messages, keys go in binary messages. In text messages the server
/// says `{"type": "attached", "terminal", "offset", "rows", "cols"}` first, `{"type": "skipped",
/// "bytes"}` where output was lost, `{"type": "exit", "exit_code", "signal"}` last, and `{"type":
/// "error", "code", "message"}`; the client may say `{"type": "resize", "rows", "cols"}` and
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
    let size = query.size()?;
    let (attached, is_new) = match &query.terminal {
        Some(_) if query.command.is_some() || query.cwd.is_some() || query.term.is_some() => {
            return Err(ApiError::invalid(
                "terminal: one that there is has its command, cwd and term already",
            ));
        }
        Some(terminal) => {
            let attached = app.engine.attach_terminal(&who, &id, terminal, query.offset).await?;
            if let Some(size) = size.filter(|_| attached.info.ended.is_none()) {
                // Its program may have ended meanwhile, which is told in a moment.
                let _ = attached.control().resize(size).await;
            }
            (attached, false)
        }
        None if query.offset.is_some() => {
            return Err(ApiError::invalid("offset: a new terminal begins at its beginning"));
        }
        None => (app.engine.open_terminal(&who, &id, query.ask()?).await?, true),
    };
    let control = attached.control();
    Ok(upgrade
        // Browsers want one of what they offer, and must not hear their ticket again.
        .protocols([SUBPROTOCOL])
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .on_failed_upgrade(move |_| {
            // Nobody knows of it.
            if is_new {
                tokio::spawn(async move { control.close().await });
            }
        })
        .on_upgrade(move |socket| converse(app, attached, query.offset, socket)))
}

pub(crate) fn not_a_websocket(message: &str) -> ApiError {
    ApiError::new(StatusCode::UPGRADE_REQUIRED, "not_a_websocket", message)
}

/// What a client may offer as a subprotocol, and with a ticket must.
pub(crate) const SUBPROTOCOL: &str = "belljar.terminal";

/// How the subprotocol begins that is a ticket.
const TICKET_PREFIX: &str = "belljar.ticket.";

/// The ticket that is shown where a WebSocket is asked for, and the session.
pub(crate) fn shown_ticket<'a>(
    headers: &'a HeaderMap,
    path: &'a str,
) -> Option<(&'a str, &'a str)> {
    let path = path.strip_prefix("/v1/sessions/")?;
    let session = path.strip_suffix("/terminal").or_else(|| path.strip_suffix("/exec"))?;
    headers.get(header::UPGRADE)?;
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    let mut names =
        offered.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    let ticket = names.find_map(|name| name.trim().strip_prefix(TICKET_PREFIX))?;
    Some((ticket, session))
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TicketBody {
    pub ticket: String,
    /// What a browser offers as subprotocols: `new WebSocket(url, protocols)`.
    pub protocols: [String; 2],
    /// Seconds until it is too old.
    pub expires_in: u64,
}

/// A ticket with which somebody else, such as a page in a browser, may open a WebSocket of the session
/// (`terminal` or `exec`): once, within a minute, and without a key.
#[utoipa::path(post, path = "/v1/sessions/{id}/terminal/ticket", tag = "terminals",
    params(("id" = String, Path)),
    responses((status = 200, body = TicketBody), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub(crate) async fn ticket(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    // Only for a session that lives, and is theirs.
    app.engine.terminals(&who, &id).await?;
    let expires_in = TICKET_LIFE.as_secs();
    let ticket = app.tickets.issue(&who, &id, Instant::now()).ok_or_else(|| {
        let seconds = u32::try_from(expires_in).unwrap_or(u32::MAX);
        ApiError::too_many("there are too many tickets that nobody has used", seconds)
    })?;
    let protocols = [SUBPROTOCOL.to_owned(), format!("{TICKET_PREFIX}{ticket}")];
    let body = Json(TicketBody { ticket, protocols, expires_in });
    Ok(([(header::CACHE_CONTROL, "no-store")], body).into_response())
}

/// Serves one client until it leaves, the program ends, or the server does.
async fn converse(app: Arc<App>, attached: Attached, from: Option<u64>, socket: WebSocket) {
    let control = attached.control();
    let (sink, stream) = socket.split();
    let (remarks, to_say) = mpsc::channel(REMARKS);
    let mut showing = tokio::spawn(show(app, attached, from, sink, to_say));
    tokio::select! {
        () = hear(control, stream, remarks) => {}
        _ = &mut showing => return,
    }
    showing.abort();
}

/// What the client says. Returns when it has left.
async fn hear(
    control: TerminalControl,
    mut stream: SplitStream<WebSocket>,
    remarks: mpsc::Sender<Value>,
) {
    loop {
        let message = match timeout(SILENCE, stream.next()).await {
            Ok(Some(Ok(message))) => message,
            // It says nothing any more, has left, or talks nonsense.
            Ok(Some(Err(_)) | None) | Err(_) => return,
        };
        let obeyed = match message {
            Message::Binary(bytes) => control.type_in(&bytes).await.map_err(ApiError::from),
            Message::Text(text) => obey(&control, &text).await,
            Message::Ping(_) | Message::Pong(_) => Ok(()),
            Message::Close(_) => return,
        };
        if let Err(error) = obeyed
            && remarks.send(remark(&error)).await.is_err()
        {
            return;
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    Resize { rows: u16, cols: u16 },
    Close,
}

async fn obey(control: &TerminalControl, text: &str) -> Result<(), ApiError> {
    let order = serde_json::from_str(text).map_err(|error| {
        ApiError::invalid(format!(
            "expected {{\"type\": \"resize\", \"rows\", \"cols\"}} or {{\"type\": \"close\"}}: \
             {error}"
        ))
    })?;
    match order {
        Order::Resize { rows, cols } => {
            let size = TerminalSize { rows, cols };
            check_size(size)?;
            Ok(control.resize(size).await?)
        }
        Order::Close => Ok(control.close().await?),
    }
}

fn remark(error: &ApiError) -> Value {
    json!({"type": "error", "code": error.code, "message": error.message})
}

/// Shows the client what is printed, and says the rest.
async fn show(
    app: Arc<App>,
    mut attached: Attached,
    from: Option<u64>,
    mut sink: SplitSink<WebSocket, Message>,
    mut remarks: mpsc::Receiver<Value>,
) {
    if !send(&mut sink, text(&greeting(&attached.info, from))).await {
        return;
    }
    let mut ping = tokio::time::interval(PING);
    ping.reset();
    loop {
        let message = tokio::select! {
            biased;
            () = app.drained() => {
                return bye(&mut sink, close_code::RESTART, "the server is stopping").await;
            }
            Some(remark) = remarks.recv() => text(&remark),
            shown = attached.next() => match shown {
                Ok(Some(Shown::Output(bytes))) => Message::Binary(bytes.into()),
                Ok(Some(Shown::Skipped(bytes))) => text(&json!({"type": "skipped", "bytes": bytes})),
                Ok(Some(Shown::Ended(end))) => {
                    let _ = send(&mut sink, text(&ending(end))).await;
                    return bye(&mut sink, close_code::NORMAL, "the program has ended").await;
                }
                Ok(None) => return farewell(&attached, &mut sink).await,
                Err(error) => {
                    let _ = send(&mut sink, text(&remark(&error.into()))).await;
                    return bye(&mut sink, close_code::ERROR, "the terminal is lost").await;
                }
            },
            _ = ping.tick() => Message::Ping(Vec::new().into()),
        };
        if !send(&mut sink, message).await {
            return;
        }
    }
}

/// Where the output begins that is sent next.
fn greeting(info: &TerminalInfo, from: Option<u64>) -> Value {
    let TerminalInfo { terminal, size, oldest, newest, .. } = info;
    json!({
        "type": "attached",
        "terminal": terminal,
        "offset": from.unwrap_or(*oldest).min(*newest),
        "rows": size.rows,
        "cols": size.cols,
    })
}

fn ending(end: TerminalEnd) -> Value {
    json!({"type": "exit", "exit_code": end.exit_code, "signal": end.signal})
}

/// The sandbox is gone.
async fn farewell(attached: &Attached, sink: &mut SplitSink<WebSocket, Message>) {
    let because = attached.control().ended_because().await;
    let message = because.map_or("the session has ended".into(), |because| {
        format!("the session has ended: {because}")
    });
    let lost = json!({"type": "error", "code": "session_ended", "message": message});
    let _ = send(sink, text(&lost)).await;
    bye(sink, close_code::AWAY, "the session has ended").await;
}

pub(crate) fn text(value: &Value) -> Message {
    Message::Text(value.to_string().into())
}

/// False when the client has gone, or takes nothing.
pub(crate) async fn send(sink: &mut SplitSink<WebSocket, Message>, message: Message) -> bool {
    matches!(timeout(WRITE_TIMEOUT, sink.send(message)).await, Ok(Ok(())))
}

pub(crate) async fn bye(sink: &mut SplitSink<WebSocket, Message>, code: u16, reason: &'static str) {
    let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
    let _ = send(sink, Message::Close(Some(frame))).await;
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

/// The terminals of a session, the oldest first; of those whose program has ended, the last few.
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

/// End everything that was started at a terminal, and forget it.
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
