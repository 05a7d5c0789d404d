//! The HTTP proxy that one connection of a sandbox talks to.
//!
//! ```text
//!   CONNECT host:443 ───────────────▶ way ─▶ 200 ─▶ bytes both ways, unread        (a tunnel)
//!   CONNECT, and the host terminates ▶ way ─▶ 200 ─▶ TLS as the host ─▶ requests ─▶ TLS to it
//!   GET http://host/path ───────────▶ way ─▶ the request, without what is between us
//! ```
//!
//! Requests are parsed and written anew, never passed on as they came, so two sides cannot disagree
//! on where one ends. Where somebody goes is decided by the URL or the `CONNECT` alone; a `Host`
//! that says something else is replaced, or refused where there is no URL.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::ext::ReasonPhrase;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::ServerName;

use super::Egress;
use super::host::Target;
use super::traffic::{Metered, Outcome, Trip};
use crate::lock;
use crate::outbound::{self, address};

/// How large the head of a request or of an answer may be, and how many headers it may have.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 128;

/// How many rules of a policy a refusal names.
const MAX_TOLD: usize = 8;

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

/// Why somebody is not let through.
#[derive(Debug)]
struct Denied {
    status: StatusCode,
    outcome: Outcome,
    reason: String,
    /// What can be done about it, for the body of the answer.
    hint: String,
}

impl Denied {
    fn refused(reason: String) -> Denied {
        let (status, outcome) = (StatusCode::FORBIDDEN, Outcome::Refused);
        Denied { status, outcome, reason, hint: String::new() }
    }

    fn unclear(reason: impl Into<String>) -> Denied {
        let reason = reason.into();
        Denied { status: StatusCode::BAD_REQUEST, ..Denied::refused(reason) }
    }

    fn failed(reason: String) -> Denied {
        let (status, outcome) = (StatusCode::BAD_GATEWAY, Outcome::Failed);
        Denied { status, outcome, reason, hint: String::new() }
    }

    fn too_late(reason: String) -> Denied {
        Denied { status: StatusCode::GATEWAY_TIMEOUT, ..Denied::failed(reason) }
    }

    /// Records the end of the trip and answers the client.
    fn answer(self, mut trip: Trip) -> Answer {
        trip.ended(self.outcome, self.reason.clone());
        self.response()
    }

    fn response(&self) -> Answer {
        let hint = if self.hint.is_empty() { "" } else { "\n" };
        let text = format!("belljar: {}\n{}{hint}", self.reason, self.hint);
        let mut answer = Response::new(Full::from(text).map_err(|never| match never {}).boxed());
        *answer.status_mut() = self.status;
        // Clients drop the body of an answer to CONNECT; pip, requests, urllib and httpx show this phrase.
        let phrase = self.status.canonical_reason().unwrap_or("Refused");
        let phrase = format!("{phrase} by belljar: {}", self.reason);
        if let Ok(phrase) = ReasonPhrase::try_from(phrase) {
            answer.extensions_mut().insert(phrase);
        }
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        answer.headers_mut().insert(header::CONTENT_TYPE, plain);
        // So that nobody takes it for the word of whom they wanted to ask.
        let refused = HeaderValue::from_static(self.outcome.name());
        answer.headers_mut().insert(HeaderName::from_static("x-belljar-network"), refused);
        answer
    }
}

/// What follows a `CONNECT` that was granted.
enum Granted {
    Tunnel {
        upgrade: OnUpgrade,
        stream: Metered<tokio::net::TcpStream>,
        trip: Trip,
    },
    Terminated {
        upgrade: OnUpgrade,
        target: Target,
        addresses: Vec<SocketAddr>,
    },
    /// To be refused inside of TLS, where the client shows the answer.
    Refused {
        upgrade: OnUpgrade,
        target: Target,
        denied: Denied,
    },
}

