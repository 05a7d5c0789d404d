//! Sends one request to a source.
//!
//! hyper is used because clients such as reqwest have their own resolver: for every redirect, the connection must go to
//! exactly the addresses that [`Connector`] has checked.

use std::time::Duration;

use belljar_network::outbound::{ConnectError, Connector, HttpUrl};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::error::SourceError;

/// Timeout for name resolution, connecting and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// How large the head of a response may be; hyper also limits chunks of the body to it.
const MAX_HEAD: usize = 64 << 10;

/// A connection to one source, for one request.
pub(super) struct SourceConnection {
    sender: SendRequest<Empty<Bytes>>,
    origin: String,
    /// Moves the bytes until this is dropped.
    _task: JoinSet<()>,
}

impl SourceConnection {
    /// Connects to the host of `url`. With `near_allowed`, also to an address that is not public.
    pub(super) async fn open(
        connector: &Connector,
        url: &HttpUrl,
        near_allowed: bool,
    ) -> Result<SourceConnection, SourceError> {
        let origin = url.to_string();
        let stream = match timeout(CONNECT_TIMEOUT, connector.connect(url, near_allowed)).await {
            Ok(connected) => connected.map_err(|error| from_connect(url, error))?,
            Err(_) => {
                let seconds = CONNECT_TIMEOUT.as_secs();
                return Err(SourceError::ConnectTimeout { origin, seconds });
            }
        };
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|cause| SourceError::Lost { origin: origin.clone(), cause })?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            // The same errors are also returned by the response and its body.
            let _ = connection.await;
        });
        Ok(SourceConnection { sender, origin, _task: task })
    }

    pub(super) async fn send(
        &mut self,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, SourceError> {
        self.sender.send_request(request).await.map_err(|cause| {
            let origin = self.origin.clone();
            if cause.is_parse() {
                SourceError::NotHttp { origin, cause }
            } else {
                SourceError::Lost { origin, cause }
            }
        })
    }
}

fn from_connect(url: &HttpUrl, error: ConnectError) -> SourceError {
    let (host, origin) = (url.host().bare(), url.to_string());
    match error {
        ConnectError::Resolve(cause) => SourceError::Resolve { host, cause },
        ConnectError::RefusedAddress(refused) => SourceError::RefusedAddress {
            host,
            kind: refused.kind,
            can_be_allowed: refused.can_be_allowed,
        },
        ConnectError::Connect(cause) => SourceError::Connect { origin, cause },
        ConnectError::Untrusted(cause) => SourceError::Untrusted { origin, cause },
        ConnectError::Tls(error) => SourceError::Tls(error),
    }
}
