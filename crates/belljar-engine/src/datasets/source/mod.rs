//! Fetches datasets from other servers. `BELLJAR_DATASET_SOURCES` maps ids, or prefixes of ids, to URLs.
//!
//! ```text
//!   id ─▶ Sources: longest prefix ─▶ Template: URL ─▶ resolve ─▶ check every address ─▶ connect
//!                                       ▲                                                  │
//!                                       └── redirect; our headers stay at the origin ◀── request
//!                                                                                          │
//!                                     Fetched ◀── a bounded channel of chunks ◀── 200 ─────┘
//! ```
//!
//! Ids and redirects are untrusted. An id only fills a placeholder in the operator's URL. Addresses must be
//! public, or the operator allows the host by name. Time, size and the number of redirects are bounded. Secrets
//! are sent to the operator's origin only, and errors name origins, never whole URLs.

mod config;
mod connection;
mod error;
mod name;
mod template;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use belljar_network::outbound::{Connector, HttpUrl};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tokio::sync::mpsc;
use tokio::time::timeout;

use config::DatasetSource;
use connection::SourceConnection;
pub use error::SourceError;

use crate::Dns;

/// Redirects that are followed for one dataset.
const MAX_REDIRECTS: usize = 5;

/// How long a source may send nothing in the middle of a dataset. Before the first byte, only the timeout of the source
/// applies, because some sources create datasets on request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits for an error message of a source: bytes that are read, the time for that, and characters that are shown.
const MAX_MESSAGE: usize = 4 << 10;
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_MESSAGE_SHOWN: usize = 200;

/// Longer ETags and content types are ignored.
const MAX_HEADER: usize = 256;

/// All sources of this server.
#[derive(Default)]
pub struct Sources {
    sources: Vec<DatasetSource>,
    connector: Connector,
    /// Replaces [`IDLE_TIMEOUT`] in tests.
    idle: Option<Duration>,
}

/// The result of a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchOutcome {
    /// All of its content went into the channel.
    Fetched(Fetched),
    /// It still has the given ETag.
    NotModified,
}

/// A dataset that was fetched completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The last part of the id, with an extension if one was found.
    pub file_name: String,
    pub content_type: Option<String>,
    /// Sent with the next fetch.
    pub etag: Option<String>,
    /// Bytes.
    pub size: u64,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sources").field(&self.sources).finish()
    }
}

