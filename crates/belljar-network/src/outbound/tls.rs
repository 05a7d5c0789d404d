//! TLS as a client, with the certificates that this machine trusts.

use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{self, RootCertStore};

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("this machine has no trusted certificates; name a file with some in SSL_CERT_FILE")]
    NoCertificates(#[source] Option<rustls_native_certs::Error>),
    #[error("failed to set up TLS")]
    Setup(#[source] rustls::Error),
}

/// The certificates that this machine trusts, or those in the file that SSL_CERT_FILE names.
pub(crate) async fn system_certificates() -> rustls_native_certs::CertificateResult {
    let loaded = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
    loaded.unwrap_or_default()
}

/// Trusts the [`system_certificates`].
pub(crate) async fn system_tls() -> Result<TlsConnector, TlsError> {
    let mut found = system_certificates().await;
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(TlsError::NoCertificates(found.errors.pop()));
    }
    trusting(roots)
}

/// Trusts these certificates and no others.
pub(crate) fn trusting(roots: RootCertStore) -> Result<TlsConnector, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
