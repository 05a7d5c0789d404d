//! The HTTP proxy of a sandbox.
//!
//! ```text
//!   CONNECT host:443 ─────────────────────▶ check ─▶ 200 ─▶ bytes in both directions      (a tunnel)
//!   CONNECT to a host with injected headers ▶ check ─▶ 200 ─▶ TLS as the host ─▶ requests ─▶ TLS to it
//!   GET http://host/path ─────────────────▶ check ─▶ the request, without hop-by-hop headers
//! ```
//!
//! Requests are parsed and written again, never copied, so the proxy and the host cannot disagree on the end of a
//! request. Only the URL or the `CONNECT` decides the destination: a different `Host` header is replaced, or refused
//! inside TLS, where there is no URL.

mod access;
mod connect;
mod connection;
mod denial;
mod forward;
mod headers;

use std::sync::Arc;

use belljar_proto::relay::MAX_STREAMS;
use http_body_util::combinators::BoxBody;
use hyper::Response;
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

#[cfg(test)]
pub(crate) use connection::serve as serve_connection;
pub use headers::remove_hop_by_hop;

use crate::Policy;
use crate::network::Network;
use crate::outbound::Resolver;
use crate::traffic::Traffic;

/// How large the head of a request or response may be, and how many headers it may have.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 128;

type ProxyResponse = Response<BoxBody<Bytes, hyper::Error>>;

/// Serves the proxy on the connections of one sandbox, until the result is dropped.
pub fn serve(
    network: &Arc<Network>,
    policy: &Policy,
    traffic: &Arc<Traffic>,
    connections: impl Connections,
) -> Serving {
    let egress = Arc::new(Egress {
        network: Arc::clone(network),
        policy: policy.clone(),
        traffic: Arc::clone(traffic),
        resolver: Resolver::new(Arc::clone(&network.dns)),
    });
    Serving(tokio::spawn(serve_all(egress, connections)))
}

/// The proxy of one sandbox.
#[derive(Debug)]
pub(crate) struct Egress {
    pub(crate) network: Arc<Network>,
    pub(crate) policy: Policy,
    pub(crate) traffic: Arc<Traffic>,
    /// Each sandbox has its own resolver, so that slow names of one sandbox do not delay others.
    pub(crate) resolver: Resolver,
}

/// Connections that code in one sandbox opens to the proxy.
pub trait Connections: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection; `None` when there will be no more.
    fn next(&mut self) -> impl Future<Output = Option<Self::Stream>> + Send;
}

/// A running proxy; dropping it closes its connections.
#[derive(Debug)]
#[must_use = "dropping it stops the proxy"]
pub struct Serving(tokio::task::JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How many connections of one sandbox are served at the same time. There can be more than are relayed: when a client
/// disconnects, its relayed connection ends at once, but the request to the host ends later.
const MAX_SERVED: usize = 4 * MAX_STREAMS;

async fn serve_all(egress: Arc<Egress>, mut connections: impl Connections) {
    // Dropping the set ends all connections.
    let mut serving = JoinSet::new();
    loop {
        tokio::select! {
            stream = connections.next(), if serving.len() < MAX_SERVED => match stream {
                Some(stream) => {
                    serving.spawn(connection::serve(Arc::clone(&egress), stream));
                }
                None => return,
            },
            Some(_) = serving.join_next() => {}
        }
    }
}
