//! Serves one connection of a sandbox.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Egress, MAX_HEAD, MAX_HEADERS, connect, forward};
use crate::lock;
use crate::traffic::{OpenVisit, Outcome};

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

pub(super) fn http1(egress: &Egress) -> http1::Builder {
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

/// Case-insensitive, because some hosts read methods like that.
pub(super) fn is_connect(method: &Method) -> bool {
    method.as_str().eq_ignore_ascii_case("CONNECT")
}
