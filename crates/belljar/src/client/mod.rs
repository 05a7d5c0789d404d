//! The HTTP client of our own commands: JSON requests, streams of events, files both ways, WebSockets.
//!
//! reqwest does HTTP/1.1 over TCP, TLS or a UNIX socket. No proxy is used and no redirect is followed. A request has a
//! time limit until its response begins. A stream has no time limit while data arrives.

mod certificates;
mod content;
mod error;
mod events;
mod server;
mod socket;
mod upload;

use std::time::{Duration, Instant};

use anyhow::Context;
use belljar_sys::privileges;
use bytes::Bytes;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode, redirect, retry};
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::sync::OnceCell;

use crate::settings::ClientSettings;
pub(crate) use content::Content;
pub(crate) use error::ClientError;
pub(crate) use events::{Events, ServerEvent};
use server::Server;
pub(crate) use socket::{Received, SocketReceiver, SocketSender};
pub(crate) use upload::Upload;

/// How long connecting may take, including the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a server may take to respond; creating a session on a busy machine takes a while.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

/// The same for requests that fetch a dataset: a server waits for a source for a day at most.
const WORK_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The largest response: all output that an execution may keep, escaped.
const MAX_RESPONSE: usize = 1 << 30;

/// How long to wait for a lost server: long enough to restart or replace it.
pub(crate) const OUTAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause between two attempts to reach a lost server.
pub(crate) const OUTAGE_PAUSE: Duration = Duration::from_millis(200);

/// A client of one server.
#[derive(Debug)]
pub(crate) struct Client {
    server: Server,
    http: reqwest::Client,
    /// Set once the process behind the local socket is known to be this user's.
    peer_checked: OnceCell<()>,
}

