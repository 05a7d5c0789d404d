//! Connections to nodes: mutual TLS, kept open for later requests.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tower::Service;

use crate::tls;

/// Time limit for a connection to a node, with its handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// How long an unused connection is kept. A node closes it after 30 seconds; the gateway must be earlier, or a request
/// could be sent just when the node closes.
const IDLE_LIMIT: Duration = Duration::from_secs(15);

/// The most unused connections to one node.
const MAX_IDLE: usize = 256;

pub(super) type NodeClient = Client<NodeConnector, Body>;

/// A client for each node.
#[derive(Debug)]
pub(super) struct Clients {
    tls: Arc<ClientConfig>,
    /// By id and address: a node that starts again elsewhere gets new connections.
    clients: Mutex<HashMap<(String, String), NodeClient>>,
}

impl Clients {
    #[must_use]
    pub(super) fn new(tls: Arc<ClientConfig>) -> Clients {
        Clients { tls, clients: Mutex::default() }
    }

    /// The client of a node; `None` if its id cannot be in a certificate.
    #[must_use]
    pub(super) fn of(&self, id: &str, address: &str) -> Option<NodeClient> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (id.to_owned(), address.to_owned());
        if let Some(client) = clients.get(&key) {
            return Some(client.clone());
        }
        // An earlier address of this node is not used any more.
        clients.retain(|(known, _), _| known != id);
        let connector = NodeConnector {
            address: address.into(),
            name: tls::node_name(id)?,
            tls: TlsConnector::from(Arc::clone(&self.tls)),
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(connector);
        clients.insert(key, NodeClient::clone(&client));
        Some(client)
    }
}

/// Connects to one node, whatever the URI says.
#[derive(Clone)]
pub(super) struct NodeConnector {
    address: Arc<str>,
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl std::fmt::Debug for NodeConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeConnector").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Service<Uri> for NodeConnector {
    type Response = TokioIo<NodeStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<NodeStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let NodeConnector { address, name, tls } = self.clone();
        let connecting = async move {
            let stream = TcpStream::connect(&*address).await?;
            stream.set_nodelay(true)?;
            let stream = tls.connect(name, stream).await?;
            Ok(TokioIo::new(NodeStream(stream)))
        };
        Box::pin(async move {
            let late = |_| io::Error::from(io::ErrorKind::TimedOut);
            tokio::time::timeout(CONNECT_LIMIT, connecting).await.map_err(late)?
        })
    }
}

/// A connection to a node.
#[derive(Debug)]
pub(super) struct NodeStream(TlsStream<TcpStream>);

impl Connection for NodeStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for NodeStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
