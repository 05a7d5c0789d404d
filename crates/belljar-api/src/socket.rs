//! One WebSocket with one client: sending, receiving, pings, time limits and closing. [`crate::exec_socket`] and
//! [`crate::terminals`] define the meaning of messages.
//!
//! Both directions are independent: a message of the client does not wait for output that the client has not read.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use axum::http::StatusCode;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::App;
use crate::error::ApiError;

/// How long a client may read nothing before the connection is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a silent client gets a ping; proxies close connections that are silent for longer.
const PING: Duration = Duration::from_secs(20);

/// A client that sends nothing for this long, not even answers to pings, counts as disconnected.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// How many messages beside the output, such as errors, may wait to be sent.
const REMARKS: usize = 16;

/// The messages of the server.
pub(crate) trait Outgoing: Send + 'static {
    /// The next message, or the end. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Next> + Send;
}

pub(crate) enum Next {
    Message(Message),
    /// Sends a last message, if there is one, and closes the connection.
    Close {
        last: Option<Message>,
        code: u16,
        reason: &'static str,
    },
}

/// Handles the messages of the client.
pub(crate) trait Incoming: Send {
    /// Acts on a message of the client.
    fn receive(&mut self, message: Received) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// An error as a message to the client.
    fn error(&self, error: &ApiError) -> Value;
}

pub(crate) enum Received {
    Bytes(Vec<u8>),
    Text(Utf8Bytes),
}

/// An open WebSocket.
pub(crate) struct Socket {
    app: Arc<App>,
    sink: SplitSink<WebSocket, Message>,
    stream: SplitStream<WebSocket>,
    remarks: (mpsc::Sender<Value>, mpsc::Receiver<Value>),
}

impl Socket {
    pub(crate) fn new(app: Arc<App>, socket: WebSocket) -> Socket {
        let (sink, stream) = socket.split();
        Socket { app, sink, stream, remarks: mpsc::channel(REMARKS) }
    }

    /// A sender of messages to the client, beside the output.
    pub(crate) fn remarks(&self) -> mpsc::Sender<Value> {
        self.remarks.0.clone()
    }

    /// The first message of the client; `None` if it disconnected, or the server stops.
    pub(crate) async fn first(&mut self) -> Option<Received> {
        let app = Arc::clone(&self.app);
        tokio::select! {
            first = receive(&mut self.stream) => first,
            () = app.drained() => {
                self.close(close_code::RESTART, STOPPING).await;
                None
            }
        }
    }

    pub(crate) async fn send(&mut self, message: Message) -> bool {
        send(&mut self.sink, message).await
    }

    pub(crate) async fn close(&mut self, code: u16, reason: &'static str) {
        close(&mut self.sink, code, reason).await;
    }

    /// Serves both directions until the client disconnects, the output ends or the server stops.
    pub(crate) async fn serve(self, outgoing: impl Outgoing, mut incoming: impl Incoming) {
        let Socket { app, sink, mut stream, remarks: (remarks, to_send) } = self;
        let mut sending = tokio::spawn(send_all(app, sink, outgoing, to_send));
        let receiving = async {
            while let Some(message) = receive(&mut stream).await {
                if let Err(error) = incoming.receive(message).await
                    && remarks.send(incoming.error(&error)).await.is_err()
                {
                    return;
                }
            }
        };
        tokio::select! {
            () = receiving => sending.abort(),
            _ = &mut sending => {}
        }
    }
}

const STOPPING: &str = "the server is stopping";

/// The next message; `None` if the client disconnected, is silent, or broke the protocol.
async fn receive(stream: &mut SplitStream<WebSocket>) -> Option<Received> {
    loop {
        match timeout(SILENCE, stream.next()).await.ok()??.ok()? {
            Message::Binary(bytes) => return Some(Received::Bytes(bytes.into())),
            Message::Text(text) => return Some(Received::Text(text)),
            Message::Ping(_) | Message::Pong(_) => {}
            Message::Close(_) => return None,
        }
    }
}

async fn send_all(
    app: Arc<App>,
    mut sink: SplitSink<WebSocket, Message>,
    mut outgoing: impl Outgoing,
    mut remarks: mpsc::Receiver<Value>,
) {
    let mut ping = tokio::time::interval(PING);
    ping.reset();
    loop {
        let message = tokio::select! {
            biased;
            () = app.drained() => return close(&mut sink, close_code::RESTART, STOPPING).await,
            Some(remark) = remarks.recv() => text(&remark),
            next = outgoing.next() => match next {
                Next::Message(message) => message,
                Next::Close { last, code, reason } => {
                    if let Some(last) = last {
                        let _ = send(&mut sink, last).await;
                    }
                    return close(&mut sink, code, reason).await;
                }
            },
            _ = ping.tick() => Message::Ping(Vec::new().into()),
        };
        if !send(&mut sink, message).await {
            return;
        }
    }
}

pub(crate) fn text(value: &Value) -> Message {
    Message::Text(value.to_string().into())
}

/// Returns false if the client disconnected, or reads nothing.
async fn send(sink: &mut SplitSink<WebSocket, Message>, message: Message) -> bool {
    matches!(timeout(WRITE_TIMEOUT, sink.send(message)).await, Ok(Ok(())))
}

async fn close(sink: &mut SplitSink<WebSocket, Message>, code: u16, reason: &'static str) {
    let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
    let _ = send(sink, Message::Close(Some(frame))).await;
}

pub(crate) fn not_a_websocket(message: &str) -> ApiError {
    ApiError::new(StatusCode::UPGRADE_REQUIRED, "not_a_websocket", message)
}