/// Answers one connection to its end.
pub(crate) async fn serve(
    egress: Arc<Egress>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    let granted = Arc::new(Mutex::new(None));
    let service = service_fn(|request: Request<Incoming>| {
        let (egress, granted) = (Arc::clone(&egress), Arc::clone(&granted));
        async move {
            Ok::<_, std::convert::Infallible>(match *request.method() {
                Method::CONNECT => connect(&egress, request, &granted).await,
                _ => forward(&egress, request).await,
            })
        }
    });
    let served = http1(&egress).serve_connection(TokioIo::new(stream), service).with_upgrades();
    if let Err(error) = served.await
        && error.is_parse()
    {
        let mut trip = Trip::begin(&egress.traffic, "", None);
        trip.ended(Outcome::Refused, format!("it was no HTTP: {error}"));
    }
    let granted = lock(&granted).take();
    match granted {
        Some(Granted::Tunnel { upgrade, stream, trip }) => {
            if let Ok(client) = upgrade.await {
                tunnel(&egress, client, stream, trip).await;
            }
        }
        Some(Granted::Terminated { upgrade, target, addresses }) => {
            if let Ok(client) = upgrade.await {
                terminate(&egress, client, target, addresses).await;
            }
        }
        Some(Granted::Refused { upgrade, target, denied }) => {
            if let Ok(client) = upgrade.await {
                refuse_inside(&egress, client, &target, &denied).await;
            }
        }
        None => {}
    }
}

fn http1(egress: &Egress) -> hyper::server::conn::http1::Builder {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(egress.network.patience.head)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        // Some clients say that they have nothing more to say, and still want the answer.
        .half_close(true);
    builder
}

impl Egress {
    /// Whether somebody may go there, and by which addresses.
    async fn way(&self, target: &Target) -> Result<Vec<SocketAddr>, Denied> {
        let ceiling = self.network.ceiling.as_ref();
        if !self.policy.permits(target) {
            let reason = format!("`{target}` is not allowed by the network policy of this sandbox");
            return Err(Denied { hint: self.hint(target), ..Denied::refused(reason) });
        }
        // The operator may have changed their mind since the sandbox was made.
        if ceiling.is_some_and(|most| !most.permits(target)) {
            let hint = "Its operator can allow it with BELLJAR_MAX_NETWORK.".to_owned();
            let reason = format!("`{target}` is not allowed by this server");
            return Err(Denied { hint, ..Denied::refused(reason) });
        }
        if self.traffic.is_used_up() {
            return Err(Denied::refused(
                "this sandbox has moved as many bytes as it may; see BELLJAR_NETWORK_BYTES".into(),
            ));
        }
        let host = target.host.bare();
        let resolving = self.resolver.resolve(&host, target.port);
        let addresses = match timeout(self.network.patience.connect, resolving).await {
            Err(_) => {
                let reason = format!("the address of `{}` was not found in time", target.host);
                return Err(Denied::too_late(reason));
            }
            Ok(Err(cause)) => {
                let reason = format!("the address of `{}` was not found: {cause}", target.host);
                return Err(Denied::failed(reason));
            }
            Ok(Ok(addresses)) => addresses,
        };
        let named = |address: &SocketAddr| {
            let (ip, port) = (address.ip(), address.port());
            self.policy.names(ip, port) && ceiling.is_none_or(|most| most.names(ip, port))
        };
        address::check(&addresses, named).map_err(|refused| {
            tracing::debug!(%target, ?addresses, "a sandbox is refused an address");
            Denied::refused(format!(
                "`{}` has {} address{}",
                target.host,
                refused.kind,
                if refused.can_be_allowed { ", which the policy must list as such" } else { "" }
            ))
        })?;
        Ok(addresses)
    }

    /// What the policy allows, and how another session gets more.
    fn hint(&self, target: &Target) -> String {
        let rules: Vec<String> = self.policy.rules().take(MAX_TOLD).collect();
        let more = self.policy.rules().count().saturating_sub(MAX_TOLD);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!(
            "It allows {}{more}. Who makes the session can allow this host as well: \
             \"network\": {{\"allow\": [\"{target}\", ...]}}, or --network.",
            rules.join(", ")
        )
    }

