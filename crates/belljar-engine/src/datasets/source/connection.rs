//! How a source is reached, and asked.

use std::io;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::ServerName;

use super::config::Source;
use super::error::SourceError;
use super::target::Target;
use belljar_network::outbound::{self, Resolver, address};

/// How long it may take until a source is connected to, its name and its certificate included.
const CONNECT_PATIENCE: Duration = Duration::from_secs(20);

/// How large the head of an answer may be; pieces of the body are not larger either.
const MAX_HEAD: usize = 64 << 10;

/// Makes connections, and keeps what that needs.
#[derive(Default)]
pub(super) struct Connector {
    /// Read when the first source with https is asked.
    tls: OnceCell<TlsConnector>,
    pub(super) resolver: Resolver,
}

/// A connection to one source, for one request.
pub(super) struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    origin: String,
    /// Moves the bytes; ends with us.
    _task: JoinSet<()>,
}

impl Connector {
    pub(super) async fn connect(
        &self,
        source: &Source,
        target: &Target,
    ) -> Result<Connection, SourceError> {
        match timeout(CONNECT_PATIENCE, self.try_connect(source, target)).await {
            Ok(connected) => connected,
            Err(_) => Err(SourceError::ConnectTimeout {
                origin: target.to_string(),
                seconds: CONNECT_PATIENCE.as_secs(),
            }),
        }
    }

    async fn try_connect(
        &self,
        source: &Source,
        target: &Target,
    ) -> Result<Connection, SourceError> {
        let not_found = |cause| SourceError::Resolve { host: target.host.clone(), cause };
        let addresses =
            self.resolver.resolve(&target.host, target.port).await.map_err(not_found)?;
        let checked = address::check(&addresses, |_| source.may_be_near(target));
        checked.map_err(|refused| {
            // For the operator, who may have to find out why a name is what it is.
            tracing::warn!(source.host = %target.host, ?addresses, "a dataset's source is refused");
            SourceError::RefusedAddress {
                host: target.host.clone(),
                kind: refused.kind,
                can_be_allowed: refused.can_be_allowed,
            }
        })?;
        let not_connected = |cause| SourceError::Connect { origin: target.to_string(), cause };
        let stream = outbound::dial(&addresses).await.map_err(not_connected)?;
        if !target.https {
            return converse(stream, target).await;
        }
        let name = ServerName::try_from(target.host.clone())
            .map_err(|why| not_connected(io::Error::other(why)))?;
        let tls = self.tls.get_or_try_init(outbound::tls_of_this_machine).await?;
        let shaken = tls.connect(name, stream).await.map_err(|cause| {
            let error = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            match error {
                Some(rustls::Error::InvalidCertificate(_)) => {
                    SourceError::Untrusted { origin: target.to_string(), cause }
                }
                _ => not_connected(cause),
            }
        })?;
        converse(shaken, target).await
    }

    /// Believes these certificates and no others.
    #[cfg(test)]
    pub(super) fn believe(&self, roots: rustls::RootCertStore) {
        let set = self.tls.set(outbound::tls_believing(roots).unwrap());
        assert!(set.is_ok(), "it believes others already");
    }
}

impl Connection {
    pub(super) async fn ask(
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

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    target: &Target,
) -> Result<Connection, SourceError> {
    let origin = target.to_string();
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|cause| SourceError::Lost { origin: origin.clone(), cause })?;
    let mut task = JoinSet::new();
    task.spawn(async move {
        // What goes wrong is told to whoever waits for the answer or reads its body.
        let _ = connection.await;
    });
    Ok(Connection { sender, origin, _task: task })
}
