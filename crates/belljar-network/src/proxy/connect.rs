//! `CONNECT`: a tunnel, or TLS that the proxy terminates to add headers.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Request, Response, StatusCode, Version, header};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::server::TlsStream;

use super::access::not_in_time;
use super::connection::{http1, is_connect};
use super::denial::Denial;
use super::{Egress, ProxyResponse, forward, headers};
use crate::host::Target;
use crate::lock;
use crate::traffic::{Metered, OpenVisit, Outcome};

/// A `CONNECT` that was answered with 200, and what follows on its connection.
pub(super) struct Granted {
    upgrade: OnUpgrade,
    next: Next,
}

enum Next {
    Tunnel {
        stream: Metered<TcpStream>,
        visit: OpenVisit,
    },
    Terminate {
        target: Target,
        addresses: Vec<SocketAddr>,
    },
    /// Refuse the request inside TLS, because the client shows that response to its user.
    RefuseInside {
        target: Target,
        denial: Denial,
    },
}

pub(super) async fn connect(
    egress: &Egress,
    mut request: Request<Incoming>,
    granted: &Mutex<Option<Granted>>,
) -> ProxyResponse {
    let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
    let target = match Target::parse(&authority, None) {
        Ok(target) => target,
        Err(why) => {
            let visit = OpenVisit::begin(&egress.traffic, "CONNECT", None);
            let authority = authority.escape_debug();
            return Denial::malformed(format!("`{authority}` {why}")).answer(visit);
        }
    };
    let mut visit = OpenVisit::begin(&egress.traffic, "CONNECT", Some(&target));
    let upgrade = hyper::upgrade::on(&mut request);
    let next = match egress.addresses(&target).await {
        Ok(addresses) if egress.terminates(&target) => {
            // The requests inside the tunnel are recorded instead.
            visit.discard();
            Next::Terminate { target, addresses }
        }
        Ok(addresses) => match egress.dial(&target, &addresses, &visit).await {
            Ok(stream) => Next::Tunnel { stream, visit },
            Err(denial) => return denial.answer(visit),
        },
        Err(denial) if is_curl(&request) => {
            visit.set_outcome(denial.outcome, denial.reason.clone());
            Next::RefuseInside { target, denial }
        }
        Err(denial) => return denial.answer(visit),
    };
    *lock(granted) = Some(Granted { upgrade, next });
    Response::new(Full::from(Bytes::new()).map_err(|never| match never {}).boxed())
}

/// curl shows only the status of a refused `CONNECT`. It trusts our authority (`CURL_CA_BUNDLE`), so it gets the
/// refusal, with its reason, as the response to its request inside TLS.
fn is_curl(request: &Request<Incoming>) -> bool {
    let agent = request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    agent.is_some_and(|agent| agent.starts_with("curl/"))
}

impl Granted {
    pub(super) async fn serve(self, egress: &Arc<Egress>) {
        let Ok(client) = self.upgrade.await else { return };
        match self.next {
            Next::Tunnel { stream, visit } => tunnel(egress, client, stream, visit).await,
            Next::Terminate { target, addresses } => {
                terminate(egress, client, target, addresses).await;
            }
            Next::RefuseInside { target, denial } => {
                refuse_inside(egress, client, &target, &denial).await;
            }
        }
    }
}

async fn tunnel(
    egress: &Egress,
    client: Upgraded,
    mut stream: Metered<TcpStream>,
    mut visit: OpenVisit,
) {
    let meter = Arc::clone(&visit.meter);
    let mut client = TokioIo::new(client);
    let copying = copy_bidirectional(&mut client, &mut stream);
    tokio::select! {
        copied = copying => if let Err(error) = copied {
            visit.set_outcome(Outcome::Reached, format!("the connection was lost: {error}"));
        },
        () = meter.idle_for(egress.network.timeouts.idle) => {
            visit.set_outcome(Outcome::Reached, "it was idle for too long".into());
        }
    }
}

/// Answers every request inside TLS with the refusal.
async fn refuse_inside(egress: &Egress, client: Upgraded, target: &Target, denial: &Denial) {
    let Ok(client) = accept_tls(egress, client, target).await else { return };
    let service = service_fn(|_| async { Ok::<_, Infallible>(denial.response()) });
    let mut builder = http1(egress);
    let serving = builder.keep_alive(false).serve_connection(TokioIo::new(client), service);
    let _ = timeout(egress.network.timeouts.head, serving).await;
}

