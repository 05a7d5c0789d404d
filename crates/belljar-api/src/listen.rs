//! Accepts connections (TCP, TLS or a UNIX socket), and stops accepting them.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tower::ServiceExt;

/// The most connections at the same time; more wait to be accepted.
const MAX_CONNECTIONS: u32 = 16_384;

/// The most bytes of a request's line and headers. Larger ones are refused with 431 before they are parsed. hyper's own
/// limit of 400 KiB would let every connection hold that much.
const MAX_HEAD: usize = 64 * 1024;

/// Time limit for the headers of a request, and for a TLS handshake.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// The default stall time: how long a client may read nothing of a response, or send too little of a body.
pub const STALL: Duration = Duration::from_secs(60);

/// How many unsent bytes the kernel buffers for a client. Without this limit, each client that reads nothing would use
/// some megabytes of kernel memory. Also, a slow client would look as if it read nothing, because the kernel accepts
/// more bytes only when a third of the buffer is free.
const UNSENT: u32 = 128 * 1024;

/// Pause after a failure to accept a connection, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("failed to listen on `{address}`{}", if_taken(cause))]
    Tcp {
        address: String,
        #[source]
        cause: io::Error,
    },
    #[error("failed to listen on the socket `{path}`")]
    Unix {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("another server listens on the socket `{0}`")]
    Taken(PathBuf),
    #[error("failed to read the certificates in `{0}`: {1}")]
    Certificate(PathBuf, String),
    #[error("failed to read the private key in `{0}`: {1}")]
    Key(PathBuf, String),
    #[error("the certificate and the private key do not go together: {0}")]
    Mismatch(rustls::Error),
}

fn if_taken(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => " (something else listens there; choose another with --listen)",
        io::ErrorKind::PermissionDenied => " (ports below 1024 are for root)",
        _ => "",
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener, Option<Tls>),
    Unix(UnixListener, SocketFile),
}

/// A certificate and its key, ready to use.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// The address of the client and whether it uses TLS: an extension of each request over TCP.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    pub address: SocketAddr,
    pub tls: bool,
}

/// Removes the socket when the server ends.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Tls {
    #[must_use]
    pub fn new(config: Arc<rustls::ServerConfig>) -> Tls {
        Tls(TlsAcceptor::from(config))
    }

    /// Reads a certificate chain and its key, both PEM.
    pub fn load(certificate: &Path, key: &Path) -> Result<Tls, ListenError> {
        let wrong = |error: rustls::pki_types::pem::Error| error.to_string();
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect)
            .map_err(|error| ListenError::Certificate(certificate.into(), wrong(error)))?;
        if chain.is_empty() {
            let what = "there is none in it".to_owned();
            return Err(ListenError::Certificate(certificate.into(), what));
        }
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| ListenError::Key(key.into(), wrong(error)))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(ListenError::Mismatch)?
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .map_err(ListenError::Mismatch)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }
}

impl Listener {
    pub async fn tcp(address: &str, tls: Option<Tls>) -> Result<Listener, ListenError> {
        let listener = TcpListener::bind(address).await;
        let listener =
            listener.map_err(|cause| ListenError::Tcp { address: address.into(), cause })?;
        Ok(Listener::Tcp(listener, tls))
    }

    /// A socket that only its owner can connect to.
    pub async fn unix(path: &Path) -> Result<Listener, ListenError> {
        let failed = |cause| ListenError::Unix { path: path.into(), cause };
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.file_type().is_socket() => {
                // If no server answers, a killed server left the socket file.
                if tokio::net::UnixStream::connect(path).await.is_ok() {
                    return Err(ListenError::Taken(path.into()));
                }
                fs::remove_file(path).map_err(failed)?;
            }
            Ok(_) => return Err(failed(io::Error::from(io::ErrorKind::AlreadyExists))),
            Err(_) => {}
        }
        // The socket is bound under a temporary name and made private before it is renamed, so that at no moment other
        // users can connect.
        let hidden = path.with_extension(format!("{}.new", std::process::id()));
        let _ = fs::remove_file(&hidden);
        let listener = UnixListener::bind(&hidden).map_err(failed)?;
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        fs::rename(&hidden, path).map_err(failed)?;
        Ok(Listener::Unix(listener, SocketFile(path.into())))
    }

    /// The address for clients.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Listener::Tcp(listener, tls) => {
                let scheme = if tls.is_some() { "https" } else { "http" };
                let address = listener.local_addr().map(|address| address.to_string());
                format!("{scheme}://{}", address.unwrap_or_default())
            }
            Listener::Unix(_, path) => format!("unix:{}", path.0.display()),
        }
    }

    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener, _) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }
}