    /// Connects to one of the addresses, which have been checked.
    async fn dial(
        &self,
        target: &Target,
        addresses: &[SocketAddr],
        trip: &Trip,
    ) -> Result<Metered<tokio::net::TcpStream>, Denied> {
        match timeout(self.network.patience.connect, outbound::dial(addresses)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                Ok(Metered::new(stream, &trip.meter))
            }
            Ok(Err(cause)) => {
                Err(Denied::failed(format!("failed to connect to `{target}`: {cause}")))
            }
            Err(_) => Err(Denied::too_late(format!("`{target}` was not reached in time"))),
        }
    }

    /// Headers to add to requests for this host.
    fn inject(&self, headers: &mut HeaderMap, target: &Target, https: bool, trip: &mut Trip) {
        let injections = self.policy.injections().iter();
        for injection in injections.filter(|it| it.terminate == https && it.target == *target) {
            // The operator may have taken the secret away since.
            if let Some(value) = self.network.secrets.value(injection) {
                headers.insert(injection.header.clone(), value.clone());
                trip.injected(injection.header.as_str());
            }
        }
    }

    /// Whether headers are added to requests for this host.
    fn injects(&self, target: &Target, https: bool) -> bool {
        let mut injections = self.policy.injections().iter();
        injections.any(|it| it.terminate == https && it.target == *target)
    }

    /// A host answers `TRACE` with the request it got, secrets included (RFC 9110, section 9.3.8), and
    /// Microsoft's `TRACK` likewise. Some hosts read methods in any case.
    fn check_method(&self, method: &Method, target: &Target, https: bool) -> Result<(), Denied> {
        let repeats = ["TRACE", "TRACK"].iter().any(|it| method.as_str().eq_ignore_ascii_case(it));
        if repeats && self.injects(target, https) {
            return Err(Denied::refused(format!(
                "{method} is not allowed for `{target}`: it would repeat the secret that is added"
            )));
        }
        Ok(())
    }

    fn terminates(&self, target: &Target) -> bool {
        self.policy.injections().iter().any(|it| it.terminate && it.target == *target)
    }
}

async fn connect(
    egress: &Egress,
    mut request: Request<Incoming>,
    granted: &Mutex<Option<Granted>>,
) -> Answer {
    let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
    let target = match Target::parse(&authority, None) {
        Ok(target) => target,
        Err(why) => {
            let trip = Trip::begin(&egress.traffic, "CONNECT", None);
            let authority = authority.escape_debug();
            return Denied::unclear(format!("`{authority}` {why}")).answer(trip);
        }
    };
    let mut trip = Trip::begin(&egress.traffic, "CONNECT", Some(&target));
    let upgrade = hyper::upgrade::on(&mut request);
    let way = egress.way(&target).await;
    let next = match way {
        Ok(addresses) if egress.terminates(&target) => {
            // Its requests are recorded one by one.
            trip.forget();
            Granted::Terminated { upgrade, target, addresses }
        }
        Ok(addresses) => match egress.dial(&target, &addresses, &trip).await {
            Ok(stream) => Granted::Tunnel { upgrade, stream, trip },
            Err(denied) => return denied.answer(trip),
        },
        Err(denied) if is_curl(&request) => {
            trip.ended(denied.outcome, denied.reason.clone());
            Granted::Refused { upgrade, target, denied }
        }
        Err(denied) => return denied.answer(trip),
    };
    *lock(granted) = Some(next);
    let nothing = Full::from(Bytes::new()).map_err(|never| match never {}).boxed();
    Response::new(nothing)
}

/// curl shows nothing of a refused `CONNECT` but its number. It believes our authority
/// (`CURL_CA_BUNDLE`), so it gets the refusal, with its reason, as the answer to its request.
fn is_curl(request: &Request<Incoming>) -> bool {
    let agent = request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    agent.is_some_and(|agent| agent.starts_with("curl/"))
}

/// Answers whatever is asked inside of TLS with a refusal.
async fn refuse_inside(egress: &Egress, client: Upgraded, target: &Target, denied: &Denied) {
    let shaking = async {
        let config = egress.network.authority().await?.as_host(&target.host)?;
        TlsAcceptor::from(config).accept(TokioIo::new(client)).await
    };
    let Ok(Ok(client)) = timeout(egress.network.patience.connect, shaking).await else { return };
    let service = service_fn(|_| async { Ok::<_, std::convert::Infallible>(denied.response()) });
    let mut builder = http1(egress);
    let serving = builder.keep_alive(false).serve_connection(TokioIo::new(client), service);
    let _ = timeout(egress.network.patience.head, serving).await;
}