impl Client {
    pub(crate) fn new(settings: &ClientSettings) -> anyhow::Result<Client> {
        let server = Server::new(&settings.server())?;
        let mut headers = HeaderMap::new();
        if let Some(key) = &settings.api_key {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.reveal()))
                .context("BELLJAR_API_KEY cannot be sent in a header")?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .no_proxy()
            .http1_only()
            .tls_backend_preconfigured(certificates::tls_config(server.is_tls())?);
        if let Some(socket) = server.socket() {
            builder = builder.unix_socket(socket);
        }
        let http = builder.build().context("failed to set up HTTP")?;
        Ok(Client { server, http, peer_checked: OnceCell::new() })
    }

    /// The server's URL, as users write it.
    pub(crate) fn url(&self) -> String {
        self.server.shown().to_owned()
    }

    /// A link that other programs on this machine can use; `None` if it is only a path and the server is behind a socket.
    pub(crate) fn complete(&self, link: &str) -> Option<String> {
        if link.starts_with('/') { self.server.link(link) } else { Some(link.to_owned()) }
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

    /// A `POST` that takes the server long.
    pub(crate) async fn post_work(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        let request = self.json_request(Method::POST, path, Some(body))?;
        self.value_within(WORK_TIMEOUT, request).await
    }

    /// A `PUT` without content.
    pub(crate) async fn put_nothing(&self, path: &str) -> Result<Value, ClientError> {
        let request = self.json_request(Method::PUT, path, None)?;
        self.value_within(RESPONSE_TIMEOUT, request.header(header::CONTENT_LENGTH, "0")).await
    }

    /// Repeats a request while the server cannot be reached, for example while it is restarted.
    pub(crate) async fn call_patiently(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        let begun = Instant::now();
        loop {
            match self.call(method.clone(), path, body).await {
                Err(error) if error.is_outage() && begun.elapsed() < OUTAGE_TIMEOUT => {
                    tokio::time::sleep(OUTAGE_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// The content of `path` from byte `from` on, if its tag is still `tag`. If the tag has changed, or if a proxy
    /// ignores ranges, the content starts at its beginning.
    pub(crate) async fn content(
        &self,
        path: &str,
        from: u64,
        tag: &str,
    ) -> Result<Content, ClientError> {
        let mut request = self.request(Method::GET, path, "*/*")?;
        if from > 0 {
            let range = format!("bytes={from}-");
            request = request.header(header::RANGE, range).header(header::IF_RANGE, tag);
        }
        within(self, RESPONSE_TIMEOUT, async {
            let response = self.send(request).await?;
            let begins_at = match response.status() {
                StatusCode::OK => 0,
                StatusCode::PARTIAL_CONTENT => from,
                _ => {
                    self.value(response).await?;
                    return Err(self.not_belljar("it does not send the content"));
                }
            };
            Ok(Content::new(self.url(), begins_at, response))
        })
        .await
    }

    /// Opens a stream of events.
    pub(crate) async fn events(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Events, ClientError> {
        let mut request = self.request(method, path, "text/event-stream")?;
        if let Some(body) = body {
            request = request.json(body);
        }
        within(self, RESPONSE_TIMEOUT, async {
            let response = self.send(request).await?;
            let kind = response.headers().get(header::CONTENT_TYPE);
            let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-"));
            if response.status().is_success() && is_stream {
                return Ok(Events::new(self.url(), response));
            }
            self.value(response).await?;
            Err(self.not_belljar("it does not stream events"))
        })
        .await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        self.value_within(RESPONSE_TIMEOUT, self.json_request(method, path, body)?).await
    }

    async fn value_within(
        &self,
        timeout: Duration,
        request: RequestBuilder,
    ) -> Result<Value, ClientError> {
        within(self, timeout, async { self.value(self.send(request).await?).await }).await
    }

    fn json_request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<RequestBuilder, ClientError> {
        let request = self.request(method, path, "application/json")?;
        Ok(match body {
            Some(body) => request.json(body),
            None => request,
        })
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
    ) -> Result<RequestBuilder, ClientError> {
        let url = self.server.address(path)?;
        Ok(self.http.request(method, url).header(header::ACCEPT, accept))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        self.peer_checked.get_or_try_init(|| self.check_peer()).await?;
        request.send().await.map_err(|error| self.failed(&error))
    }

    /// The socket of the local server must belong to a process of the same user. reqwest does not give access to its
    /// connection, so this check makes its own. No other user can replace the socket in between, because its directory
    /// belongs to this user.
    async fn check_peer(&self) -> Result<(), ClientError> {
        let Some(path) = self.server.own_socket() else { return Ok(()) };
        let stream = UnixStream::connect(path).await;
        let stream = stream.map_err(|cause| ClientError::of_io(&cause, &self.server))?;
        let (uid, _) = privileges::own_ids();
        if stream.peer_cred().is_ok_and(|peer| peer.uid() == uid) {
            return Ok(());
        }
        Err(ClientError::ForeignSocket { path: path.to_owned() })
    }

    /// Reads a response: its value, or the server's error.
    async fn value(&self, response: Response) -> Result<Value, ClientError> {
        let status = response.status();
        self.value_of(status, &self.read(response).await?)
    }

    async fn read(&self, mut response: Response) -> Result<Bytes, ClientError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(&error))? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_RESPONSE {
                return Err(self.not_belljar("its response is too large"));
            }
        }
        Ok(bytes.into())
    }

    fn value_of(&self, status: StatusCode, bytes: &[u8]) -> Result<Value, ClientError> {
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
            _ => Err(self.not_belljar(&format!("it answers `{status}` without a known error"))),
        }
    }

    fn failed(&self, error: &reqwest::Error) -> ClientError {
        ClientError::of_request(error, &self.server)
    }

    fn not_belljar(&self, why: &str) -> ClientError {
        ClientError::NotBelljar { url: self.url(), why: why.to_owned() }
    }

    fn silent(&self, timeout: Duration) -> ClientError {
        ClientError::Silent { url: self.url(), seconds: timeout.as_secs() }
    }
}

async fn within<T>(
    client: &Client,
    timeout: Duration,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| Err(client.silent(timeout)))
}

/// Escapes text for a path or a query.
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
    fn reserved_characters_are_escaped() {
        assert_eq!(escape("ses_0-9.~"), "ses_0-9.~");
        assert_eq!(escape("a b/c?d=é&%"), "a%20b%2Fc%3Fd%3D%C3%A9%26%25");
    }
}
