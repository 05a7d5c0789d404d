//! How the server connects to others on somebody's behalf: to sources of datasets, and for code in
//! sandboxes. A name is resolved once, every address is checked ([`address`]), and what was checked
//! is connected to: a second look at the DNS could find something else there.

pub mod address;
mod names;
pub mod setting;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls;

pub use names::{Dns, Resolver};

/// How long one of several addresses may take, so that a dead one leaves time for the others.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(6);

/// The first address that answers. They have all been checked.
pub async fn dial(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
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

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("this machine has no certificates to believe in; SSL_CERT_FILE names a file with some")]
    NoCertificates(#[source] Option<rustls_native_certs::Error>),
    #[error("failed to set up TLS")]
    Tls(#[source] rustls::Error),
}

/// The certificates that this machine believes, or those that SSL_CERT_FILE names.
pub async fn certificates_of_this_machine() -> rustls_native_certs::CertificateResult {
    let loaded = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
    loaded.unwrap_or_default()
}

/// Believes the certificates that this machine believes.
pub async fn tls_of_this_machine() -> Result<TlsConnector, TlsError> {
    let mut found = certificates_of_this_machine().await;
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(TlsError::NoCertificates(found.errors.pop()));
    }
    tls_believing(roots)
}

/// Believes these certificates and no others.
pub fn tls_believing(roots: rustls::RootCertStore) -> Result<TlsConnector, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