async fn tunnel(
    egress: &Egress,
    client: Upgraded,
    mut stream: Metered<tokio::net::TcpStream>,
    mut trip: Trip,
) {
    let meter = Arc::clone(&trip.meter);
    let mut client = TokioIo::new(client);
    let copying = copy_bidirectional(&mut client, &mut stream);
    tokio::select! {
        copied = copying => if let Err(error) = copied {
            trip.ended(Outcome::Reached, format!("it was cut off: {error}"));
        },
        () = meter.idle_for(egress.network.patience.idle) => {
            trip.ended(Outcome::Reached, "it was idle for too long".into());
        }
    }
}

/// Is the host as far as the sandbox can tell, and asks the real one.
async fn terminate(
    egress: &Arc<Egress>,
    client: Upgraded,
    target: Target,
    addresses: Vec<SocketAddr>,
) {
    let shaking = async {
        let config = egress.network.authority().await?.as_host(&target.host)?;
        TlsAcceptor::from(config).accept(TokioIo::new(client)).await
    };
    let client = match timeout(egress.network.patience.connect, shaking).await {
        Ok(Ok(client)) => client,
        Ok(Err(cause)) => {
            let mut trip = Trip::begin(&egress.traffic, "CONNECT", Some(&target));
            trip.ended(Outcome::Failed, format!("the sandbox did not agree to TLS: {cause}"));
            return;
        }
        Err(_) => {
            let mut trip = Trip::begin(&egress.traffic, "CONNECT", Some(&target));
            trip.ended(Outcome::Failed, "the sandbox did not agree to TLS in time".into());
            return;
        }
    };
    let target = Arc::new((target, addresses));
    let service = service_fn(|request: Request<Incoming>| {
        let (egress, target) = (Arc::clone(egress), Arc::clone(&target));
        async move {
            let answer = ask_by_tls(&egress, request, &target.0, &target.1).await;
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let _ = http1(egress).serve_connection(TokioIo::new(client), service).await;
}

async fn ask_by_tls(
    egress: &Egress,
    request: Request<Incoming>,
    target: &Target,
    addresses: &[SocketAddr],
) -> Answer {
    let mut trip = Trip::begin(&egress.traffic, request.method().as_str(), Some(target));
    if let Err(why) = is_for(&request, target) {
        let status = StatusCode::MISDIRECTED_REQUEST;
        return Denied { status, ..Denied::unclear(why) }.answer(trip);
    }
    if let Err(denied) = egress.check_method(request.method(), target, true) {
        return denied.answer(trip);
    }
    let connecting = async {
        let stream = egress.dial(target, addresses, &trip).await?;
        let failed = |cause: std::io::Error| {
            Denied::failed(format!("failed to agree on TLS with `{target}`: {cause}"))
        };
        let name = ServerName::try_from(target.host.bare())
            .map_err(|why| failed(std::io::Error::other(why)))?;
        let tls = egress.network.tls().await.map_err(failed)?;
        tls.connect(name, stream).await.map_err(failed)
    };
    let stream = match timeout(egress.network.patience.connect, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(denied)) => return denied.answer(trip),
        Err(_) => {
            return Denied::too_late(format!("`{target}` was not reached in time")).answer(trip);
        }
    };
    let mut request = match cleaned(request, target, 443) {
        Ok(request) => request,
        Err(denied) => return denied.answer(trip),
    };
    egress.inject(request.headers_mut(), target, true, &mut trip);
    ask(egress, stream, request, trip).await
}

/// Whether a request inside of TLS is for the host that TLS was agreed on with.
fn is_for(request: &Request<Incoming>, target: &Target) -> Result<(), &'static str> {
    let same = |authority: &str| Target::parse(authority, Some(443)).as_ref() == Ok(target);
    if is_connect(request.method()) {
        return Err("there is no proxy behind this host");
    }
    if request.uri().authority().is_some_and(|authority| !same(authority.as_str())) {
        return Err("its URL names another host than the connection is for");
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next().map(|host| host.to_str().is_ok_and(same)), hosts.next()) {
        (Some(true), None) => Ok(()),
        (None, None) if request.version() == Version::HTTP_10 => Ok(()),
        _ => Err("its `Host` is not the one that the connection is for"),
    }
}

/// In any case, as some hosts would read it.
fn is_connect(method: &Method) -> bool {
    method.as_str().eq_ignore_ascii_case("CONNECT")
}

async fn forward(egress: &Egress, request: Request<Incoming>) -> Answer {
    let target = match is_connect(request.method()) {
        true => Err(Denied::unclear("CONNECT is written in capitals")),
        false => url_of(request.uri()),
    };
    let known = target.as_ref().ok();
    let mut trip = Trip::begin(&egress.traffic, request.method().as_str(), known);
    let connected = async {
        let target = target?;
        egress.check_method(request.method(), &target, false)?;
        let addresses = egress.way(&target).await?;
        let mut request = cleaned(request, &target, 80)?;
        egress.inject(request.headers_mut(), &target, false, &mut trip);
        let stream = egress.dial(&target, &addresses, &trip).await?;
        Ok((stream, request))
    };
    match connected.await {
        Ok((stream, request)) => ask(egress, stream, request, trip).await,
        Err(denied) => Denied::answer(denied, trip),
    }
}

/// Where a plain request wants to go.
fn url_of(uri: &Uri) -> Result<Target, Denied> {
    match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(authority)) => Target::parse(authority.as_str(), Some(80))
            .map_err(|why| Denied::unclear(format!("`{}` {why}", authority.as_str()))),
        (Some("https"), Some(_)) => {
            Err(Denied::unclear("https goes through a tunnel: ask for it with CONNECT"))
        }
        (Some(scheme), _) => {
            Err(Denied::unclear(format!("only http and https get out, and no `{scheme}`")))
        }
        _ => Err(Denied::unclear("this is a proxy: ask for a whole URL, or with CONNECT")),
    }
}

