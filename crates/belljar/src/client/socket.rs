//! A WebSocket of the server's.

use futures_util::{SinkExt, StreamExt};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::{self, Message};

use super::connection::Wire;
use super::{ANSWER_PATIENCE, Client, ClientError};

/// What comes over one.
#[derive(Debug)]
pub(crate) enum Received {
    Bytes(Vec<u8>),
    Said(Value),
    /// The server has nothing more to say, and why.
    Closed(Option<u16>),
}

pub(crate) struct Socket {
    stream: WebSocketStream<Wire>,
    url: String,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Socket").field(&self.url).finish()
    }
}

impl Client {
    /// Opens the WebSocket behind `path`.
    pub(crate) async fn socket(&self, path: &str) -> Result<Socket, ClientError> {
        let opening = async {
            let wire = self.server.dial().await?;
            match tokio_tungstenite::client_async(self.upgrade(path), wire).await {
                Ok((stream, _)) => Ok(Socket { stream, url: self.url() }),
                Err(tungstenite::Error::Http(response)) => {
                    let body = response.body().as_deref().unwrap_or_default();
                    self.understand(response.status(), body)?;
                    Err(self.stranger("it opens no WebSockets"))
                }
                Err(tungstenite::Error::Protocol(_)) => {
                    Err(self.stranger("it opens no WebSockets"))
                }
                Err(_) => Err(ClientError::CutOff { url: self.url() }),
            }
        };
        let patience = tokio::time::timeout(ANSWER_PATIENCE, opening);
        patience.await.unwrap_or_else(|_| Err(self.silent(ANSWER_PATIENCE)))
    }

    fn upgrade(&self, path: &str) -> Request<()> {
        let mut request = Request::new(());
        // Only the path is sent; the rest is how the library is told that this is no `https`.
        let uri = format!("ws://belljar{}", self.server.uri(path));
        *request.uri_mut() = uri.parse().expect("a path that was one");
        let key = HeaderValue::try_from(generate_key()).expect("base64");
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.server.host());
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        headers.insert(header::SEC_WEBSOCKET_KEY, key);
        if let Some(authorization) = &self.authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        request
    }
}

impl Socket {
    /// Both directions, each for itself.
    pub(crate) fn split(self) -> (Saying, Hearing) {
        let (sink, stream) = self.stream.split();
        (Saying { sink, url: self.url.clone() }, Hearing { stream, url: self.url })
    }
}

pub(crate) struct Saying {
    sink: futures_util::stream::SplitSink<WebSocketStream<Wire>, Message>,
    url: String,
}

impl Saying {
    pub(crate) async fn bytes(&mut self, bytes: Vec<u8>) -> Result<(), ClientError> {
        self.send(Message::Binary(bytes.into())).await
    }

    pub(crate) async fn say(&mut self, value: &Value) -> Result<(), ClientError> {
        self.send(Message::Text(value.to_string().into())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), ClientError> {
        let sent = self.sink.send(message).await;
        sent.map_err(|_| ClientError::CutOff { url: self.url.clone() })
    }
}

pub(crate) struct Hearing {
    stream: futures_util::stream::SplitStream<WebSocketStream<Wire>>,
    url: String,
}

/// The server asks every 20 seconds whether we are there.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(60);

impl Hearing {
    /// As if the connection had been lost.
    pub(crate) fn cut_off(&self) -> ClientError {
        ClientError::CutOff { url: self.url.clone() }
    }

    /// The next message. Nothing is lost by not waiting for it.
    pub(crate) async fn next(&mut self) -> Result<Received, ClientError> {
        loop {
            let next = tokio::time::timeout(SILENCE, self.stream.next()).await;
            let silent =
                || ClientError::Silent { url: self.url.clone(), seconds: SILENCE.as_secs() };
            match next.map_err(|_| silent())? {
                Some(Ok(Message::Binary(bytes))) => return Ok(Received::Bytes(bytes.into())),
                Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                    Ok(value) => return Ok(Received::Said(value)),
                    Err(_) => {
                        let why = "what it says is not JSON".to_owned();
                        return Err(ClientError::Stranger { url: self.url.clone(), why });
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

impl ClientError {
    /// As if the server had said that it is on its way out.
    pub(crate) fn stopping() -> ClientError {
        ClientError::Refused {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: "stopping".into(),
            message: "the server is stopping".into(),
            hint: None,
        }
    }
}
