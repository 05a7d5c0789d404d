//! Connects to the host of a URL after its addresses were checked.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, RootCertStore};

use super::address::{self, RefusedAddress};
use super::{Dns, HttpUrl, Resolver, TlsError, dial, system_tls, tls};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("failed to resolve the name")]
    Resolve(#[source] io::Error),
    #[error("the host has {} address", .0.kind)]
    RefusedAddress(RefusedAddress),
    #[error("failed to connect")]
    Connect(#[source] io::Error),
    /// The host has no certificate that is trusted here.
    #[error("the certificate is not trusted")]
    Untrusted(#[source] io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// An open connection, with TLS if the URL is https.
pub trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// Opens connections. It has its own resolver and trusted certificates.
#[derive(Default)]
pub struct Connector {
    resolver: Resolver,
    /// Loaded with the first https URL.
    tls: OnceCell<TlsConnector>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("resolver", &self.resolver).finish_non_exhaustive()
    }
}

impl Connector {
    #[must_use]
    pub fn new(dns: Arc<Dns>) -> Connector {
        Connector { resolver: Resolver::new(dns), tls: OnceCell::new() }
    }

    /// Resolves this name to these addresses, without the hosts file and the DNS.
    #[must_use]
    pub fn with_name(mut self, name: &str, addresses: &[IpAddr]) -> Connector {
        self.resolver = self.resolver.with_name(name, addresses);
        self
    }

    /// Trusts these certificates instead of those of this machine.
    pub fn with_certificates(mut self, roots: RootCertStore) -> Result<Connector, TlsError> {
        self.tls = OnceCell::new_with(Some(tls::trusting(roots)?));
        Ok(self)
    }

    /// Connects to the host of `url`. Addresses that are near (see [`address`]) are refused unless
    /// `near_allowed`. The caller limits the time.
    pub async fn connect(
        &self,
        url: &HttpUrl,
        near_allowed: bool,
    ) -> Result<Box<dyn Connection>, ConnectError> {
        let host = url.host().bare();
        let resolved = self.resolver.resolve(&host, url.port()).await;
        let addresses = resolved.map_err(ConnectError::Resolve)?;
        address::check(&addresses, |_| near_allowed).map_err(|refused| {
            // The caller must not learn the addresses, but the operator may need them.
            tracing::warn!(%host, ?addresses, "refused to connect to {} address", refused.kind);
            ConnectError::RefusedAddress(refused)
        })?;
        let stream = dial(&addresses).await.map_err(ConnectError::Connect)?;
        if !url.is_https() {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(host)
            .map_err(|why| ConnectError::Connect(io::Error::other(why)))?;
        let tls = self.tls.get_or_try_init(system_tls).await?;
        let connected = tls.connect(name, stream).await.map_err(handshake_failed)?;
        Ok(Box::new(connected))
    }
}

fn handshake_failed(cause: io::Error) -> ConnectError {
    let inner = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(_)) => ConnectError::Untrusted(cause),
        _ => ConnectError::Connect(cause),
    }
}
