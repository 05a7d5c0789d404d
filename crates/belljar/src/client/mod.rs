//! A server, as our own commands call it: HTTP/1.1 over TCP, TLS or a UNIX socket, JSON in and out,
//! streams of events, and files either way.
//!
//! A connection is kept for the next request. A stream has one of its own, so that an execution can
//! be interrupted while it is being followed.

mod body;
mod certificates;
mod connection;
mod content;
mod error;
mod events;
mod socket;

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;
use tokio::sync::Notify;

use crate::settings::ClientSettings;
use body::Outgoing;
pub(crate) use body::Pieces;
use connection::Server;
pub(crate) use content::Content;
pub(crate) use error::ClientError;
pub(crate) use events::{Events, Heard};
pub(crate) use socket::{Hearing, Received, Saying};

/// How long a server may take to answer; making a session on a busy machine takes a while.
const ANSWER_PATIENCE: Duration = Duration::from_secs(120);

/// The same where the server works for as long as it takes: the longest that it gives the source of
/// a dataset is a day.
const WORK_PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a server may think about whether it wants a file; who does not know the question, such as
/// an old proxy, never answers it.
const CONTINUE_PATIENCE: Duration = Duration::from_secs(5);

/// How often the progress of an upload is looked at.
const TICK: Duration = Duration::from_millis(100);

/// The largest answer: all output that an execution may keep, escaped.
const MAX_ANSWER: usize = 1 << 30;

/// How long a server that has gone is waited for. Long enough for one to be restarted, or replaced.
pub(crate) const OUTAGE_PATIENCE: Duration = Duration::from_secs(60);

/// Between two attempts to find a server that has gone.
pub(crate) const OUTAGE_PAUSE: Duration = Duration::from_millis(200);

type Sender = SendRequest<Outgoing>;

#[derive(Debug)]
pub(crate) struct Client {
    server: Server,
    authorization: Option<HeaderValue>,
    /// A connection that waits for the next request.
    idle: Mutex<Option<Sender>>,
}

