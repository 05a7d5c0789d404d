//! Mutual TLS between gateways and nodes, with certificates of the cluster's own authority.
//!
//! All processes of a cluster have the authority's certificate and key. Each makes a certificate for itself that is valid
//! for a day, and a new one in time. A gateway connects only to a node whose certificate has the id of that node.
//!
//! Only the key of the authority matters: each process makes a root certificate with a constant name from it and trusts that
//! one. So an authority may have any name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};

/// How long the certificate of a process is valid.
const LIFE: Duration = Duration::from_secs(24 * 3600);

/// The age at which a process makes itself a new certificate.
const RENEW_AFTER: Duration = Duration::from_secs(12 * 3600);

/// A new certificate is valid from this time ago, because clocks of machines differ.
const CLOCK_SKEW: Duration = Duration::from_secs(2 * 3600);

/// How long the certificate of an authority is valid.
const AUTHORITY_LIFE: Duration = Duration::from_secs(20 * 365 * 24 * 3600);

/// The name of the root certificates. It is constant, because certificates name their issuer.
const AUTHORITY_NAME: &str = "belljar cluster";

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("failed to read `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("`{0}` does not contain {1} in PEM")]
    Pem(PathBuf, &'static str),
    #[error("the key in `{key}` does not belong to the certificate in `{certificate}`")]
    Mismatch { certificate: PathBuf, key: PathBuf },
    #[error("failed to make a certificate")]
    Make(#[source] rcgen::Error),
    #[error("failed to set up TLS")]
    Setup(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What a process is in the cluster. Its certificate says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    Node(String),
    Gateway,
}

impl Role {
    /// The name in its certificate.
    fn dns_name(&self) -> String {
        match self {
            Role::Node(id) => format!("{id}.node.belljar"),
            Role::Gateway => "gateway.belljar".to_owned(),
        }
    }
}

/// Whether the text can be the id of a node, which is a label of a DNS name.
#[must_use]
pub fn is_node_id(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(is_allowed)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The name under which a gateway knows a node; `None` if it is not a valid id.
#[must_use]
pub fn node_name(id: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(Role::Node(id.to_owned()).dns_name()).ok()
}

/// A new authority in PEM: its certificate, and its key.
pub fn create_authority() -> Result<(String, String), TlsError> {
    let key = KeyPair::generate().map_err(TlsError::Make)?;
    let certificate = authority_params()?.self_signed(&key).map_err(TlsError::Make)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// The TLS settings of one process of the cluster.
#[derive(Debug, Clone)]
pub struct ClusterTls {
    /// Accepts only clients with a certificate of the authority.
    pub server: Arc<ServerConfig>,
    /// Accepts only servers with a certificate of the authority and the wanted name.
    pub client: Arc<ClientConfig>,
}

impl ClusterTls {
    /// Reads the authority, and makes a certificate for this process.
    pub fn load(certificate: &Path, key: &Path, role: &Role) -> Result<ClusterTls, TlsError> {
        let no_certificate = || TlsError::Pem(certificate.into(), "a certificate");
        let authority = CertificateDer::from_pem_slice(read(certificate)?.as_bytes())
            .map_err(|_| no_certificate())?;
        let authority = trusting(authority).ok_or_else(no_certificate)?;
        let pair = KeyPair::from_pem(&read(key)?)
            .map_err(|_| TlsError::Pem(key.into(), "a private key (PKCS #8)"))?;
        let params = authority_params()?;
        let root = params.self_signed(&pair).map_err(TlsError::Make)?;
        let root = trusting(root.der().clone()).ok_or_else(no_certificate)?;
        let public_key = |roots: &RootCertStore| roots.roots[0].subject_public_key_info.clone();
        if public_key(&root) != public_key(&authority) {
            return Err(TlsError::Mismatch { certificate: certificate.into(), key: key.into() });
        }
        let issuer = Issuer::new(params, pair);
        let minter = Arc::new(Minter { issuer, name: role.dns_name(), latest: Mutex::default() });
        configs(&Arc::new(root), &minter).map_err(TlsError::Setup)
    }
}

/// Settings for clients of a server whose certificate is from one of the authorities in this file.
pub fn trusting_only(authorities: &Path) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    let none = || TlsError::Pem(authorities.into(), "a certificate");
    for certificate in CertificateDer::pem_slice_iter(read(authorities)?.as_bytes()) {
        roots.add(certificate.map_err(|_| none())?).map_err(|_| none())?;
    }
    if roots.is_empty() {
        return Err(none());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Setup(error.into()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn read(path: &Path) -> Result<String, TlsError> {
    fs::read_to_string(path).map_err(|cause| TlsError::Read { path: path.into(), cause })
}

/// Trusts this certificate only; `None` if it is not valid.
fn trusting(certificate: CertificateDer<'static>) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).ok()?;
    Some(roots)
}

fn configs(
    roots: &Arc<RootCertStore>,
    minter: &Arc<Minter>,
) -> Result<ClusterTls, Box<dyn std::error::Error + Send + Sync>> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider()).build()?;
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::<Minter>::clone(minter));
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(Arc::clone(roots))
        .with_client_cert_resolver(Arc::<Minter>::clone(minter));
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(ClusterTls { server: Arc::new(server), client: Arc::new(client) })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn authority_params() -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new(Vec::new()).map_err(TlsError::Make)?;
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_for(&mut params, AUTHORITY_LIFE);
    Ok(params)
}

fn valid_for(params: &mut CertificateParams, life: Duration) {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    params.not_before = date_time_ymd(1970, 1, 1) + since_1970.saturating_sub(CLOCK_SKEW);
    params.not_after = date_time_ymd(1970, 1, 1) + since_1970 + life;
}

/// Makes the certificates of this process.
struct Minter {
    issuer: Issuer<'static, KeyPair>,
    name: String,
    latest: Mutex<Option<(SystemTime, Arc<CertifiedKey>)>>,
}

impl std::fmt::Debug for Minter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Minter").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Minter {
    /// The latest certificate, or a new one if that is too old.
    fn certified(&self) -> Option<Arc<CertifiedKey>> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now();
        if let Some((made, certified)) = &*latest
            && now.duration_since(*made).is_ok_and(|age| age < RENEW_AFTER)
        {
            return Some(Arc::clone(certified));
        }
        match self.mint() {
            Ok(certified) => {
                *latest = Some((now, Arc::clone(&certified)));
                Some(certified)
            }
            Err(error) => {
                tracing::error!("failed to make a certificate: {error}");
                None
            }
        }
    }

    fn mint(&self) -> Result<Arc<CertifiedKey>, Box<dyn std::error::Error + Send + Sync>> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![self.name.clone()])?;
        params.distinguished_name.push(DnType::CommonName, self.name.as_str());
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, LIFE);
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der())?;
        let chain = vec![certificate.der().clone()];
        Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider())?))
    }
}