impl Sources {
    /// Parses the setting: a JSON object, or `@` and the path of a file with one. Secrets are looked up in `env`.
    /// Errors do not repeat values.
    pub fn parse(text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Sources, String> {
        Ok(Sources { sources: config::parse(text, &env)?, ..Sources::default() })
    }

    /// Resolves names with this DNS.
    #[must_use]
    pub fn with_dns(mut self, dns: Arc<Dns>) -> Sources {
        self.connector = Connector::new(dns);
        self
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether a source is configured for this dataset. The source need not have it.
    #[must_use]
    pub fn knows(&self, id: &str) -> bool {
        self.find(id).is_ok()
    }

    /// Fetches a dataset into a channel, at the speed of the reader. The content is complete only if this returns
    /// [`FetchOutcome::Fetched`].
    ///
    /// With the ETag of an earlier fetch, an unchanged dataset is not fetched again.
    pub async fn fetch(
        &self,
        id: &str,
        known_etag: Option<&str>,
        chunks: mpsc::Sender<Bytes>,
    ) -> Result<FetchOutcome, SourceError> {
        let source = self.find(id)?;
        let url = source.url(id)?;
        let fetching = self.fetch_from(source, &url, id, known_etag, &chunks);
        match timeout(source.timeout, fetching).await {
            Ok(answer) => answer,
            Err(_) => Err(SourceError::Timeout {
                origin: url.to_string(),
                seconds: source.timeout.as_secs(),
            }),
        }
    }

    fn find(&self, id: &str) -> Result<&DatasetSource, SourceError> {
        template::check_id(id)?;
        let known = self.sources.iter().filter_map(|source| Some((source.matched(id)?, source)));
        let longest = known.max_by_key(|(length, _)| *length);
        longest.map(|(_, source)| source).ok_or_else(|| SourceError::NoSource { id: id.to_owned() })
    }

    async fn fetch_from(
        &self,
        source: &DatasetSource,
        first: &HttpUrl,
        id: &str,
        known_etag: Option<&str>,
        chunks: &mpsc::Sender<Bytes>,
    ) -> Result<FetchOutcome, SourceError> {
        let known_etag = known_etag.and_then(|etag| HeaderValue::try_from(etag).ok());
        let mut url = first.clone();
        for _ in 0..=MAX_REDIRECTS {
            let request = request(source, first, &url, known_etag.as_ref())?;
            let near_allowed = source.may_be_near(&url);
            let mut connection =
                SourceConnection::open(&self.connector, &url, near_allowed).await?;
            let response = connection.send(request).await?;
            match response.status() {
                StatusCode::OK => {
                    let received = self.receive(source, &url, response, chunks).await?;
                    return Ok(FetchOutcome::Fetched(received.named(id, first.path())));
                }
                StatusCode::NOT_MODIFIED => {
                    return match known_etag {
                        Some(_) => Ok(FetchOutcome::NotModified),
                        None => Err(SourceError::Unconditional304 { origin: url.to_string() }),
                    };
                }
                status if is_redirect(status) => url = redirected(&url, response.headers())?,
                status => return Err(failed(source, &url, status, response.into_body()).await),
            }
        }
        let why = format!("there were more than {MAX_REDIRECTS} of them");
        Err(SourceError::Redirect { origin: first.to_string(), why })
    }

    async fn receive(
        &self,
        source: &DatasetSource,
        url: &HttpUrl,
        response: Response<Incoming>,
        chunks: &mpsc::Sender<Bytes>,
    ) -> Result<Received, SourceError> {
        let (parts, body) = response.into_parts();
        let header = |name: HeaderName| text_of(&parts.headers, &name);
        let encodings = parts.headers.get_all(header::CONTENT_ENCODING);
        if encodings.iter().any(|encoding| !encoding.is_empty() && encoding != "identity") {
            let encoding = header(header::CONTENT_ENCODING).unwrap_or_else(|| "?".into());
            return Err(SourceError::Encoded { origin: url.to_string(), encoding });
        }
        let idle = self.idle.unwrap_or(IDLE_TIMEOUT);
        Ok(Received {
            disposition: header(header::CONTENT_DISPOSITION),
            content_type: header(header::CONTENT_TYPE),
            etag: header(header::ETAG),
            size: receive_body(body, source.max_bytes, idle, url, chunks).await?,
        })
    }
}

/// Moves a body into the channel; returns its size.
async fn receive_body(
    mut body: Incoming,
    limit: u64,
    idle: Duration,
    url: &HttpUrl,
    chunks: &mpsc::Sender<Bytes>,
) -> Result<u64, SourceError> {
    let origin = || url.to_string();
    let expected = body.size_hint().exact();
    if expected.is_some_and(|size| size > limit) {
        return Err(SourceError::TooLarge { limit, size: expected });
    }
    let mut received = 0_u64;
    loop {
        let Ok(frame) = timeout(idle, body.frame()).await else {
            return Err(SourceError::Silent { origin: origin(), seconds: idle.as_secs() });
        };
        let cut_off = |cause| SourceError::CutOff { origin: origin(), received, expected, cause };
        let Some(frame) = frame else {
            let is_whole = expected.is_none_or(|expected| expected == received);
            return if is_whole { Ok(received) } else { Err(cut_off(None)) };
        };
        // Trailers are ignored.
        let Ok(chunk) = frame.map_err(|cause| cut_off(Some(cause)))?.into_data() else {
            continue;
        };
        received += chunk.len() as u64;
        if received > limit {
            return Err(SourceError::TooLarge { limit, size: None });
        }
        chunks.send(chunk).await.map_err(|_| SourceError::Abandoned)?;
    }
}

/// A response whose content was received completely.
struct Received {
    disposition: Option<String>,
    content_type: Option<String>,
    etag: Option<String>,
    size: u64,
}

impl Received {
    fn named(self, id: &str, url_path: &str) -> Fetched {
        let Received { disposition, content_type, etag, size } = self;
        let file_name =
            name::file_name(id, disposition.as_deref(), url_path, content_type.as_deref());
        Fetched { file_name, content_type, etag, size }
    }
}

fn request(
    source: &DatasetSource,
    first: &HttpUrl,
    url: &HttpUrl,
    known_etag: Option<&HeaderValue>,
) -> Result<Request<Empty<Bytes>>, SourceError> {
    let unusable =
        || SourceError::Redirect { origin: url.to_string(), why: "it is not a valid URL".into() };
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = url.path_and_query().parse().map_err(|_| unusable())?;
    let headers = request.headers_mut();
    let agent = concat!("belljar/", env!("CARGO_PKG_VERSION"));
    headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
    headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
    if url.has_origin_of(first) {
        headers.extend(source.headers.clone());
    }
    let host = HeaderValue::try_from(url.authority()).map_err(|_| unusable())?;
    headers.insert(header::HOST, host);
    // The content is stored as it arrives, so it must not be compressed for the transfer.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(etag) = known_etag {
        headers.insert(header::IF_NONE_MATCH, etag.clone());
    }
    Ok(request)
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn redirected(url: &HttpUrl, headers: &HeaderMap) -> Result<HttpUrl, SourceError> {
    let location = headers.get(header::LOCATION).and_then(|location| location.to_str().ok());
    let next = location.ok_or("it has no valid `Location`").and_then(|it| url.redirected(it));
    next.map_err(|why| SourceError::Redirect { origin: url.to_string(), why: why.to_owned() })
}

/// The error for a response with another status.
async fn failed(
    source: &DatasetSource,
    url: &HttpUrl,
    status: StatusCode,
    body: Incoming,
) -> SourceError {
    let line = source.redact(&first_line(body).await);
    // Shortened after redacting, because half a secret would not be found.
    let line = line.chars().take(MAX_MESSAGE_SHOWN).collect();
    SourceError::Status { origin: url.to_string(), status: status.as_u16(), line }
}

/// The first line of a body, if it arrives soon.
async fn first_line(mut body: Incoming) -> String {
    let mut received = Vec::new();
    let reading = async {
        while received.len() < MAX_MESSAGE
            && let Some(Ok(frame)) = body.frame().await
        {
            received.extend_from_slice(frame.data_ref().map_or(&[][..], |chunk| chunk));
        }
    };
    let _ = timeout(MESSAGE_TIMEOUT, reading).await;
    received.truncate(MAX_MESSAGE);
    let text = String::from_utf8_lossy(&received);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).collect()
}

fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let text = headers.get(name)?.to_str().ok()?;
    (text.len() <= MAX_HEADER && !text.is_empty()).then(|| text.to_owned())
}
