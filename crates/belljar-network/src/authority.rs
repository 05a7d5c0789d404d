//! The server's own certificate authority, for hosts whose TLS ends at the proxy, and for refusals that
//! are told inside of TLS. Sandboxes with a way out believe it, and it is made when there is a first one.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::host::Host;
use crate::lock;

/// Years that an authority is good for; it is as old as the server's state.
const YEARS: i32 = 20;

/// Hosts whose certificates are kept; one more begins anew.
const MAX_KEPT: usize = 256;

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    kept: Mutex<HashMap<Host, Arc<rustls::ServerConfig>>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// The authority that is kept at `path`, or a new one; without a path, one for now.
    pub(crate) fn open(path: Option<&Path>) -> io::Result<Authority> {
        let Some(path) = path else { return Authority::new().map(|(authority, _)| authority) };
        match fs::read_to_string(path) {
            Ok(text) => Authority::restore(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (authority, text) = Authority::new()?;
                keep(path, &text)?;
                Ok(authority)
            }
            Err(error) => Err(error),
        }
    }

    /// A new one, and what to keep of it.
    fn new() -> io::Result<(Authority, String)> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = own_params()?.self_signed(&key).map_err(io::Error::other)?.pem();
        let text = format!("{certificate}{}", key.serialize_pem());
        Ok((Authority::of(key, certificate)?, text))
    }

    fn restore(text: &str) -> io::Result<Authority> {
        let at = text.find("-----BEGIN PRIVATE KEY").ok_or(io::ErrorKind::InvalidData)?;
        let (certificate, key) = text.split_at(at);
        CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(io::Error::other)?;
        Authority::of(KeyPair::from_pem(key).map_err(io::Error::other)?, certificate.to_owned())
    }

    fn of(key: KeyPair, certificate: String) -> io::Result<Authority> {
        let issuer = Issuer::new(own_params()?, key);
        Ok(Authority { issuer, certificate, kept: Mutex::default() })
    }

    /// What must be believed to believe the hosts.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// TLS as this host, for one side of it.
    pub(crate) fn as_host(&self, host: &Host) -> io::Result<Arc<rustls::ServerConfig>> {
        if let Some(kept) = lock(&self.kept).get(host) {
            return Ok(Arc::clone(kept));
        }
        let made = Arc::new(self.make(host).map_err(io::Error::other)?);
        let mut kept = lock(&self.kept);
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(host.clone(), Arc::clone(&made));
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

/// From a year ago, for sandboxes whose clock is not ours.
fn date(params: &mut CertificateParams) {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let year = (date_time_ymd(1970, 1, 1) + since_1970).year();
    params.not_before = date_time_ymd(year - 1, 1, 1);
    params.not_after = date_time_ymd(year + YEARS, 1, 1);
}

/// Whoever can read it can pretend to be anybody, to those sandboxes.
fn keep(path: &Path, text: &str) -> io::Result<()> {
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

    async fn shakes_hands(believed: &str, server: &Authority, host: &str) -> bool {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(believed.as_bytes()).unwrap()).unwrap();
        let client: TlsConnector = outbound::tls_believing(roots).unwrap();
        let (near, far) = tokio::io::duplex(1 << 16);
        let acceptor =
            TlsAcceptor::from(server.as_host(&Host::parse("api.test").unwrap()).unwrap());
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let (client, _) = tokio::join!(client.connect(name, near), acceptor.accept(far));
        client.is_ok()
    }

    #[tokio::test]
    async fn it_is_kept_and_believed_by_those_who_know_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("authority.pem");
        let first = Authority::open(Some(&path)).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Authority::open(Some(&path)).unwrap();
        assert_eq!(first.certificate().trim(), again.certificate().trim());
        assert!(shakes_hands(first.certificate(), &again, "api.test").await);
        assert!(!shakes_hands(first.certificate(), &again, "other.test").await);
        let stranger = Authority::open(None).unwrap();
        assert!(!shakes_hands(stranger.certificate(), &again, "api.test").await);
        assert!(!format!("{again:?}").contains("PRIVATE"));
        fs::write(&path, "nonsense").unwrap();
        assert!(Authority::open(Some(&path)).is_err());
    }
}
