//! Passes one request on to one node, and its answer back. Bodies are streamed in both directions.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use belljar_api::listen::Peer;
use belljar_network::remove_hop_by_hop;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::connect::Clients;
use super::headers;
use super::nodes::Nodes;
use super::placement;

/// The id of the node that answered, for operators.
const NODE: HeaderName = HeaderName::from_static("belljar-node");

/// A node and its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeAddress {
    pub(super) id: String,
    pub(super) address: String,
}

/// Why a node gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    /// Nothing was sent, so the request had no effect.
    #[error("failed to connect to node {node}")]
    Unreachable {
        node: String,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The request may have had an effect.
    #[error("the connection to node {node} ended before its answer")]
    Broken {
        node: String,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The request may have had an effect.
    #[error("node {node} lost its lease before its answer")]
    Lost { node: String },
    /// The body was sent to another node already, and was not kept.
    #[error("the body of the request was sent and cannot be sent again")]
    Sent,
}

/// A request on its way to a node.
#[derive(Debug)]
pub(super) struct Outgoing {
    method: Method,
    /// Path and query, as the client wrote them.
    path: String,
    headers: HeaderMap,
    body: Payload,
    /// The client's side of a change of protocol.
    upgrade: Option<OnUpgrade>,
}

#[derive(Debug)]
pub(super) enum Payload {
    /// Can be sent again.
    Kept(Bytes),
    /// Can be sent once.
    Stream(Option<Body>),
}

impl Outgoing {
    /// Takes a request apart. Returns its body too, of which the caller decides whether it is kept.
    pub(super) fn new(request: Request) -> (Outgoing, Body) {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let wanted = headers::wanted_upgrade(&parts.headers);
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        let peer = parts.extensions.get::<Peer>().copied();
        headers::remove_own(&mut parts.headers);
        headers::add_forwarded(&mut parts.headers, peer);
        let upgrade = upgrade.zip(wanted).map(|(upgrade, protocol)| {
            headers::set_upgrade(&mut parts.headers, protocol);
            upgrade
        });
        let (method, headers) = (parts.method, parts.headers);
        (Outgoing { method, path, headers, body: Payload::Stream(None), upgrade }, body)
    }

    /// With the base of links to artifacts.
    #[must_use]
    pub(super) fn linking_to(mut self, url: Option<&HeaderValue>) -> Outgoing {
        headers::set_public_url(&mut self.headers, url);
        self
    }

    #[must_use]
    pub(super) fn with(mut self, body: Payload) -> Outgoing {
        self.body = body;
        self
    }

    /// Whether it can be sent to a second node.
    #[must_use]
    pub(super) fn is_kept(&self) -> bool {
        matches!(self.body, Payload::Kept(_))
    }

    fn request(&mut self, node: &NodeAddress) -> Result<Request, ProxyError> {
        let body = match &mut self.body {
            Payload::Kept(bytes) => Body::from(bytes.clone()),
            Payload::Stream(body) => body.take().ok_or(ProxyError::Sent)?,
        };
        let unreachable = |cause: axum::http::Error| ProxyError::Unreachable {
            node: node.id.clone(),
            cause: cause.into(),
        };
        let uri = format!("http://{}{}", node.address, self.path);
        let uri = uri.parse::<Uri>().map_err(|error| unreachable(error.into()))?;
        let request = Request::builder().method(self.method.clone()).uri(uri).body(body);
        let mut request = request.map_err(unreachable)?;
        *request.headers_mut() = self.headers.clone();
        Ok(request)
    }
}

/// Sends the request to a node and returns the answer, whose body is still to be read.
pub(super) async fn send(
    clients: &Clients,
    nodes: &Arc<Nodes>,
    node: &NodeAddress,
    outgoing: &mut Outgoing,
) -> Result<Response<Incoming>, ProxyError> {
    let id = || node.id.clone();
    let client = clients.of(&node.id, &node.address).ok_or_else(|| ProxyError::Unreachable {
        node: id(),
        cause: "its id is not valid".into(),
    })?;
    if nodes.find(&node.id).is_some_and(|row| placement::has_ended(&row)) {
        return Err(ProxyError::Unreachable { node: id(), cause: "it lost its lease".into() });
    }
    let request = outgoing.request(node)?;
    tokio::select! {
        answer = client.request(request) => answer.map_err(|error| match error.is_connect() {
            true => ProxyError::Unreachable { node: id(), cause: error.into() },
            false => ProxyError::Broken { node: id(), cause: error.into() },
        }),
        () = nodes.lost(&node.id) => Err(ProxyError::Lost { node: id() }),
    }
}

/// The node's answer for the client.
pub(super) fn answer(
    mut answer: Response<Incoming>,
    nodes: &Arc<Nodes>,
    node: &NodeAddress,
    outgoing: Outgoing,
) -> Response {
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let protocol = answer.headers().get(header::UPGRADE).cloned();
        if let (Some(client), Some(protocol)) = (outgoing.upgrade, protocol) {
            let far = hyper::upgrade::on(&mut answer);
            tokio::spawn(tunnel(client, far, Arc::clone(nodes), node.id.clone()));
            let (mut parts, _) = answer.into_parts();
            remove_hop_by_hop(&mut parts.headers);
            headers::set_upgrade(&mut parts.headers, protocol);
            return Response::from_parts(parts, Body::empty());
        }
    }
    let (mut parts, body) = answer.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    if let Ok(id) = HeaderValue::from_str(&node.id) {
        parts.headers.insert(NODE, id);
    }
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        // The client did not ask for another protocol.
        parts.status = StatusCode::BAD_GATEWAY;
    }
    let is_event_stream = |value: &HeaderValue| value.as_bytes().starts_with(b"text/event-stream");
    let is_endless = parts.headers.get(header::CONTENT_TYPE).is_some_and(is_event_stream);
    let body = match body.size_hint().exact() {
        Some(_) if !is_endless => Body::new(body),
        _ => Body::new(Watched { body, lost: lost(nodes, node) }),
    };
    Response::from_parts(parts, body)
}

/// Copies bytes in both directions until both sides have ended, or the node is lost.
async fn tunnel(client: OnUpgrade, node: OnUpgrade, nodes: Arc<Nodes>, id: String) {
    let (client, node) = match tokio::try_join!(client, node) {
        Ok(sides) => sides,
        Err(error) => {
            tracing::debug!("a connection ended before its protocol changed: {error}");
            return;
        }
    };
    let (mut client, mut node) = (TokioIo::new(client), TokioIo::new(node));
    tokio::select! {
        // An abrupt end is nothing unusual for a WebSocket.
        _ = copy_bidirectional(&mut client, &mut node) => {}
        () = nodes.lost(&id) => {}
    }
}

type LostFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

fn lost(nodes: &Arc<Nodes>, node: &NodeAddress) -> LostFuture {
    let (nodes, id) = (Arc::clone(nodes), node.id.clone());
    Box::pin(async move { nodes.lost(&id).await })
}

/// A body of unknown length, which fails when its node is lost. Without this, clients of a node that is stopped or cut off
/// would wait for ever.
struct Watched {
    body: Incoming,
    lost: LostFuture,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        match self.lost.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err("the node lost its lease".into()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
