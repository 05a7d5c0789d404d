//! The way out of a sandbox: a proxy on the host, behind the guest's own channel.
//!
//! ```text
//!   code ─▶ 127.0.0.1:3128 ─▶ guest ═ link ═▶ Egress ─▶ policy, ceiling ─▶ resolve ─▶ addresses
//!           (inside)                            │                            once      │ checked
//!                                               │ Traffic: who, where, how much        ▼
//!                                               └──────────────────────────── connect to those
//! ```
//!
//! A sandbox has no interface but loopback, whatever its policy: there is nothing to filter and
//! nothing to get around. What it may reach is asked for by name, by HTTP (`CONNECT`, or a request
//! with a whole URL), of [`proxy`]. A redirect is a new request and checked like any other.
//!
//! [`policy`] is what may be asked for and [`host`] how names are read; [`secrets`] and
//! [`authority`] are for headers that the sandbox must not see; [`traffic`] remembers.

#![forbid(unsafe_code)]

mod authority;
mod error;
mod host;
pub mod outbound;
mod policy;
mod proxy;
mod secrets;
#[cfg(test)]
mod tests;
mod traffic;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_proto::relay::{CERTIFICATES, MAX_STREAMS, PORT};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use authority::Authority;
pub use error::NetworkError;
pub use outbound::{Dns, Resolver};
pub use policy::{Injection, Policy};
pub use secrets::Secrets;
pub use traffic::{Listener, Outcome, Totals, Traffic, Visit};

use outbound::TlsError;

/// How sandboxes of this server get out, where they do.
pub struct Network {
    /// What nobody may exceed; none for who runs this machine.
    ceiling: Option<Policy>,
    secrets: Arc<Secrets>,
    /// Bytes of one sandbox, in both directions together.
    max_bytes: u64,
    /// Where the authority is kept.
    authority_path: Option<PathBuf>,
    authority: OnceCell<Arc<Authority>>,
    /// What this machine believes, for us and for code inside.
    tls: OnceCell<TlsConnector>,
    certificates: OnceCell<String>,
    dns: Arc<Dns>,
    patience: Patience,
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

/// How long things may take.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// Until somebody is connected to, their name and their certificate included.
    connect: Duration,
    /// Without a byte in either direction. Some answers are thought about for long.
    idle: Duration,
    /// For the head of a request, and between two of them.
    head: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            connect: Duration::from_secs(20),
            idle: Duration::from_secs(600),
            head: Duration::from_secs(60),
        }
    }
}

impl Default for Network {
    /// For who runs this machine and needs no permission.
    fn default() -> Network {
        Network {
            ceiling: None,
            secrets: Arc::default(),
            max_bytes: u64::MAX,
            authority_path: None,
            authority: OnceCell::new(),
            tls: OnceCell::new(),
            certificates: OnceCell::new(),
            dns: Arc::default(),
            patience: Patience::default(),
        }
    }
}

impl Network {
    /// Without a path the authority, if one is needed, is made anew every time.
    #[must_use]
    pub fn new(
        ceiling: Option<Policy>,
        secrets: Arc<Secrets>,
        max_bytes: u64,
        authority_path: Option<PathBuf>,
        dns: Arc<Dns>,
    ) -> Network {
        Network { ceiling, secrets, max_bytes, authority_path, dns, ..Network::default() }
    }

    /// Refuses what this server does not give.
    pub fn check(&self, policy: &Policy) -> Result<(), NetworkError> {
        if let Some(rule) = self.ceiling.as_ref().and_then(|most| most.exceeded_by(policy)) {
            return Err(NetworkError::NotAllowed { rule });
        }
        self.secrets.check(policy.injections())
    }

    /// The traffic of a sandbox that has none yet.
    #[must_use]
    pub fn traffic(&self, listener: Option<Listener>) -> Arc<Traffic> {
        Traffic::new(self.max_bytes, listener)
    }

    /// The certificates that code in a sandbox with this policy trusts, in PEM.
    pub async fn certificates(&self, policy: &Policy) -> Result<String, NetworkError> {
        self.bundle(policy).await.map_err(NetworkError::Authority)
    }

    /// Serves the proxy on the connections of one sandbox, until the result is dropped.
    pub fn serve(
        self: &Arc<Self>,
        policy: &Policy,
        traffic: &Arc<Traffic>,
        connections: impl Connections,
    ) -> Serving {
        let egress = Arc::new(Egress {
            network: Arc::clone(self),
            policy: policy.clone(),
            traffic: Arc::clone(traffic),
            resolver: Resolver::new(Arc::clone(&self.dns)),
        });
        Serving(tokio::spawn(serve_all(egress, connections)))
    }

