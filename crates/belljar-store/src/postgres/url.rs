//! The URL of a Postgres database, and the TLS that it asks for.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    self, CryptoProvider, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// For all servers of the URL together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection without traffic is probed after this time, so that a lost server is noticed.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// How long sent data may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);

/// A parsed URL. Neither `Debug` nor `Display` show its password.
#[derive(Clone)]
pub struct DatabaseUrl {
    pub(super) config: Config,
    /// Whether the certificate of the server is checked.
    verify: bool,
    /// Certificates of authorities, in PEM; `None` means those of the system.
    roots: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadDatabaseUrl {
    #[error(
        "the URL of the database is not valid; expected postgres://USER:PASSWORD@HOST:PORT/DATABASE"
    )]
    NotAUrl,
    #[error(
        "the URL of the database has an unknown sslmode; expected disable, prefer, require or verify-full"
    )]
    SslMode,
    #[error("the certificates in `{0}` cannot be read")]
    Roots(PathBuf),
    #[error("the system has no certificates of authorities; name a file with sslrootcert")]
    NoRoots,
    #[error("TLS cannot be used: {0}")]
    Tls(String),
}

impl DatabaseUrl {
    /// The sslmodes mean what they mean for `psql`: `require` encrypts without a check of the
    /// server's certificate, and `verify-full` checks the certificate and its name.
    pub fn parse(text: &str) -> Result<DatabaseUrl, BadDatabaseUrl> {
        let is_url = ["postgres://", "postgresql://"].iter().any(|start| text.starts_with(start));
        if !is_url {
            return Err(BadDatabaseUrl::NotAUrl);
        }
        let (address, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut mode, mut verify, mut roots) = (SslMode::Prefer, false, None);
        let mut rest = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", "disable")) => mode = SslMode::Disable,
                Some(("sslmode", "allow" | "prefer")) => mode = SslMode::Prefer,
                Some(("sslmode", "require")) => mode = SslMode::Require,
                Some(("sslmode", "verify-full")) => (mode, verify) = (SslMode::Require, true),
                Some(("sslmode", _)) => return Err(BadDatabaseUrl::SslMode),
                Some(("sslrootcert", path)) => roots = Some(PathBuf::from(decoded(path))),
                _ => rest.push(pair),
            }
        }
        let plain = match rest.is_empty() {
            true => address.to_owned(),
            false => format!("{address}?{}", rest.join("&")),
        };
        // The cause could contain parts of the password.
        let mut config: Config = plain.parse().map_err(|_| BadDatabaseUrl::NotAUrl)?;
        let servers = u32::try_from(config.get_hosts().len()).unwrap_or(u32::MAX).max(1);
        config
            .ssl_mode(mode)
            .connect_timeout(CONNECT_TIMEOUT / servers)
            .keepalives_idle(KEEPALIVE)
            .tcp_user_timeout(UNACKNOWLEDGED);
        if config.get_application_name().is_none() {
            config.application_name("belljar");
        }
        Ok(DatabaseUrl { config, verify, roots })
    }

    pub(super) fn tls(&self) -> Result<MakeRustlsConnect, BadDatabaseUrl> {
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| BadDatabaseUrl::Tls(error.to_string()))?;
        let config = match self.verify {
            true => builder.with_root_certificates(self.root_store()?).with_no_client_auth(),
            false => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
                .with_no_client_auth(),
        };
        Ok(MakeRustlsConnect::new(config))
    }

    fn root_store(&self) -> Result<RootCertStore, BadDatabaseUrl> {
        let certificates = match &self.roots {
            Some(path) => from_pem(path)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(certificates);
        if store.is_empty() {
            return Err(self.roots.clone().map_or(BadDatabaseUrl::NoRoots, BadDatabaseUrl::Roots));
        }
        Ok(store)
    }
}

fn from_pem(path: &Path) -> Result<Vec<CertificateDer<'static>>, BadDatabaseUrl> {
    let unreadable = |_| BadDatabaseUrl::Roots(path.to_owned());
    CertificateDer::pem_file_iter(path)
        .map_err(unreadable)?
        .collect::<Result<_, _>>()
        .map_err(unreadable)
}

/// Without `%` escapes.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escape = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped = escape.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match escaped.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Without the password and without parameters.
impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        if let Some(user) = self.config.get_user() {
            write!(f, "{user}@")?;
        }
        for (index, host) in self.config.get_hosts().iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match host {
                Host::Tcp(name) => write!(f, "{comma}{name}")?,
                Host::Unix(path) => write!(f, "{comma}{}", path.display())?,
            }
        }
        write!(f, "/{}", self.config.get_dbname().unwrap_or_default())
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

/// Accepts any certificate, as `sslmode=require` asks.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_url_contains_its_password() {
        let url =
            DatabaseUrl::parse("postgres://me:hunter2@db.example:5433/bell?sslmode=verify-full");
        let url = url.unwrap();
        assert_eq!(url.to_string(), "postgres://me@db.example/bell");
        assert!(url.verify);
        assert!(!format!("{url:?}").contains("hunter2"));
        for bad in ["postgres://me:hunter2@host:port/x", "mysql://me:hunter2@h/x", "hunter2"] {
            let error = DatabaseUrl::parse(bad).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let unknown = DatabaseUrl::parse("postgres://h/x?sslmode=verify-ca").unwrap_err();
        assert_eq!(unknown, BadDatabaseUrl::SslMode);
    }

    #[test]
    fn a_socket_can_be_named() {
        let url = DatabaseUrl::parse("postgres://me@/bell?host=/run/pg&sslmode=disable").unwrap();
        assert_eq!(url.config.get_hosts(), [Host::Unix("/run/pg".into())]);
        assert_eq!(decoded("a%2Fb%zz"), "a/b%zz");
    }
}
