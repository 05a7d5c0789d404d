//! WebSockets: reqwest does the handshake, tungstenite the messages.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode, Upgraded, header};
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{Client, ClientError, RESPONSE_TIMEOUT, within};

/// How long the server may send nothing: it sends a ping every 20 seconds.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// A message from the server.
#[derive(Debug)]
pub(crate) enum Received {
    Bytes(Vec<u8>),
    Json(Value),
    /// The server closed the WebSocket, with this code.
    Closed(Option<u16>),
}

pub(crate) struct Socket {
    stream: WebSocketStream<Upgraded>,
    url: String,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Socket").field(&self.url).finish()
    }
}

impl Client {
    /// Opens the WebSocket at `path`.
    pub(crate) async fn socket(&self, path: &str) -> Result<Socket, ClientError> {
        let key = generate_key();
        let request = self
            .request(Method::GET, path, "*/*")?
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &key);
        within(self, RESPONSE_TIMEOUT, async {
            let response = self.send(request).await?;
            let accepted = response.headers().get(header::SEC_WEBSOCKET_ACCEPT);
            let is_accepted = accepted.is_some_and(|it| *it == *derive_accept_key(key.as_bytes()));
            if response.status() != StatusCode::SWITCHING_PROTOCOLS || !is_accepted {
                self.value(response).await?;
                return Err(self.not_belljar("it opens no WebSockets"));
            }
            let upgraded = response.upgrade().await.map_err(|error| self.failed(&error))?;
            let stream = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
            Ok(Socket { stream, url: self.url() })
        })
        .await
    }
}

impl Socket {
    pub(crate) fn split(self) -> (SocketSender, SocketReceiver) {
        let (sink, stream) = self.stream.split();
        (SocketSender { sink, url: self.url.clone() }, SocketReceiver { stream, url: self.url })
    }
}

pub(crate) struct SocketSender {
    sink: futures_util::stream::SplitSink<WebSocketStream<Upgraded>, Message>,
    url: String,
}

impl SocketSender {
    pub(crate) async fn bytes(&mut self, bytes: Vec<u8>) -> Result<(), ClientError> {
        self.send(Message::Binary(bytes.into())).await
    }

    pub(crate) async fn json(&mut self, value: &Value) -> Result<(), ClientError> {
        self.send(Message::Text(value.to_string().into())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), ClientError> {
        let sent = self.sink.send(message).await;
        sent.map_err(|_| ClientError::CutOff { url: self.url.clone() })
    }
}

pub(crate) struct SocketReceiver {
    stream: futures_util::stream::SplitStream<WebSocketStream<Upgraded>>,
    url: String,
}

impl SocketReceiver {
    /// The error of a connection that ended.
    pub(crate) fn cut_off(&self) -> ClientError {
        ClientError::CutOff { url: self.url.clone() }
    }

    /// The next message. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Received, ClientError> {
        loop {
            let next = tokio::time::timeout(SILENCE_TIMEOUT, self.stream.next()).await;
            let silent = || ClientError::Silent {
                url: self.url.clone(),
                seconds: SILENCE_TIMEOUT.as_secs(),
            };
            match next.map_err(|_| silent())? {
                Some(Ok(Message::Binary(bytes))) => return Ok(Received::Bytes(bytes.into())),
                Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                    Ok(value) => return Ok(Received::Json(value)),
                    Err(_) => {
                        let why = "it sends text that is not JSON".to_owned();
                        return Err(ClientError::NotBelljar { url: self.url.clone(), why });
                    }
                },
                Some(Ok(Message::Close(frame))) => {
                    return Ok(Received::Closed(frame.map(|frame| frame.code.into())));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(self.cut_off()),
            }
        }
    }
}
