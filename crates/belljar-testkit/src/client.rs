//! An HTTP client: one connection per request, and a time limit for every wait.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

use crate::wait::PATIENCE;

/// Where a server listens.
#[derive(Debug, Clone)]
pub enum Target {
    Nowhere,
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Target {
    /// Parses the address that the server prints.
    pub fn parse(url: &str) -> Target {
        if let Some(path) = url.strip_prefix("unix:") {
            return Target::Unix(path.into());
        }
        let (_, address) = url.split_once("://").expect("an address");
        Target::Tcp(address.parse().expect("an address"))
    }
}

/// A client of a server, with or without a key.
#[derive(Debug, Clone)]
pub struct Client {
    pub target: Target,
    pub key: Option<String>,
}

pub trait Wire: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Wire for T {}

impl Client {
    pub fn new(target: Target) -> Client {
        Client { target, key: None }
    }

    pub fn with_key(&self, key: &str) -> Client {
        Client { key: Some(key.to_owned()), ..self.clone() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path, "")).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path, "")).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path, body.to_string())).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::PATCH, path, body.to_string())).await
    }

    /// A request with a body of JSON, or none.
    pub fn request(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Request<Full<Bytes>> {
        let body = body.into();
        let host = match &self.target {
            Target::Tcp(address) => address.to_string(),
            _ => "belljar".into(),
        };
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        request.body(Full::new(body)).expect("a request")
    }

    /// Sends a request on a new connection and reads the whole answer.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let what = format!("{} {}", request.method(), request.uri());
        let answered = tokio::time::timeout(PATIENCE, async {
            let mut connection = self.connect().await;
            connection.send(request).await
        });
        answered.await.unwrap_or_else(|_| panic!("no answer to {what}"))
    }

    pub async fn connect(&self) -> Connection {
        Connection::over(self.dial().await).await
    }

    /// A bare connection.
    pub async fn dial(&self) -> Pin<Box<dyn Wire>> {
        match &self.target {
            Target::Nowhere => panic!("it does not listen yet"),
            Target::Tcp(address) => {
                let stream = TcpStream::connect(address).await.expect("it listens");
                stream.set_nodelay(true).expect("a socket");
                Box::pin(stream)
            }
            Target::Unix(path) => Box::pin(UnixStream::connect(path).await.expect("it listens")),
        }
    }

    /// Follows a stream of events from its beginning, or from where the path says.
    pub async fn follow(&self, path: &str) -> Events {
        self.stream(self.request(Method::GET, path, "")).await
    }

    /// Sends a body and follows the events of the answer.
    pub async fn post_stream(&self, path: &str, body: Value) -> Events {
        self.stream(self.request(Method::POST, path, body.to_string())).await
    }

    pub async fn stream(&self, mut request: Request<Full<Bytes>>) -> Events {
        let accept = "text/event-stream".parse().expect("a value");
        request.headers_mut().insert(header::ACCEPT, accept);
        let what = format!("{} {}", request.method(), request.uri());
        let opened = tokio::time::timeout(PATIENCE, async {
            let mut connection = self.connect().await;
            let response = connection.sender.send_request(request).await.expect("an answer");
            (connection, response)
        });
        let (connection, response) = opened.await.unwrap_or_else(|_| panic!("no answer: {what}"));
        if response.status() != StatusCode::OK {
            panic!("{what}: {}", Answer::read(response).await);
        }
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        Events { body: response.into_body(), buffer: Vec::new(), _connection: connection }
    }
}

/// A connection that can carry several requests, one after another; closed when dropped.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Connection {
    pub async fn over(wire: Pin<Box<dyn Wire>>) -> Connection {
        let (sender, connection) =
            http1::handshake(TokioIo::new(wire)).await.expect("a connection");
        let driver = tokio::spawn(async move {
            let _ = connection.await;
        });
        Connection { sender, driver }
    }

    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Answer {
        self.try_send(request).await.expect("an answer")
    }

    pub async fn try_send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Answer> {
        self.sender.ready().await?;
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let answer = Answer::read(self.sender.send_request(request).await?).await;
        crate::openapi::check(&method, &path, answer.status);
        Ok(answer)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// An answer of the server.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    async fn read(response: Response<Incoming>) -> Answer {
        let (head, body) = response.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    /// The body as JSON; panics if the status is another one.
    #[track_caller]
    pub fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self}");
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    #[track_caller]
    pub fn text(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self}");
        String::from_utf8(self.body.to_vec()).expect("text")
    }

    /// The message of an error with this status and code. All errors are JSON.
    #[track_caller]
    pub fn error(&self, status: u16, code: &str) -> String {
        let body = self.json(status);
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/json", "{self}");
        assert_eq!(body["error"]["code"], code, "{self}");
        let message = body["error"]["message"].as_str().expect("a message");
        assert!(!message.is_empty(), "{self}");
        message.to_owned()
    }

    /// Seconds to wait before asking again.
    #[track_caller]
    pub fn retry_after(&self) -> u32 {
        let value = self.headers.get(header::RETRY_AFTER);
        let value = value.unwrap_or_else(|| panic!("no Retry-After: {self}"));
        value.to_str().expect("text").parse().expect("seconds")
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        let shown: String = body.chars().take(2000).collect();
        write!(f, "{} {shown}", self.status)
    }
}

/// A stream of events, read as it arrives. Dropping it closes the connection.
pub struct Events {
    body: Incoming,
    buffer: Vec<u8>,
    _connection: Connection,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub name: String,
    pub id: Option<u64>,
    pub data: Value,
}

impl Events {
    /// The next event; `None` at the end.
    pub async fn next(&mut self) -> Option<Event> {
        let reading = tokio::time::timeout(PATIENCE, self.read());
        reading.await.expect("events keep coming")
    }

    async fn read(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let block = String::from_utf8(block).expect("events are text");
                match parse(&block) {
                    Some(event) => return Some(event),
                    // Only keeps the connection alive.
                    None => continue,
                }
            }
            match self.body.frame().await {
                Some(frame) => {
                    let data = frame.expect("the stream is whole").into_data();
                    self.buffer.extend(data.expect("no trailers"));
                }
                None => {
                    assert!(self.buffer.is_empty(), "half an event");
                    return None;
                }
            }
        }
    }

    /// All events that are left.
    pub async fn rest(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// Skips to the next event with this name.
    pub async fn until(&mut self, name: &str) -> Event {
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("no `{name}` came"));
            if event.name == name {
                return event;
            }
        }
    }
}

/// `None` for a comment.
fn parse(block: &str) -> Option<Event> {
    let mut event = Event { name: String::new(), id: None, data: Value::Null };
    for line in block.lines().filter(|line| !line.is_empty()) {
        let (field, value) = line.split_once(": ").or_else(|| line.split_once(':'))?;
        match field {
            "" => return None,
            "event" => event.name = value.to_owned(),
            "id" => event.id = Some(value.parse().expect("a position")),
            "data" => event.data = serde_json::from_str(value).expect("JSON"),
            other => panic!("unknown field {other}"),
        }
    }
    Some(event)
}

/// What was printed on a stream, put together from its events.
pub fn printed(events: &[Event], name: &str) -> String {
    let of_it = events.iter().filter(|event| event.name == name);
    of_it.map(|event| event.data["text"].as_str().expect("text")).collect()
}
