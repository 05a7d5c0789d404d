//! TLS of the client: accepts certificates that this machine trusts, or that SSL_CERT_FILE names.
//!
//! `openssl req -x509` makes a certificate that is its own authority (`CA:TRUE`), and servers use it as it is. curl and
//! Python accept it where it is trusted. webpki refuses it, because an authority may not be a server's certificate.
//! [`SelfSigned`] accepts exactly that case: the server's certificate is one of the trusted ones, byte for byte. Its dates
//! and names are still checked. This trusts no new server: the owner of a trusted authority's key can sign any certificate.

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// The TLS configuration of the client. For a server without TLS, it has no certificates.
pub(super) fn tls_config(is_tls: bool) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .context("failed to set up TLS")?;
    if !is_tls {
        return Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
    }
    let verifier = verifier(&provider)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    Ok(builder.with_no_client_auth())
}

fn verifier(provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let trusted: HashSet<CertificateDer<'static>> = found.certs.iter().cloned().collect();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        bail!(
            "this machine has no certificates to trust{why}; SSL_CERT_FILE names a file with some"
        );
    }
    let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .context("failed to set up TLS")?;
    Ok(Arc::new(SelfSigned { webpki, trusted }))
}

/// Accepts what webpki accepts, and a server's certificate that is itself trusted.
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
                // webpki has checked the dates before this error.
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

/// Whether the certificate was refused only because it belongs to an authority.
fn is_authority_itself(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(CertificateError::Other(other)) => {
            matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
        }
        _ => false,
    }
}
