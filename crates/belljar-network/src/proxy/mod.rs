//! The HTTP proxy that serves one connection of a sandbox.
//!
//! ```text
//!   CONNECT host:443 ─────────────────────▶ check ─▶ 200 ─▶ bytes in both directions      (a tunnel)
//!   CONNECT to a host with injected headers ▶ check ─▶ 200 ─▶ TLS as the host ─▶ requests ─▶ TLS to it
//!   GET http://host/path ─────────────────▶ check ─▶ the request, without hop-by-hop headers
//! ```
//!
//! Requests are parsed and written again, never copied, so the proxy and the host cannot disagree on where one
//! ends. The URL or the `CONNECT` alone decides the destination: a different `Host` header is replaced, or
//! refused inside TLS, where there is no URL.

mod access;
mod connect;
mod denial;
mod forward;
mod headers;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http_body_util::combinators::BoxBody;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::lock;
use crate::network::Egress;
use crate::traffic::{OpenVisit, Outcome};

/// How large the head of a request or response may be, and how many headers it may have.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 128;

type ProxyResponse = Response<BoxBody<Bytes, hyper::Error>>;

/// Serves one connection until it ends.
pub(crate) async fn serve(
    egress: Arc<Egress>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    let granted = Arc::new(Mutex::new(None));
    let service = service_fn(|request: Request<Incoming>| {
        let (egress, granted) = (Arc::clone(&egress), Arc::clone(&granted));
        async move {
            Ok::<_, Infallible>(match *request.method() {
                Method::CONNECT => connect::connect(&egress, request, &granted).await,
                _ => forward::forward(&egress, request).await,
            })
        }
    });
    let served = http1(&egress).serve_connection(TokioIo::new(stream), service).with_upgrades();
    if let Err(error) = served.await
        && error.is_parse()
    {
        let mut visit = OpenVisit::begin(&egress.traffic, "", None);
        visit.set_outcome(Outcome::Refused, format!("the client did not send HTTP: {error}"));
    }
    let granted = lock(&granted).take();
    if let Some(granted) = granted {
        granted.serve(&egress).await;
    }
}

fn http1(egress: &Egress) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(egress.network.timeouts.head)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        // Some clients shut down their side after the request and still read the response.
        .half_close(true);
    builder
}

/// Case-insensitive, as some hosts read methods.
fn is_connect(method: &Method) -> bool {
    method.as_str().eq_ignore_ascii_case("CONNECT")
}
