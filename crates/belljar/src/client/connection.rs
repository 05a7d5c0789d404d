//! How a server is reached.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hyper::Uri;
use hyper::client::conn::http1;
use hyper::header::HeaderValue;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{ClientError, Sender, certificates};
use crate::settings::ServerUrl;

/// How long it may take until somebody answers, hand-shaking included.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Server {
    way: Way,
    /// As people write it.
    url: String,
    host: HeaderValue,
    /// What stands before every path, where the server lives below one.
    prefix: String,
}

/// Bytes both ways, however they travel.
pub(crate) type Wire = Pin<Box<dyn Duplex>>;

pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

enum Way {
    Tcp {
        host: String,
        port: u16,
    },
    Tls {
        host: String,
        port: u16,
        name: ServerName<'static>,
        connector: TlsConnector,
    },
    Unix {
        path: PathBuf,
        /// Only a process of our own user may answer there.
        own: bool,
    },
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Server").field(&self.url).finish()
    }
}

impl Server {
    pub(super) fn new(url: &ServerUrl) -> Result<Server> {
        let url = match url {
            ServerUrl::Http(url) => url,
            ServerUrl::Unix(path) | ServerUrl::Local(path) => {
                let own = matches!(url, ServerUrl::Local(_));
                let url = format!("unix:{}", path.display());
                let way = Way::Unix { path: path.clone(), own };
                let host = HeaderValue::from_static("localhost");
                return Ok(Server { way, url, host, prefix: String::new() });
            }
        };
        let context = || format!("`{url}` is no address of a server");
        let uri: Uri = url.parse().with_context(context)?;
        let authority = uri.authority().with_context(context)?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let way = match uri.scheme_str() {
            Some("http") => Way::Tcp { host, port: authority.port_u16().unwrap_or(80) },
            Some("https") => Way::Tls {
                name: ServerName::try_from(host.clone()).with_context(context)?,
                host,
                port: authority.port_u16().unwrap_or(443),
                connector: connector()?,
            },
            _ => bail!(context()),
        };
        Ok(Server {
            way,
            url: url.clone(),
            host: HeaderValue::from_str(authority.as_str()).with_context(context)?,
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    pub(super) fn host(&self) -> HeaderValue {
        self.host.clone()
    }

    /// `path` as this server knows it.
    pub(super) fn uri(&self, path: &str) -> Uri {
        let path = format!("{}{path}", self.prefix);
        path.parse().expect("paths are written by us, and names in them are escaped")
    }

    /// The address of a path, for others than us.
    pub(super) fn complete(&self, path: &str) -> Option<String> {
        match self.way {
            Way::Unix { .. } => None,
            Way::Tcp { .. } | Way::Tls { .. } => {
                Some(format!("{}{path}", self.url.trim_end_matches('/')))
            }
        }
    }

    pub(super) async fn connect(&self) -> Result<Sender, ClientError> {
        self.converse(self.dial().await?).await
    }

    /// A connection on which nothing was said yet.
    pub(super) async fn dial(&self) -> Result<Wire, ClientError> {
        match tokio::time::timeout(CONNECT_PATIENCE, self.try_dial()).await {
            Ok(connected) => connected,
            Err(_) => Err(ClientError::Unreachable {
                url: self.url(),
                seconds: CONNECT_PATIENCE.as_secs(),
            }),
        }
    }

    async fn try_dial(&self) -> Result<Wire, ClientError> {
        match &self.way {
            Way::Tcp { host, port } => Ok(Box::pin(self.tcp(host, *port).await?)),
            Way::Tls { host, port, name, connector } => {
                let stream = self.tcp(host, *port).await?;
                let shaken = connector.connect(name.clone(), stream).await;
                Ok(Box::pin(shaken.map_err(|cause| self.not_shaken(cause))?))
            }
            Way::Unix { path, own } => {
                let stream =
                    UnixStream::connect(path).await.map_err(|cause| match cause.kind() {
                        io::ErrorKind::PermissionDenied => {
                            ClientError::NotYours { path: path.clone() }
                        }
                        _ => self.not_connected(cause),
                    })?;
                let (uid, _) = belljar_sys::privileges::own_ids();
                if *own && !stream.peer_cred().is_ok_and(|peer| peer.uid() == uid) {
                    return Err(ClientError::NotYours { path: path.clone() });
                }
                Ok(Box::pin(stream))
            }
        }
    }

    async fn tcp(&self, host: &str, port: u16) -> Result<TcpStream, ClientError> {
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(|cause| self.not_connected(cause))?;
        // Requests are small and waited for. Failing to hurry is no failure.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    async fn converse(&self, stream: Wire) -> Result<Sender, ClientError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|cause| ClientError::Lost { url: self.url(), cause })?;
        // It ends with its sender; what went wrong, the requests on it are told.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn not_connected(&self, cause: io::Error) -> ClientError {
        match cause.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                ClientError::NobodyThere { url: self.url() }
            }
            _ => ClientError::Connect { url: self.url(), cause },
        }
    }

    fn not_shaken(&self, cause: io::Error) -> ClientError {
        let error = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match error {
            Some(rustls::Error::InvalidCertificate(_)) => {
                ClientError::Untrusted { url: self.url(), cause }
            }
            Some(_) => {
                ClientError::Stranger { url: self.url(), why: "it does not speak TLS".into() }
            }
            None => ClientError::Connect { url: self.url(), cause },
        }
    }
}

fn connector() -> Result<TlsConnector> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = certificates::verifier(&provider)?;
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("failed to set up TLS")?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_somewhere() {
        let server = |url: &str| Server::new(&ServerUrl::Http(url.into())).unwrap();
        let plain = server("http://127.0.0.1:8000");
        assert!(matches!(&plain.way, Way::Tcp { host, port: 8000 } if host == "127.0.0.1"));
        assert_eq!(plain.uri("/v1/sessions?key=a%20b").to_string(), "/v1/sessions?key=a%20b");
        let below = server("http://[::1]/jar");
        assert!(matches!(&below.way, Way::Tcp { host, port: 80 } if host == "::1"));
        assert_eq!(
            (below.uri("/healthz").path(), &below.host),
            ("/jar/healthz", &"[::1]".parse().unwrap())
        );
        let socket = Server::new(&ServerUrl::Unix("/run/b.sock".into())).unwrap();
        assert_eq!(socket.url(), "unix:/run/b.sock");
        assert_eq!(socket.complete("/artifacts/a"), None);
        assert_eq!(
            server("http://h:1/jar/").complete("/artifacts/a").as_deref(),
            Some("http://h:1/jar/artifacts/a")
        );
    }
}
