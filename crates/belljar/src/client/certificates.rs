//! Which certificates of servers are accepted: those that this machine trusts, or that SSL_CERT_FILE names.
//!
//! `openssl req -x509` makes a certificate that is its own authority (`CA:TRUE`) and is used by a server as it is.
//! curl and Python accept it where it is trusted; webpki refuses every certificate of an authority that a server shows as
//! its own. [`SelfSigned`] accepts exactly that case: the server shows a certificate that is one of the trusted ones, byte for
//! byte. Its dates and its names are checked as always. That lets nobody in who was refused before: who has the key of a
//! trusted authority can sign any other certificate with it.

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// What checks the certificates of servers.
pub(super) fn verifier(provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let trusted: HashSet<CertificateDer<'static>> = found.certs.iter().cloned().collect();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        bail!(
            "this machine has no certificates to believe in{why}; SSL_CERT_FILE names a file with \
             some"
        );
    }
    let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .context("failed to set up TLS")?;
    Ok(Arc::new(SelfSigned { webpki, trusted }))
}

/// What webpki accepts, and servers whose own certificate is among the trusted.
#[derive(Debug)]
struct SelfSigned {
    webpki: Arc<WebPkiServerVerifier>,
    trusted: HashSet<CertificateDer<'static>>,
}

impl ServerCertVerifier for SelfSigned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let checked = self.webpki.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match checked {
            Err(error) if is_authority_itself(&error) && self.trusted.contains(end_entity) => {
                // webpki looks at the dates before it looks whose certificate it is.
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// Whether the only objection is that the certificate is that of an authority.
fn is_authority_itself(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(CertificateError::Other(other)) => {
            matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
        }
        _ => false,
    }
}
