//! The server's own certificate authority. It is used for hosts whose TLS the proxy terminates, and for refusals that
//! are sent inside TLS. It is created with the first sandbox that has a network. Such sandboxes trust it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::host::Host;
use crate::lock;

/// How long the certificate of an authority is valid. It is kept as long as the server's state.
const YEARS: i32 = 20;

/// The most host certificates in the cache; when it is full, it is emptied.
const MAX_CACHED: usize = 256;

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    by_host: Mutex<HashMap<Host, Arc<rustls::ServerConfig>>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// Where a server has its authority.
#[derive(Clone, Default)]
pub enum AuthoritySource {
    /// A new one, which no other process gets.
    #[default]
    Temporary,
    /// This file. If it does not exist, it is made.
    File(PathBuf),
    /// Certificate and key in PEM, as [`new_authority`] makes them.
    Pem(String),
}

impl std::fmt::Debug for AuthoritySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AuthoritySource::Temporary => f.write_str("Temporary"),
            AuthoritySource::File(path) => f.debug_tuple("File").field(path).finish(),
            AuthoritySource::Pem(_) => f.debug_tuple("Pem").finish_non_exhaustive(),
        }
    }
}

/// A new authority: its certificate and its key, in PEM.
pub fn new_authority() -> io::Result<String> {
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = own_params()?.self_signed(&key).map_err(io::Error::other)?.pem();
    Ok(format!("{certificate}{}", key.serialize_pem()))
}

impl Authority {
    pub(crate) fn open(source: &AuthoritySource) -> io::Result<Authority> {
        match source {
            AuthoritySource::Temporary => Authority::load(&new_authority()?),
            AuthoritySource::File(path) => Authority::load(&load_or_create(path)?),
            AuthoritySource::Pem(text) => Authority::load(text),
        }
    }

    fn load(text: &str) -> io::Result<Authority> {
        let at = text.find("-----BEGIN PRIVATE KEY").ok_or(io::ErrorKind::InvalidData)?;
        let (certificate, key) = text.split_at(at);
        CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(io::Error::other)?;
        Authority::of(KeyPair::from_pem(key).map_err(io::Error::other)?, certificate.to_owned())
    }

    fn of(key: KeyPair, certificate: String) -> io::Result<Authority> {
        let issuer = Issuer::new(own_params()?, key);
        Ok(Authority { issuer, certificate, by_host: Mutex::default() })
    }

    /// Its own certificate, in PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The TLS configuration of a server with this host's name.
    pub(crate) fn server_for(&self, host: &Host) -> io::Result<Arc<rustls::ServerConfig>> {
        if let Some(cached) = lock(&self.by_host).get(host) {
            return Ok(Arc::clone(cached));
        }
        let made = Arc::new(self.make(host).map_err(io::Error::other)?);
        let mut by_host = lock(&self.by_host);
        if by_host.len() >= MAX_CACHED {
            by_host.clear();
        }
        by_host.insert(host.clone(), Arc::clone(&made));
        Ok(made)
    }

    fn make(
        &self,
        host: &Host,
    ) -> Result<rustls::ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![host.bare()])?;
        params.distinguished_name.push(DnType::CommonName, "belljar proxy");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        date(&mut params);
        let certificate = params.signed_by(&key, &self.issuer)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::try_from(key.serialize_der())?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn own_params() -> io::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
    params.distinguished_name.push(DnType::CommonName, "belljar sandboxes");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    date(&mut params);
    Ok(params)
}

/// Valid from a year ago, because the clock of a sandbox may be behind.
fn date(params: &mut CertificateParams) {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let year = (date_time_ymd(1970, 1, 1) + since_1970).year();
    params.not_before = date_time_ymd(year - 1, 1, 1);
    params.not_after = date_time_ymd(year + YEARS, 1, 1);
}

fn load_or_create(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = new_authority()?;
            store(path, &text)?;
            Ok(text)
        }
        text => text,
    }
}

/// Only we may read the file: with the key, a program can impersonate every host to these sandboxes.
fn store(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension(format!("{}.part", belljar_sys::process::random_name()));
    let write = || {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&fresh);
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::outbound;

    async fn connects(trusted: &str, server: &Authority, host: &str) -> bool {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
        let client: TlsConnector = outbound::trusting(roots).unwrap();
        let (near, far) = tokio::io::duplex(1 << 16);
        let acceptor =
            TlsAcceptor::from(server.server_for(&Host::parse("api.test").unwrap()).unwrap());
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let (client, _) = tokio::join!(client.connect(name, near), acceptor.accept(far));
        client.is_ok()
    }

    #[tokio::test]
    async fn it_is_stored_and_trusted_by_clients_that_have_its_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("authority.pem");
        let first = Authority::open(&AuthoritySource::File(path.clone())).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Authority::open(&AuthoritySource::File(path.clone())).unwrap();
        assert_eq!(first.certificate().trim(), again.certificate().trim());
        assert!(connects(first.certificate(), &again, "api.test").await);
        assert!(!connects(first.certificate(), &again, "other.test").await);
        let stranger = Authority::open(&AuthoritySource::Temporary).unwrap();
        assert!(!connects(stranger.certificate(), &again, "api.test").await);
        assert!(!format!("{again:?}").contains("PRIVATE"));
        // Another node with the same text is trusted too.
        let text = AuthoritySource::Pem(fs::read_to_string(&path).unwrap());
        let elsewhere = Authority::open(&text).unwrap();
        assert!(connects(first.certificate(), &elsewhere, "api.test").await);
        assert!(!format!("{text:?}").contains("PRIVATE"));
        fs::write(&path, "nonsense").unwrap();
        assert!(Authority::open(&AuthoritySource::File(path.clone())).is_err());
    }
}
