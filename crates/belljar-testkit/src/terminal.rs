//! A client of a terminal, over a WebSocket.

use std::pin::Pin;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::client::{Client, Target, Wire};
use crate::session::Session;
use crate::values::text;
use crate::wait::PATIENCE;

pub struct TerminalClient {
    pub socket: WebSocketStream<Pin<Box<dyn Wire>>>,
    pub id: String,
    /// The position after the output that was read.
    pub position: u64,
    pub seen: String,
}

pub type Refused = Box<hyper::Response<Option<Vec<u8>>>>;

pub async fn connect(
    client: &Client,
    session: &Session,
    query: &str,
    headers: &[(&'static str, &str)],
) -> Result<WebSocketStream<Pin<Box<dyn Wire>>>, Refused> {
    connect_to(client, &session.path("/terminal"), query, headers).await
}

/// Opens a WebSocket at any path.
pub async fn connect_to(
    client: &Client,
    path: &str,
    query: &str,
    headers: &[(&'static str, &str)],
) -> Result<WebSocketStream<Pin<Box<dyn Wire>>>, Refused> {
    let Target::Tcp(address) = &client.target else { panic!("no address") };
    let mut request = format!("ws://{address}{path}?{query}").into_client_request().expect("a URL");
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().expect("a value"));
    }
    let connecting = tokio_tungstenite::client_async(request, client.dial().await);
    match tokio::time::timeout(PATIENCE, connecting).await.expect("an answer") {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => Err(response),
        Err(error) => panic!("{error}"),
    }
}

pub async fn refused(client: &Client, session: &Session, query: &str, status: u16, code: &str) {
    let refusal = connect(client, session, query, &[]).await.err().expect("a refusal");
    let body = refusal.body().clone().unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(
        (refusal.status().as_u16(), &body["error"]["code"]),
        (status, &json!(code)),
        "{body}"
    );
}

impl TerminalClient {
    pub async fn take(client: &Client, session: &Session, query: &str) -> TerminalClient {
        let socket = connect(client, session, query, &[]).await.expect("a terminal");
        let mut terminal =
            TerminalClient { socket, id: String::new(), position: 0, seen: String::new() };
        let attached = terminal.reply().await;
        assert_eq!(attached["type"], "attached", "{attached}");
        terminal.id = text(&attached["terminal"]).to_owned();
        terminal.position = attached["offset"].as_u64().expect("a position");
        terminal
    }

    pub async fn next(&mut self) -> Option<Message> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let next = tokio::time::timeout_at(deadline, self.socket.next()).await;
            let next = next.unwrap_or_else(|_| panic!("nothing comes; seen: {:?}", self.seen));
            match next? {
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(message) => return Some(message),
                Err(_) => return None,
            }
        }
    }

    /// The next message that is not output.
    pub async fn reply(&mut self) -> Value {
        loop {
            match self.next().await.expect("something") {
                Message::Text(said) => return serde_json::from_str(&said).expect("JSON"),
                Message::Binary(bytes) => self.read(&bytes),
                other => panic!("{other:?}; seen: {:?}", self.seen),
            }
        }
    }

    fn read(&mut self, bytes: &[u8]) {
        self.position += bytes.len() as u64;
        self.seen.push_str(&String::from_utf8_lossy(bytes));
    }

    /// Reads until this text was printed; returns the output up to it since the last call.
    pub async fn until(&mut self, wanted: &str) -> String {
        loop {
            if let Some(at) = self.seen.find(wanted) {
                let rest = self.seen.split_off(at + wanted.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            match self.next().await.expect("more") {
                Message::Binary(bytes) => self.read(&bytes),
                other => panic!("{other:?} instead of {wanted:?}; seen: {:?}", self.seen),
            }
        }
    }

    pub async fn press(&mut self, keys: impl AsRef<[u8]>) {
        let keys = Message::Binary(keys.as_ref().to_vec().into());
        self.socket.send(keys).await.expect("a connection");
    }

    pub async fn say(&mut self, order: Value) {
        self.socket.send(Message::Text(order.to_string().into())).await.expect("a connection");
    }

    /// Reads to the end: returns how the program ended, and checks that the connection closes.
    pub async fn end(&mut self) -> Value {
        let reply = self.reply().await;
        match self.next().await {
            Some(Message::Close(Some(frame))) => {
                assert_eq!(u16::from(frame.code), 1000, "{frame:?}");
            }
            other => panic!("{other:?}"),
        }
        assert!(self.next().await.is_none());
        reply
    }
}