/// Terminates TLS in the name of the host, and sends the requests inside it to the real host.
async fn terminate(
    egress: &Arc<Egress>,
    client: Upgraded,
    target: Target,
    addresses: Vec<SocketAddr>,
) {
    let client = match accept_tls(egress, client, &target).await {
        Ok(client) => client,
        Err(cause) => {
            let mut visit = OpenVisit::begin(&egress.traffic, "CONNECT", Some(&target));
            let reason = format!("the TLS handshake with the sandbox failed: {cause}");
            visit.set_outcome(Outcome::Failed, reason);
            return;
        }
    };
    let destination = Arc::new((target, addresses));
    let service = service_fn(|request: Request<Incoming>| {
        let (egress, destination) = (Arc::clone(egress), Arc::clone(&destination));
        async move {
            let (target, addresses) = &*destination;
            Ok::<_, Infallible>(forward_inside(&egress, request, target, addresses).await)
        }
    });
    let _ = http1(egress).serve_connection(TokioIo::new(client), service).await;
}

async fn accept_tls(
    egress: &Egress,
    client: Upgraded,
    target: &Target,
) -> io::Result<TlsStream<TokioIo<Upgraded>>> {
    let accepting = async {
        let config = egress.network.authority().await?.server_for(&target.host)?;
        TlsAcceptor::from(config).accept(TokioIo::new(client)).await
    };
    let accepted = timeout(egress.network.timeouts.connect, accepting).await;
    accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Sends one request from inside terminated TLS to the real host.
async fn forward_inside(
    egress: &Egress,
    request: Request<Incoming>,
    target: &Target,
    addresses: &[SocketAddr],
) -> ProxyResponse {
    let mut visit = OpenVisit::begin(&egress.traffic, request.method().as_str(), Some(target));
    let connected = async {
        check_host(&request, target)?;
        egress.check_method(request.method(), target, true)?;
        let connecting = connect_tls(egress, target, addresses, &visit);
        let connected = timeout(egress.network.timeouts.connect, connecting).await;
        let stream = connected.unwrap_or_else(|_| Err(not_in_time(target)))?;
        let mut request = headers::rewrite(request, target, 443)?;
        egress.inject(request.headers_mut(), target, true, &mut visit);
        Ok((stream, request))
    };
    match connected.await {
        Ok((stream, request)) => forward::send(egress, stream, request, visit).await,
        Err(denial) => Denial::answer(denial, visit),
    }
}

async fn connect_tls(
    egress: &Egress,
    target: &Target,
    addresses: &[SocketAddr],
    visit: &OpenVisit,
) -> Result<tokio_rustls::client::TlsStream<Metered<TcpStream>>, Denial> {
    let failed = |cause: io::Error| {
        Denial::failed(format!("the TLS handshake with `{target}` failed: {cause}"))
    };
    let stream = egress.dial(target, addresses, visit).await?;
    let name = ServerName::try_from(target.host.bare());
    let name = name.map_err(|why| failed(io::Error::other(why)))?;
    let tls = egress.network.tls().await.map_err(failed)?;
    tls.connect(name, stream).await.map_err(failed)
}

/// Refuses a request inside TLS if it is for another host than the connection.
fn check_host(request: &Request<Incoming>, target: &Target) -> Result<(), Denial> {
    let status = StatusCode::MISDIRECTED_REQUEST;
    let misdirected = |why: &str| Err(Denial { status, ..Denial::malformed(why) });
    let is_target = |authority: &str| Target::parse(authority, Some(443)).as_ref() == Ok(target);
    if is_connect(request.method()) {
        return misdirected("CONNECT is not possible inside a tunnel");
    }
    if request.uri().authority().is_some_and(|authority| !is_target(authority.as_str())) {
        return misdirected("the URL has another host than the connection");
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next().map(|host| host.to_str().is_ok_and(is_target)), hosts.next()) {
        (Some(true), None) => Ok(()),
        (None, None) if request.version() == Version::HTTP_10 => Ok(()),
        _ => misdirected("the `Host` header has another host than the connection"),
    }
}
