//! Where the server itself fetches datasets from: `BELLJAR_DATASET_SOURCES` gives names, or prefixes
//! of names, a URL each.
//!
//! ```text
//!   id ─▶ Sources: longest prefix ─▶ Template: URL ─▶ resolve ─▶ check every address ─▶ connect
//!                                       ▲                                                  │
//!                                       └── redirect: without our headers elsewhere ◀── request
//!                                                                                          │
//!                                     Fetched ◀── a bounded channel of chunks ◀── 200 ─────┘
//! ```
//!
//! Ids come from strangers, and so may redirects. So an id can only fill a hole in the operator's
//! URL; what is connected to is a public address or was allowed by name; and time, size and the
//! number of redirects are bounded. Secrets are read at the start, go to the origin that the
//! operator wrote down, and show up nowhere else: errors name origins and never whole URLs.

mod config;
mod connection;
mod error;
mod name;
mod target;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tokio::sync::mpsc;
use tokio::time::timeout;

use config::Source;
use connection::Connector;
pub use error::SourceError;
use target::Target;

use crate::Dns;
use belljar_network::outbound::Resolver;

/// How often one dataset may be said to be elsewhere.
const MAX_REDIRECTS: usize = 5;

/// How long a source may be silent in the middle of a dataset. Before its beginning it may take all
/// the time it has: some are made when they are asked for.
const IDLE_PATIENCE: Duration = Duration::from_secs(30);

/// How much is read of what a source says against a request, how long, and how much is shown of it.
const MAX_COMPLAINT: usize = 4 << 10;
const COMPLAINT_PATIENCE: Duration = Duration::from_secs(5);
const MAX_COMPLAINT_SHOWN: usize = 200;

/// Longer validators and types are not remembered.
const MAX_REMEMBERED_HEADER: usize = 256;

/// Every source of this server; there may be none.
#[derive(Default)]
pub struct Sources {
    sources: Vec<Source>,
    connector: Connector,
    /// In place of [`IDLE_PATIENCE`], for tests that cannot wait that long.
    idle: Option<Duration>,
}

/// What a source has to say about a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// All of it went into the channel.
    Fetched(Fetched),
    /// It is still the one with the ETag that was given.
    NotModified,
}