impl Client {
    pub(crate) fn new(settings: &ClientSettings) -> anyhow::Result<Client> {
        let authorization = settings.api_key.as_ref().map(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.reveal()))?;
            value.set_sensitive(true);
            anyhow::Ok(value)
        });
        let authorization = authorization.transpose().context("BELLJAR_API_KEY is no key")?;
        Ok(Client {
            server: Server::new(&settings.server())?,
            authorization,
            idle: Mutex::default(),
        })
    }

    /// The server's address, as people write it.
    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// A link as anybody on this machine can use it; `None` through a socket, where a link that is
    /// only a path leads nowhere.
    pub(crate) fn complete(&self, link: &str) -> Option<String> {
        if link.starts_with('/') { self.server.complete(link) } else { Some(link.to_owned()) }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.call(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.call(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<Value, ClientError> {
        self.call(Method::DELETE, path, None).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        let request = self.request(method, path, "application/json", body);
        self.answer_within(ANSWER_PATIENCE, request).await
    }

    /// A `POST` of work that takes the server a while.
    pub(crate) async fn post_work(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        let request = self.request(Method::POST, path, "application/json", Some(body));
        self.answer_within(WORK_PATIENCE, request).await
    }

    /// A `PUT` of nothing.
    pub(crate) async fn put_nothing(&self, path: &str) -> Result<Value, ClientError> {
        let mut request = self.request(Method::PUT, path, "application/json", None);
        request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        self.answer_within(ANSWER_PATIENCE, request).await
    }

    /// A `PUT` of a file, showing how much of it has gone. It takes as long as it takes, as long as
    /// something moves.
    pub(crate) async fn put(
        &self,
        path: &str,
        mut pieces: Pieces,
        mut progress: impl FnMut(u64),
    ) -> Result<Value, ClientError> {
        let taken = pieces.taken();
        let wanted = Arc::new(Notify::new());
        let mut request = self.request(Method::PUT, path, "application/json", None);
        let kind = HeaderValue::from_static("application/octet-stream");
        request.headers_mut().insert(header::CONTENT_TYPE, kind);
        request.headers_mut().insert(header::EXPECT, HeaderValue::from_static("100-continue"));
        let heard = Arc::clone(&wanted);
        hyper::ext::on_informational(&mut request, move |_| heard.notify_one());
        pieces.wait_for(async move {
            let _ = tokio::time::timeout(CONTINUE_PATIENCE, wanted.notified()).await;
        });
        *request.body_mut() = Outgoing::Pieces(pieces);
        let mut answer = pin!(async {
            // Not kept for the next request: one that is refused early is never sent to its end.
            let (_sender, response) = self.send(request).await?;
            let (parts, body) = response.into_parts();
            self.understand(parts.status, &self.read(body).await?)
        });
        let (mut gone, mut moved) = (0, Instant::now());
        loop {
            if let Ok(answer) = tokio::time::timeout(TICK, answer.as_mut()).await {
                return answer;
            }
            let now_gone = taken.load(Ordering::Relaxed);
            progress(now_gone);
            if now_gone != gone {
                (gone, moved) = (now_gone, Instant::now());
            } else if moved.elapsed() >= ANSWER_PATIENCE {
                return Err(self.silent(ANSWER_PATIENCE));
            }
        }
    }

    /// The content behind `path` from this byte on, if it is still what `tag` says; otherwise, or if
    /// the server knows no ranges, from its beginning.
    pub(crate) async fn content(
        &self,
        path: &str,
        from: u64,
        tag: &str,
    ) -> Result<Content, ClientError> {
        let mut request = self.request(Method::GET, path, "*/*", None);
        if from > 0 {
            let header = |text: &str| HeaderValue::from_str(text).map_err(|_| self.stranger(text));
            let range = header(&format!("bytes={from}-"))?;
            request.headers_mut().insert(header::RANGE, range);
            request.headers_mut().insert(header::IF_RANGE, header(tag)?);
        }
        let begin = async {
            let (sender, response) = self.send(request).await?;
            let (parts, body) = response.into_parts();
            let begins_at = match parts.status {
                StatusCode::OK => 0,
                StatusCode::PARTIAL_CONTENT => from,
                status => {
                    let bytes = self.read(body).await?;
                    self.understand(status, &bytes)?;
                    return Err(self.stranger("it does not send what it has"));
                }
            };
            Ok(Content::new(self.url(), begins_at, body, sender))
        };
        let patience = tokio::time::timeout(ANSWER_PATIENCE, begin);
        patience.await.unwrap_or_else(|_| Err(self.silent(ANSWER_PATIENCE)))
    }

    async fn answer_within(
        &self,
        patience: Duration,
        request: Request<Outgoing>,
    ) -> Result<Value, ClientError> {
        let answer = async {
            let (sender, response) = self.send(request).await?;
            let (parts, body) = response.into_parts();
            let bytes = self.read(body).await?;
            // Read to its end, so the connection can be used again.
            *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
            self.understand(parts.status, &bytes)
        };
        let answer = tokio::time::timeout(patience, answer);
        answer.await.unwrap_or_else(|_| Err(self.silent(patience)))
    }

    /// Asks again and again while there is no server, as there is none while it is restarted.
    pub(crate) async fn call_patiently(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        let begun = Instant::now();
        loop {
            match self.call(method.clone(), path, body).await {
                Err(error) if error.is_outage() && begun.elapsed() < OUTAGE_PATIENCE => {
                    tokio::time::sleep(OUTAGE_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Asks for a stream of events.
    pub(crate) async fn events(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Events, ClientError> {
        let request = self.request(method, path, "text/event-stream", body);
        let begin = async {
            let (sender, response) = self.send(request).await?;
            let (parts, body) = response.into_parts();
            let kind = parts.headers.get(header::CONTENT_TYPE);
            let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-"));
            if parts.status.is_success() && is_stream {
                return Ok(Events::new(self.url(), body, sender));
            }
            let bytes = self.read(body).await?;
            self.understand(parts.status, &bytes)?;
            Err(self.stranger("it does not stream events"))
        };
        let patience = tokio::time::timeout(ANSWER_PATIENCE, begin);
        patience.await.unwrap_or_else(|_| Err(self.silent(ANSWER_PATIENCE)))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        body: Option<&Value>,
    ) -> Request<Outgoing> {
        let bytes = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let mut request = Request::new(Outgoing::Whole(Full::new(bytes)));
        *request.method_mut() = method;
        *request.uri_mut() = self.server.uri(path);
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.server.host());
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        let agent = concat!("belljar/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        if body.is_some() {
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
        }
        if let Some(authorization) = &self.authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        request
    }

    /// Sends a request, on the connection that is there or on a new one.
    async fn send(
        &self,
        mut request: Request<Outgoing>,
    ) -> Result<(Sender, Response<Incoming>), ClientError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut sender) = idle
            && sender.ready().await.is_ok()
        {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((sender, response)),
                Err(mut failed) => match failed.take_message() {
                    // The server had closed it in the meantime, and nothing was sent.
                    Some(unsent) => request = unsent,
                    None => return Err(self.lost(failed.into_error())),
                },
            }
        }
        let mut sender = self.server.connect().await?;
        let response = sender.send_request(request).await.map_err(|error| self.lost(error))?;
        Ok((sender, response))
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, ClientError> {
        match Limited::new(body, MAX_ANSWER).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) => match error.downcast::<hyper::Error>() {
                Ok(error) => Err(self.lost(*error)),
                Err(_) => Err(self.stranger("its answer does not end")),
            },
        }
    }

    /// The value of an answer, or what the server has to say against the request.
    fn understand(&self, status: StatusCode, bytes: &[u8]) -> Result<Value, ClientError> {
        let value = match serde_json::from_slice(bytes) {
            Ok(value) => value,
            Err(_) if bytes.is_empty() && status.is_success() => Value::Null,
            Err(_) => Value::String(String::new()),
        };
        if status.is_success() && !value.is_string() {
            return Ok(value);
        }
        let detail = &value["error"];
        let text = |name: &str| detail[name].as_str().map(str::to_owned);
        match (text("code"), text("message")) {
            (Some(code), Some(message)) if !status.is_success() => {
                Err(ClientError::Refused { status, code, message, hint: text("hint") })
            }
            _ if matches!(status.as_u16(), 502..=504) => {
                Err(ClientError::Proxy { url: self.url(), status })
            }
            _ => Err(self.stranger(&format!("it answers `{status}` in words of its own"))),
        }
    }

    fn lost(&self, error: hyper::Error) -> ClientError {
        if error.is_parse() {
            return self.stranger("it does not speak HTTP");
        }
        ClientError::Lost { url: self.url(), cause: error }
    }

    fn stranger(&self, why: &str) -> ClientError {
        ClientError::Stranger { url: self.url(), why: why.to_owned() }
    }

    fn silent(&self, patience: Duration) -> ClientError {
        ClientError::Silent { url: self.url(), seconds: patience.as_secs() }
    }
}

/// Text as it can stand in a path or a query.
pub(crate) fn escape(text: &str) -> String {
    use std::fmt::Write as _;
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string succeeds.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_can_stand_in_a_path() {
        assert_eq!(escape("ses_0-9.~"), "ses_0-9.~");
        assert_eq!(escape("a b/c?d=é&%"), "a%20b%2Fc%3Fd%3D%C3%A9%26%25");
    }
}