/// What is between two neighbours and not part of the request or answer itself.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Headers that the ones of `Connection` name as being between neighbours, too.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // Naming these would change the request itself.
        .filter(|name| *name != header::HOST && *name != header::CONTENT_LENGTH)
        .collect();
    for name in named.into_iter().chain(HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// The request as it goes on: for this host, and framed by us.
fn cleaned(
    request: Request<Incoming>,
    target: &Target,
    default_port: u16,
) -> Result<Request<Incoming>, Denied> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    // `http://host?query` has no path of its own.
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    parts.uri = path.parse().map_err(|_| Denied::unclear("its path is no path"))?;
    parts.version = Version::HTTP_11;
    strip(&mut parts.headers);
    parts.headers.remove(header::EXPECT);
    let host = match target.port {
        port if port == default_port => target.host.to_string(),
        _ => target.to_string(),
    };
    let host = HeaderValue::try_from(host).map_err(|_| Denied::unclear("its host is no host"))?;
    parts.headers.insert(header::HOST, host);
    // How long a body is follows from how it was read, not from what was said beside it.
    match body.size_hint().exact() {
        Some(length) if length > 0 || parts.headers.contains_key(header::CONTENT_LENGTH) => {
            parts.headers.insert(header::CONTENT_LENGTH, length.into());
        }
        _ => {
            parts.headers.remove(header::CONTENT_LENGTH);
        }
    }
    Ok(Request::from_parts(parts, body))
}

/// Sends a request and passes the answer back.
async fn ask(
    egress: &Egress,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Incoming>,
    trip: Trip,
) -> Answer {
    let shaken = hyper::client::conn::http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = match shaken {
        Ok(shaken) => shaken,
        Err(error) => return Denied::failed(format!("it broke off: {error}")).answer(trip),
    };
    let (meter, patience) = (Arc::clone(&trip.meter), egress.network.patience.idle);
    let mut moving = JoinSet::new();
    let watched = Arc::clone(&meter);
    moving.spawn(async move {
        tokio::select! {
            // What goes wrong is told to whoever waits for the answer or reads its body.
            _ = connection => {}
            () = watched.idle_for(patience) => {}
        }
    });
    let response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(_) if meter.was_idle() => {
            return Denied::too_late("it did not answer in time".into()).answer(trip);
        }
        Err(error) => {
            let why = if error.is_parse() { "what it answers is no HTTP" } else { "it broke off" };
            return Denied::failed(format!("{why}: {error}")).answer(trip);
        }
    };
    let (mut parts, body) = response.into_parts();
    meter.status(parts.status.as_u16());
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        return Denied::failed("it changed the protocol unasked".into()).answer(trip);
    }
    strip(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let body = Passed { body, _moving: moving, _trip: trip };
    Response::from_parts(parts, body.boxed())
}

/// The body of an answer, and what must last as long as it does.
struct Passed {
    body: Incoming,
    _moving: JoinSet<()>,
    _trip: Trip,
}

impl Body for Passed {
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