/// Serves until `stop` becomes true, then lets requests in progress finish, for at most `drain`. A client that reads
/// nothing for `stall` is disconnected.
pub async fn serve(
    listener: Listener,
    router: Router,
    mut stop: watch::Receiver<bool>,
    drain: Duration,
    stall: Duration,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!("failed to accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (router, stop) = (router.clone(), stop.clone());
        let tls = listener.tls();
        tokio::spawn(async move {
            let _place = place;
            match (stream, tls) {
                (Accepted::Tcp(stream, address), Some(Tls(acceptor))) => {
                    let stream = Patient::new(stream, stall);
                    let shaken =
                        tokio::time::timeout(HEADER_TIMEOUT, acceptor.accept(stream)).await;
                    if let Ok(Ok(stream)) = shaken {
                        converse(stream, Some(Peer { address, tls: true }), router, stop).await;
                    }
                }
                (Accepted::Tcp(stream, address), None) => {
                    let peer = Some(Peer { address, tls: false });
                    converse(Patient::new(stream, stall), peer, router, stop).await;
                }
                (Accepted::Unix(stream), _) => {
                    converse(Patient::new(stream, stall), None, router, stop).await;
                }
            }
        });
    }
    // No new connections; requests in progress may finish.
    drop(listener);
    let _ = tokio::time::timeout(drain, places.acquire_many(MAX_CONNECTIONS)).await;
}

enum Accepted {
    Tcp(tokio::net::TcpStream, SocketAddr),
    Unix(tokio::net::UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Listener::Tcp(listener, _) => {
                let (stream, address) = listener.accept().await?;
                // Responses are small and clients wait for them.
                stream.set_nodelay(true)?;
                SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT)?;
                Ok(Accepted::Tcp(stream, address))
            }
            Listener::Unix(listener, _) => Ok(Accepted::Unix(listener.accept().await?.0)),
        }
    }

    fn tls(&self) -> Option<Tls> {
        match self {
            Listener::Tcp(_, tls) => tls.clone(),
            Listener::Unix(..) => None,
        }
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Option<Peer>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        router.clone().oneshot(request)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    tokio::select! {
        // A client that closes the connection early is not an error of the server.
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    // The request in progress is answered; then the connection is closed.
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// A connection that fails if its client reads nothing for too long while there are bytes to write. Without bytes to
/// write the client may be silent for any time.
struct Patient<S> {
    stream: S,
    stall: Duration,
    /// Set while there are bytes to write and the socket accepts none.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    fn new(stream: S, stall: Duration) -> Patient<S> {
        Patient { stream, stall, waiting: None }
    }

    fn watch(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(self.stall)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // Sockets have no own buffer to flush: a connection waits only in `poll_write`.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::*;

    /// The clock is paused: it jumps to the next timer.
    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_cut_off_and_who_takes_something_is_not() {
        let (near, mut far) = duplex(8);
        let mut near = Patient::new(near, STALL);
        // There is nothing to write, so the client may be silent for any time.
        let silent = tokio::time::timeout(10 * STALL, near.read_u8()).await;
        assert!(silent.is_err(), "it is still there");
        let reading = tokio::spawn(async move {
            let mut byte = [0];
            for _ in 0..20 {
                sleep(STALL - Duration::from_secs(1)).await;
                far.read_exact(&mut byte).await.unwrap();
            }
            far
        });
        near.write_all(&[1; 28]).await.unwrap();
        let _far = reading.await.unwrap();
        let begun = Instant::now();
        let error = near.write_all(&[1; 28]).await.unwrap_err();
        assert_eq!((error.kind(), begun.elapsed()), (io::ErrorKind::TimedOut, STALL));
    }
}
