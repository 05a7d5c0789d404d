//! The network of one server: its ceiling, secrets and certificates, which all proxies share.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

use crate::authority::{Authority, AuthoritySource};
use crate::outbound::{self, Dns};
use crate::traffic::{Traffic, VisitListener};
use crate::{NetworkError, Policy, Secrets};

/// The network that this server gives to sandboxes.
pub struct Network {
    /// The limit of all policies; `None` for runs of the operator.
    pub(crate) ceiling: Option<Policy>,
    pub(crate) secrets: Arc<Secrets>,
    /// The most bytes that one sandbox may send and receive together.
    max_bytes: u64,
    authority_source: AuthoritySource,
    authority: OnceCell<Arc<Authority>>,
    /// The certificates that this machine trusts, for the proxy and, in PEM, for sandboxes.
    pub(crate) tls: OnceCell<TlsConnector>,
    certificates: OnceCell<String>,
    pub(crate) dns: Arc<Dns>,
    pub(crate) timeouts: Timeouts,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network")
            .field("ceiling", &self.ceiling)
            .field("secrets", &self.secrets)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// For connecting to a host: name resolution, each connection and TLS.
    pub(crate) connect: Duration,
    /// For a connection without a byte in either direction. Some hosts need minutes for a response.
    pub(crate) idle: Duration,
    /// For the head of a request, and between two requests.
    pub(crate) head: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(20),
            idle: Duration::from_secs(600),
            head: Duration::from_secs(60),
        }
    }
}

impl Default for Network {
    /// A network without a ceiling, for runs of the operator.
    fn default() -> Network {
        Network {
            ceiling: None,
            secrets: Arc::default(),
            max_bytes: u64::MAX,
            authority_source: AuthoritySource::default(),
            authority: OnceCell::new(),
            tls: OnceCell::new(),
            certificates: OnceCell::new(),
            dns: Arc::default(),
            timeouts: Timeouts::default(),
        }
    }
}

impl Network {
    #[must_use]
    pub fn new(
        ceiling: Option<Policy>,
        secrets: Arc<Secrets>,
        max_bytes: u64,
        authority_source: AuthoritySource,
        dns: Arc<Dns>,
    ) -> Network {
        Network { ceiling, secrets, max_bytes, authority_source, dns, ..Network::default() }
    }

    /// Refuses a policy that exceeds the ceiling or injects a secret that is not for its host.
    pub fn check(&self, policy: &Policy) -> Result<(), NetworkError> {
        if let Some(rule) = self.ceiling.as_ref().and_then(|most| most.exceeded_by(policy)) {
            return Err(NetworkError::NotAllowed { rule });
        }
        self.secrets.check(policy.injections())
    }

    /// The record of a new sandbox's traffic.
    #[must_use]
    pub fn traffic(&self, listener: Option<VisitListener>) -> Arc<Traffic> {
        Traffic::new(self.max_bytes, listener)
    }

    /// The certificates that code in a sandbox with this policy trusts, in PEM.
    pub async fn certificates(&self, policy: &Policy) -> Result<String, NetworkError> {
        self.bundle(policy).await.map_err(NetworkError::Authority)
    }

    /// The certificates of this machine and of our own authority.
    pub(crate) async fn bundle(&self, policy: &Policy) -> io::Result<String> {
        let known = self.certificates.get_or_init(certificates_in_pem).await;
        match self.authority().await {
            Ok(authority) => Ok(format!("{known}{}", authority.certificate())),
            Err(error) if policy.terminates_tls() => Err(error),
            Err(_) => Ok(known.clone()),
        }
    }

    pub(crate) async fn authority(&self) -> io::Result<&Arc<Authority>> {
        let open = async || {
            let source = self.authority_source.clone();
            let opened = tokio::task::spawn_blocking(move || Authority::open(&source)).await;
            opened.map_err(io::Error::other)?.map(Arc::new)
        };
        self.authority.get_or_try_init(open).await
    }

    pub(crate) async fn tls(&self) -> io::Result<&TlsConnector> {
        self.tls.get_or_try_init(outbound::system_tls).await.map_err(io::Error::other)
    }
}

async fn certificates_in_pem() -> String {
    const LINE: usize = 64;
    let mut bundle = String::new();
    for certificate in outbound::system_certificates().await.certs {
        bundle.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = STANDARD.encode(&certificate);
        for line in encoded.as_bytes().chunks(LINE) {
            bundle.push_str(&String::from_utf8_lossy(line));
            bundle.push('\n');
        }
        bundle.push_str("-----END CERTIFICATE-----\n");
    }
    bundle
}