    /// What code inside may believe, in PEM: what this machine does, and our own authority, for TLS
    /// that ends at the proxy and for refusals that are told inside of TLS.
    async fn bundle(&self, policy: &Policy) -> io::Result<String> {
        let known = self.certificates.get_or_init(certificates_in_pem).await;
        match self.authority().await {
            Ok(authority) => Ok(format!("{known}{}", authority.certificate())),
            Err(error) if policy.terminates_tls() => Err(error),
            Err(_) => Ok(known.clone()),
        }
    }

    async fn authority(&self) -> io::Result<&Arc<Authority>> {
        let open = async || {
            let path = self.authority_path.clone();
            let opened =
                tokio::task::spawn_blocking(move || Authority::open(path.as_deref())).await;
            opened.map_err(io::Error::other)?.map(Arc::new)
        };
        self.authority.get_or_try_init(open).await
    }

    async fn tls(&self) -> io::Result<&TlsConnector> {
        let why = |error| match error {
            TlsError::NoCertificates(_) => {
                io::Error::other("the server's machine has no certificates to believe in")
            }
            TlsError::Tls(error) => io::Error::other(error),
        };
        self.tls.get_or_try_init(outbound::tls_of_this_machine).await.map_err(why)
    }
}

/// The way out of one sandbox.
#[derive(Debug)]
struct Egress {
    network: Arc<Network>,
    policy: Policy,
    traffic: Arc<Traffic>,
    /// Its own, so that slow names of one sandbox hold up no other.
    resolver: Resolver,
}

/// Connections that code in one sandbox opens to the proxy.
pub trait Connections: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection; `None` when there will be no more.
    fn next(&mut self) -> impl Future<Output = Option<Self::Stream>> + Send;
}

/// The proxy of one sandbox; dropping it closes all connections.
#[derive(Debug)]
#[must_use = "dropping it stops the proxy"]
pub struct Serving(tokio::task::JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Connections of one sandbox that are answered at a time. A client that goes away gives back its place among
/// those that are relayed, while whom it asked may take minutes to answer; so there can be more than those.
const MAX_ANSWERED: usize = 4 * MAX_STREAMS;

async fn serve_all(egress: Arc<Egress>, mut connections: impl Connections) {
    // All end with us.
    let mut answering = JoinSet::new();
    loop {
        tokio::select! {
            stream = connections.next(), if answering.len() < MAX_ANSWERED => match stream {
                Some(stream) => {
                    answering.spawn(proxy::serve(Arc::clone(&egress), stream));
                }
                None => return,
            },
            Some(_) = answering.join_next() => {}
        }
    }
}

async fn certificates_in_pem() -> String {
    const LINE: usize = 64;
    let mut bundle = String::new();
    for certificate in outbound::certificates_of_this_machine().await.certs {
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

impl Policy {
    /// What programs inside must know to find the way out; nothing where there is none.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        if self.is_none() {
            return Vec::new();
        }
        let proxy = format!("http://127.0.0.1:{PORT}");
        // What listens inside is reached without us. A host of the same name that is on the list
        // is meant instead.
        let own = ["localhost", "127.0.0.1", "::1"]
            .into_iter()
            .filter(|own| own.parse().map_or(true, |address| !self.names_any_port(address)));
        let own = own.collect::<Vec<_>>().join(",");
        let both = |name: &str, value: &str| {
            [(name.to_owned(), value.to_owned()), (name.to_lowercase(), value.to_owned())]
        };
        let mut environment = Vec::new();
        environment.extend(both("HTTP_PROXY", &proxy));
        environment.extend(both("HTTPS_PROXY", &proxy));
        environment.extend(both("NO_PROXY", &own));
        // Node looks at them when it is told to.
        environment.push(("NODE_USE_ENV_PROXY".into(), "1".into()));
        for name in [
            "SSL_CERT_FILE",
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "PIP_CERT",
            "NODE_EXTRA_CA_CERTS",
            "GIT_SSL_CAINFO",
        ] {
            environment.push((name.into(), CERTIFICATES.into()));
        }
        environment
    }
}

/// Locks state that stays valid after a panic: no code here panics in the middle of a change.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Tests measure how much memory the parsers of hostile input allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: belljar_fuzz::Counting = belljar_fuzz::Counting;
