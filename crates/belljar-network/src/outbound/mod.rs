//! How the server connects to others on somebody's behalf: to sources of datasets, and for code in
//! sandboxes. A name is resolved once, every address is checked ([`address`]), and what was checked
//! is connected to: a second look at the DNS could find something else there.

pub(crate) mod address;
mod names;
pub(crate) mod setting;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls;

pub use names::Dns;
pub(crate) use names::Resolver;

/// How long one of several addresses may take, so that a dead one leaves time for the others.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(6);

/// The first address that answers. They have all been checked.
pub(crate) async fn dial(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
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

/// Why nobody can be believed.
#[derive(Debug)]
pub(crate) enum TlsError {
    NoCertificates(Option<rustls_native_certs::Error>),
    Tls(rustls::Error),
}

/// The certificates that this machine believes, or those that SSL_CERT_FILE names.
pub(crate) async fn certificates_of_this_machine() -> rustls_native_certs::CertificateResult {
    let loaded = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
    loaded.unwrap_or_default()
}

/// Believes the certificates that this machine believes.
pub(crate) async fn tls_of_this_machine() -> Result<TlsConnector, TlsError> {
    let mut found = certificates_of_this_machine().await;
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(TlsError::NoCertificates(found.errors.pop()));
    }
    tls_believing(roots)
}

/// Believes these certificates and no others.
pub(crate) fn tls_believing(roots: rustls::RootCertStore) -> Result<TlsConnector, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