/// A dataset that was fetched in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// A plain name for the file: the end of the id, with an extension where one could be found.
    pub file_name: String,
    pub content_type: Option<String>,
    /// For the next time.
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
    /// Understands the setting: a JSON object, or `@` and the path of a file with one. Secrets are
    /// asked of `env`. The error names what is wrong and shows no value.
    pub fn parse(text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Sources, String> {
        Ok(Sources { sources: config::parse(text, &env)?, ..Sources::default() })
    }

    /// Asks this DNS for the addresses of sources.
    #[must_use]
    pub fn with_dns(mut self, dns: Arc<Dns>) -> Sources {
        self.connector.resolver = Resolver::new(dns);
        self
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether some source is responsible for this dataset. It may not have it.
    #[must_use]
    pub fn knows(&self, id: &str) -> bool {
        self.find(id).is_ok()
    }

    /// Fetches a dataset into a channel, as fast as it is taken out there. Its end says nothing:
    /// only [`Answer::Fetched`] means that what came is all there is.
    ///
    /// With the ETag of an earlier time, what has not changed is not fetched again.
    pub async fn fetch(
        &self,
        id: &str,
        known_etag: Option<&str>,
        chunks: mpsc::Sender<Bytes>,
    ) -> Result<Answer, SourceError> {
        let source = self.find(id)?;
        let target = source.target(id)?;
        let fetching = self.fetch_from(source, &target, id, known_etag, &chunks);
        match timeout(source.timeout, fetching).await {
            Ok(answer) => answer,
            Err(_) => Err(SourceError::Timeout {
                origin: target.to_string(),
                seconds: source.timeout.as_secs(),
            }),
        }
    }

    fn find(&self, id: &str) -> Result<&Source, SourceError> {
        target::check_id(id)?;
        let known = self.sources.iter().filter_map(|source| Some((source.knows(id)?, source)));
        let longest = known.max_by_key(|(length, _)| *length);
        longest.map(|(_, source)| source).ok_or_else(|| SourceError::NoSource { id: id.to_owned() })
    }

    async fn fetch_from(
        &self,
        source: &Source,
        first: &Target,
        id: &str,
        known_etag: Option<&str>,
        chunks: &mpsc::Sender<Bytes>,
    ) -> Result<Answer, SourceError> {
        let known_etag = known_etag.and_then(|etag| HeaderValue::try_from(etag).ok());
        let mut target = first.clone();
        for _ in 0..=MAX_REDIRECTS {
            let request = request(source, first, &target, known_etag.as_ref())?;
            let mut connection = self.connector.connect(source, &target).await?;
            let response = connection.ask(request).await?;
            match response.status() {
                StatusCode::OK => {
                    let fetched = self.receive(source, &target, response, chunks).await?;
                    let file_name = fetched.file_name(id, first.path());
                    let Received { content_type, etag, size, .. } = fetched;
                    let fetched = Fetched { file_name, content_type, etag, size };
                    return Ok(Answer::Fetched(fetched));
                }
                StatusCode::NOT_MODIFIED if known_etag.is_some() => return Ok(Answer::NotModified),
                status if is_redirect(status) => target = redirected(&target, response.headers())?,
                status => {
                    let line = source.redact(&complaint(response.into_body()).await);
                    // Shortened afterwards: half a secret would not be recognised.
                    let line = line.chars().take(MAX_COMPLAINT_SHOWN).collect();
                    let origin = target.to_string();
                    return Err(SourceError::Status { origin, status: status.as_u16(), line });
                }
            }
        }
        let why = format!("it was more than {MAX_REDIRECTS} times");
        Err(SourceError::Redirect { origin: first.to_string(), why })
    }

    async fn receive(
        &self,
        source: &Source,
        target: &Target,
        response: Response<Incoming>,
        chunks: &mpsc::Sender<Bytes>,
    ) -> Result<Received, SourceError> {
        let origin = || target.to_string();
        let (parts, mut body) = response.into_parts();
        let header = |name: HeaderName| text_of(&parts.headers, &name);
        let encodings = parts.headers.get_all(header::CONTENT_ENCODING);
        if encodings.iter().any(|encoding| !encoding.is_empty() && encoding != "identity") {
            let encoding = header(header::CONTENT_ENCODING).unwrap_or_else(|| "?".into());
            return Err(SourceError::Encoded { origin: origin(), encoding });
        }
        let limit = source.max_bytes;
        let expected = body.size_hint().exact();
        if expected.is_some_and(|size| size > limit) {
            return Err(SourceError::TooLarge { limit, size: expected });
        }
        let idle = self.idle.unwrap_or(IDLE_PATIENCE);
        let mut received = 0_u64;
        loop {
            let Ok(frame) = timeout(idle, body.frame()).await else {
                return Err(SourceError::Silent { origin: origin(), seconds: idle.as_secs() });
            };
            let cut_off =
                |cause| SourceError::CutOff { origin: origin(), received, expected, cause };
            let Some(frame) = frame else {
                if expected.is_some_and(|expected| expected != received) {
                    return Err(cut_off(None));
                }
                break;
            };
            // Trailers are of no interest.
            let Ok(chunk) = frame.map_err(|cause| cut_off(Some(cause)))?.into_data() else {
                continue;
            };
            received += chunk.len() as u64;
            if received > limit {
                return Err(SourceError::TooLarge { limit, size: None });
            }
            chunks.send(chunk).await.map_err(|_| SourceError::Abandoned)?;
        }
        Ok(Received {
            disposition: header(header::CONTENT_DISPOSITION),
            content_type: header(header::CONTENT_TYPE),
            etag: header(header::ETAG),
            size: received,
        })
    }
}

/// What came, before it has a name.
struct Received {
    disposition: Option<String>,
    content_type: Option<String>,
    etag: Option<String>,
    size: u64,
}

impl Received {
    fn file_name(&self, id: &str, url_path: &str) -> String {
        name::file_name(id, self.disposition.as_deref(), url_path, self.content_type.as_deref())
    }
}

fn request(
    source: &Source,
    first: &Target,
    target: &Target,
    known_etag: Option<&HeaderValue>,
) -> Result<Request<Empty<Bytes>>, SourceError> {
    let unusable =
        || SourceError::Redirect { origin: target.to_string(), why: "it is no valid URL".into() };
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = target.path_and_query.parse().map_err(|_| unusable())?;
    let headers = request.headers_mut();
    let agent = concat!("belljar/", env!("CARGO_PKG_VERSION"));
    headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
    headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
    if target.has_origin_of(first) {
        headers.extend(source.headers.clone());
    }
    let host = HeaderValue::try_from(target.authority()).map_err(|_| unusable())?;
    headers.insert(header::HOST, host);
    // What is stored is what the file is; nobody unpacks it on the way.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(etag) = known_etag {
        headers.insert(header::IF_NONE_MATCH, etag.clone());
    }
    Ok(request)
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn redirected(target: &Target, headers: &HeaderMap) -> Result<Target, SourceError> {
    let location = headers.get(header::LOCATION).and_then(|location| location.to_str().ok());
    let next = location.ok_or("it does not say where").and_then(|it| target.redirected(it));
    next.map_err(|why| SourceError::Redirect { origin: target.to_string(), why: why.to_owned() })
}

/// The first line of what a source has to say, if it says it soon.
async fn complaint(mut body: Incoming) -> String {
    let mut said = Vec::new();
    let reading = async {
        while said.len() < MAX_COMPLAINT
            && let Some(Ok(frame)) = body.frame().await
        {
            said.extend_from_slice(frame.data_ref().map_or(&[][..], |chunk| chunk));
        }
    };
    let _ = timeout(COMPLAINT_PATIENCE, reading).await;
    said.truncate(MAX_COMPLAINT);
    let text = String::from_utf8_lossy(&said);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).collect()
}

fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let text = headers.get(name)?.to_str().ok()?;
    (text.len() <= MAX_REMEMBERED_HEADER && !text.is_empty()).then(|| text.to_owned())
}