impl ResolvesServerCert for Minter {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certified()
    }
}

impl ResolvesClientCert for Minter {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.certified()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    struct Cluster(tempfile::TempDir);

    impl Cluster {
        fn new() -> Cluster {
            let directory = tempfile::tempdir().unwrap();
            let (certificate, key) = create_authority().unwrap();
            fs::write(directory.path().join("ca.pem"), certificate).unwrap();
            fs::write(directory.path().join("ca.key"), key).unwrap();
            Cluster(directory)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn tls(&self, role: &Role) -> ClusterTls {
            ClusterTls::load(&self.path("ca.pem"), &self.path("ca.key"), role).unwrap()
        }
    }

    fn node(id: &str) -> Role {
        Role::Node(id.to_owned())
    }

    /// Whether a request and its answer arrive.
    async fn talk(client: Arc<ClientConfig>, server: &ClusterTls, wanted: &str) -> bool {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (near, far) = tokio::io::duplex(1 << 16);
        let acceptor = TlsAcceptor::from(Arc::clone(&server.server));
        let serving = tokio::spawn(async move {
            let mut stream = acceptor.accept(far).await.ok()?;
            let byte = stream.read_u8().await.ok()?;
            stream.write_u8(byte).await.ok()?;
            stream.flush().await.ok()
        });
        let asking = async {
            let connector = TlsConnector::from(client);
            let mut stream = connector.connect(node_name(wanted)?, near).await.ok()?;
            stream.write_u8(7).await.ok()?;
            stream.read_u8().await.ok()
        };
        let answered = asking.await == Some(7);
        serving.abort();
        answered
    }

    #[tokio::test]
    async fn a_gateway_reaches_the_node_that_it_wants_and_no_other() {
        let cluster = Cluster::new();
        let (gateway, server) = (cluster.tls(&Role::Gateway), cluster.tls(&node("n1")));
        assert!(talk(Arc::clone(&gateway.client), &server, "n1").await);
        assert!(!talk(Arc::clone(&gateway.client), &server, "n2").await);
        let other = Cluster::new();
        assert!(!talk(other.tls(&Role::Gateway).client, &server, "n1").await);
        let stranger = other.tls(&node("n1"));
        assert!(!talk(gateway.client, &stranger, "n1").await);
    }

    #[tokio::test]
    async fn a_client_without_a_certificate_is_refused() {
        let cluster = Cluster::new();
        let server = cluster.tls(&node("n1"));
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(cluster.path("ca.pem")).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        assert!(!talk(Arc::new(config), &server, "n1").await);
    }

    #[test]
    fn a_key_of_another_authority_is_refused() {
        let (cluster, other) = (Cluster::new(), Cluster::new());
        let load = |certificate: &Path, key: &Path| {
            ClusterTls::load(certificate, key, &Role::Gateway).unwrap_err().to_string()
        };
        let error = load(&cluster.path("ca.pem"), &other.path("ca.key"));
        assert!(error.contains("does not belong"), "{error}");
        let error = load(&cluster.path("ca.key"), &cluster.path("ca.key"));
        assert!(error.contains("a certificate"), "{error}");
        let error = load(&cluster.path("ca.pem"), &cluster.path("none"));
        assert!(error.contains("none"), "{error}");
    }

    #[test]
    fn ids_of_nodes_are_labels() {
        for good in ["a", "node-1", "0b1c2d3e-0000-4000-8000-000000000000"] {
            assert!(is_node_id(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a b", &"x".repeat(64)] {
            assert!(!is_node_id(bad), "{bad}");
        }
    }
}
