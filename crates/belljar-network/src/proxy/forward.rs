//! Handles requests with an absolute URL, and sends requests of any kind to their host.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use super::connection::is_connect;
use super::denial::Denial;
use super::{Egress, MAX_HEAD, MAX_HEADERS, ProxyResponse, headers};
use crate::host::Target;
use crate::traffic::OpenVisit;

pub(super) async fn forward(egress: &Egress, request: Request<Incoming>) -> ProxyResponse {
    let target = match is_connect(request.method()) {
        true => Err(Denial::malformed("the method CONNECT must be in capitals")),
        false => target_of(request.uri()),
    };
    let known = target.as_ref().ok();
    let mut visit = OpenVisit::begin(&egress.traffic, request.method().as_str(), known);
    let connected = async {
        let target = target?;
        egress.check_method(request.method(), &target, false)?;
        let addresses = egress.addresses(&target).await?;
        let mut request = headers::rewrite(request, &target, 80)?;
        egress.inject(request.headers_mut(), &target, false, &mut visit);
        let stream = egress.dial(&target, &addresses, &visit).await?;
        Ok((stream, request))
    };
    match connected.await {
        Ok((stream, request)) => send(egress, stream, request, visit).await,
        Err(denial) => Denial::answer(denial, visit),
    }
}

/// The destination of a request with an absolute URL. hyper has parsed the URL.
fn target_of(uri: &Uri) -> Result<Target, Denial> {
    match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(authority)) => Target::parse(authority.as_str(), Some(80))
            .map_err(|why| Denial::malformed(format!("`{}` {why}", authority.as_str()))),
        (Some("https"), Some(_)) => {
            Err(Denial::malformed("https needs a tunnel: send CONNECT first"))
        }
        (Some(scheme), _) => {
            Err(Denial::malformed(format!("the proxy supports http and https, not `{scheme}`")))
        }
        _ => Err(Denial::malformed("this is a proxy: send an absolute URL, or CONNECT")),
    }
}

/// Sends a request to its host and returns the response.
pub(super) async fn send(
    egress: &Egress,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Incoming>,
    visit: OpenVisit,
) -> ProxyResponse {
    let connected = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = match connected {
        Ok(connected) => connected,
        Err(error) => return Denial::failed(lost(&error)).answer(visit),
    };
    let (meter, idle) = (Arc::clone(&visit.meter), egress.network.timeouts.idle);
    let mut moving = JoinSet::new();
    let watched = Arc::clone(&meter);
    moving.spawn(async move {
        tokio::select! {
            // The same errors are also returned by `send_request` and by the body.
            _ = connection => {}
            () = watched.idle_for(idle) => {}
        }
    });
    let response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(_) if meter.was_idle() => {
            return Denial::timed_out("the host did not answer in time").answer(visit);
        }
        Err(error) => return Denial::failed(lost(&error)).answer(visit),
    };
    let (mut parts, body) = response.into_parts();
    meter.status(parts.status.as_u16());
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        return Denial::failed("the host changed the protocol without being asked").answer(visit);
    }
    headers::remove_hop_by_hop(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let body = ForwardedBody { body, _moving: moving, _visit: visit };
    Response::from_parts(parts, body.boxed())
}

fn lost(error: &hyper::Error) -> String {
    match error.is_parse() {
        true => format!("the host did not answer with HTTP: {error}"),
        false => format!("the connection to the host was lost: {error}"),
    }
}

/// The body of a response, with the values that must live as long as the body.
struct ForwardedBody {
    body: Incoming,
    _moving: JoinSet<()>,
    _visit: OpenVisit,
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
