//! How a source is reached: resolved once, every address checked, and connected to exactly what was
//! checked. A second look at the DNS could find something else there.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::ServerName;

use super::address;
use super::config::Source;
use super::error::SourceError;
use super::target::Target;

/// How long it may take until a source is connected to, its name and its certificate included.
const CONNECT_PATIENCE: Duration = Duration::from_secs(20);

/// How long one of several addresses may take, so that a dead one leaves time for the others.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(6);

/// How large the head of an answer may be; pieces of the body are not larger either.
const MAX_HEAD: usize = 64 << 10;

/// Makes connections, and keeps what that needs.
#[derive(Default)]
pub(super) struct Connector {
    /// Read when the first source with https is asked.
    tls: OnceCell<TlsConnector>,
    /// What tests say in place of the DNS.
    #[cfg(test)]
    pub(super) names: std::collections::HashMap<String, Vec<std::net::IpAddr>>,
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
        let addresses = self.resolve(target).await.map_err(not_found)?;
        if addresses.is_empty() {
            return Err(not_found(io::Error::other("the name has no address")));
        }
        let checked = address::check(&target.host, &addresses, source.may_be_near(target));
        checked.inspect_err(|_| {
            // For the operator, who may have to find out why a name is what it is.
            tracing::warn!(source.host = %target.host, ?addresses, "a dataset's source is refused");
        })?;
        let not_connected = |cause| SourceError::Connect { origin: target.to_string(), cause };
        let stream = dial(&addresses).await.map_err(not_connected)?;
        if !target.https {
            return converse(stream, target).await;
        }
        let name = ServerName::try_from(target.host.clone())
            .map_err(|why| not_connected(io::Error::other(why)))?;
        let tls = self.tls.get_or_try_init(tls_of_this_machine).await?;
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

    async fn resolve(&self, target: &Target) -> io::Result<Vec<SocketAddr>> {
        #[cfg(test)]
        if let Some(known) = self.names.get(&target.host) {
            return Ok(known.iter().map(|ip| SocketAddr::new(*ip, target.port)).collect());
        }
        Ok(tokio::net::lookup_host((target.host.as_str(), target.port)).await?.collect())
    }

    /// Believes these certificates and no others.
    #[cfg(test)]
    pub(super) fn believe(&self, roots: rustls::RootCertStore) {
        let set = self.tls.set(connector_for(roots).unwrap());
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

/// The first address that answers. They have all been checked.
async fn dial(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match timeout(ADDRESS_PATIENCE, TcpStream::connect(*address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(cause)) => failure = cause,
            Err(_) => failure = io::Error::from(io::ErrorKind::TimedOut),
        }
    }
    Err(failure)
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

/// Believes the certificates that this machine believes, or those that SSL_CERT_FILE names.
async fn tls_of_this_machine() -> Result<TlsConnector, SourceError> {
    let loaded = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
    let mut found = loaded.unwrap_or_default();
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(SourceError::NoCertificates { cause: found.errors.pop() });
    }
    connector_for(roots)
}

fn connector_for(roots: rustls::RootCertStore) -> Result<TlsConnector, SourceError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(SourceError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
