//! Decides which requests are served: checks Host, Origin, key and rate.
//!
//! A server without keys trusts every client that can reach it, so it listens only on the local machine. It must not
//! serve web pages that the user happens to visit. Such a page may resolve its own name to 127.0.0.1, which the Host
//! header shows, or send cross-site requests, which the Origin header shows.

use std::borrow::Cow;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use belljar_engine::keys::KeyRing;
use belljar_engine::store::StoreError;
use belljar_engine::{Principal, in_full};
use futures_util::FutureExt as _;

use crate::App;
use crate::cors;
use crate::error::{ApiError, internal, unavailable};
use crate::input::{BodyLimit, Stall, malformed};
use crate::tickets;

/// Settings for the accepted hosts, origins and keys.
#[derive(Debug, Clone, Default)]
pub struct GuardConfig {
    /// Names for this server in the Host header, without port.
    pub hosts: Vec<String>,
    /// Web origins that may call from a browser.
    pub origins: Vec<String>,
    /// Whether a key is required even if none exists, because the server can be reached from other machines.
    pub keys_required: bool,
    /// Whether requests come through a UNIX socket, where the Host header has no meaning.
    pub local_socket: bool,
    /// Whether requests come from gateways, which have checked Host, Origin and rate. Keys are checked here too.
    pub behind_gateway: bool,
}

impl GuardConfig {
    /// Whether clients need a key.
    #[must_use]
    pub fn wants_keys(&self, keys: &KeyRing) -> bool {
        self.keys_required || !keys.is_empty()
    }
}

/// How many characters of a path or a header are repeated in a response or a log.
const MAX_SHOWN: usize = 100;

/// Paths that need no key. With a key the response contains more.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];

/// Paths that need a signed token instead of a key; their handler checks it.
const SIGNED: &str = "/artifacts/";

/// Paths with data of all tenants.
const OPERATORS: [&str; 1] = ["/metrics"];

pub(crate) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    app.note_request();
    let page = cors::allowed_page(request.headers(), &app.guard.origins);
    let mut response = match page.is_some() && cors::is_preflight(&request) {
        // A preflight request has no key.
        true => match answer_preflight(&app.guard, &app.keys, request.uri(), request.headers()) {
            Ok(response) => response,
            Err(error) => refuse(&app, &request, Rejection::from(error)),
        },
        false => match admit(&app, request.uri(), request.headers()).await {
            Ok(principal) => serve(&app, principal, request, next).await,
            Err(rejection) => refuse(&app, &request, rejection),
        },
    };
    if !app.guard.origins.is_empty() {
        cors::add_headers(page.as_ref(), response.headers_mut());
    }
    response
}

/// Answers a preflight request of a page that may call this server.
pub fn answer_preflight(
    config: &GuardConfig,
    keys: &KeyRing,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    check_names(config, config.wants_keys(keys), uri, headers)?;
    Ok(cors::preflight())
}

async fn serve(app: &App, principal: Principal, mut request: Request, next: Next) -> Response {
    let share = app.tenants.of(&principal.tenant);
    let extensions = request.extensions_mut();
    extensions.insert(principal);
    extensions.insert(BodyLimit(app.max_body));
    extensions.insert(Stall(app.stall()));
    extensions.insert(share.clone());
    // Requests without a key are not charged to a tenant here, because the tenant of the artifact is not known yet.
    let path = request.uri().path();
    if OPEN.contains(&path) || path.starts_with(SIGNED) {
        return handle(request, next).await;
    }
    match share.enter() {
        Ok(entered) => share.charge(handle(request, next).await, entered).await,
        Err(error) => error.into_response(),
    }
}

/// Runs the handler. A panic becomes an internal error like any other.
async fn handle(request: Request, next: Next) -> Response {
    let path = quoted(request.uri().path()).into_owned();
    let handled = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    handled.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        tracing::error!("panic while answering {path}: {}", text.unwrap_or("no message"));
        internal("the server failed to handle this request".into()).into_response()
    })
}

fn refuse(app: &App, request: &Request, Rejection { error, who }: Rejection) -> Response {
    let path = quoted(request.uri().path());
    let detail = format!("{} {path}: {}", request.method(), error.message);
    app.engine.audit().refuse(who.as_ref(), error.code, &detail);
    error.into_response()
}

/// Why a request is refused, and its principal if that is known.
struct Rejection {
    error: ApiError,
    who: Option<Principal>,
}

impl From<ApiError> for Rejection {
    fn from(error: ApiError) -> Rejection {
        Rejection { error, who: None }
    }
}

async fn admit(app: &App, uri: &Uri, headers: &HeaderMap) -> Result<Principal, Rejection> {
    let principal = match identify(&app.guard, &app.keys, uri, headers).await? {
        Identity::Open(principal) => return Ok(principal),
        Identity::Ticket { ticket, session } => return Ok(redeem(app, ticket, session).await?),
        Identity::Key(principal) => principal,
    };
    if let (Some(per_minute), Some(key)) =
        (principal.limits.requests_per_minute, principal.key_id.as_ref())
        && !app.guard.behind_gateway
        && let Err(seconds) = app.rates.take(key, per_minute, Instant::now())
    {
        let error = too_fast(per_minute, seconds);
        return Err(Rejection { error, who: Some(principal) });
    }
    match check_role(&principal, uri.path()) {
        Ok(()) => Ok(principal),
        Err(error) => Err(Rejection { error, who: Some(principal) }),
    }
}

/// What the headers of a request prove.
#[derive(Debug)]
pub enum Identity<'a> {
    /// The path needs no key, or the server needs none. Without a key, the principal is the default one.
    Open(Principal),
    /// A valid key. Its rate and its role are not checked yet.
    Key(Principal),
    /// A ticket for a WebSocket of this session. It is not checked yet.
    Ticket { ticket: &'a str, session: &'a str },
}

/// Finds out on whose behalf a request comes, after checking that it is meant for this server.
pub async fn identify<'a>(
    config: &GuardConfig,
    keys: &KeyRing,
    uri: &'a Uri,
    headers: &'a HeaderMap,
) -> Result<Identity<'a>, ApiError> {
    let wants_keys = config.wants_keys(keys);
    check_names(config, wants_keys, uri, headers)?;
    let path = uri.path();
    if !wants_keys || path.starts_with(SIGNED) {
        return Ok(Identity::Open(Principal::default()));
    }
    let is_open = OPEN.contains(&path);
    let Some(secret) = key_of(headers) else {
        if is_open {
            return Ok(Identity::Open(Principal::default()));
        }
        if let Some((ticket, session)) = tickets::ticket_of(headers, path) {
            return Ok(Identity::Ticket { ticket, session });
        }
        return Err(ApiError::unauthorized("this server needs an API key"));
    };
    let principal = match keys.recognise(secret) {
        Some(principal) => principal,
        // Monitoring must not fail because its key was revoked.
        None if is_open => return Ok(Identity::Open(Principal::default())),
        None => {
            // The key may have been created a moment ago.
            let unknown =
                || ApiError::unauthorized("this API key is not known here, or was revoked");
            let read = refresh(keys).await;
            keys.recognise(secret).ok_or_else(|| read.err().unwrap_or_else(unknown))?
        }
    };
    Ok(if is_open { Identity::Open(principal) } else { Identity::Key(principal) })
}

/// Reads the keys again. Fails if the database cannot be reached, so that it is not known whether a key is valid.
async fn refresh(keys: &KeyRing) -> Result<(), ApiError> {
    match keys.refresh().await {
        Ok(()) => Ok(()),
        Err(error) => {
            tracing::error!("failed to read the keys: {}", in_full(&error));
            match error {
                StoreError::Unavailable(_) => Err(unavailable(error.to_string())),
                _ => Ok(()),
            }
        }
    }
}

/// The error for a key with too many requests.
#[must_use]
pub fn too_fast(per_minute: u32, seconds: u32) -> ApiError {
    ApiError::too_many(format!("more than {per_minute} requests per minute"), seconds)
}

/// Data of all tenants is for operators only. An operator's key gives access to nothing else: monitoring systems have
/// it, and they must not reach sandboxes.
pub fn check_role(who: &Principal, path: &str) -> Result<(), ApiError> {
    match (who.limits.operator, OPERATORS.contains(&path)) {
        (false, true) => {
            Err(ApiError::forbidden("operators_only", format!("`{path}` is for operators"))
                .hint("`belljar key create --operator` makes a key for it"))
        }
        (true, false) => {
            let message = "an operator's key is for /metrics and /healthz only";
            Err(ApiError::forbidden("operators_key", message)
                .hint("`belljar key create` without --operator makes one for sessions"))
        }
        _ => Ok(()),
    }
}

/// Checks that the request is meant for this server, and that its page may call the server.
fn check_names(
    config: &GuardConfig,
    wants_keys: bool,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), ApiError> {
    if config.behind_gateway {
        return Ok(());
    }
    let host = host_of(uri, headers)?;
    check_origin(headers, host, config)?;
    if wants_keys { Ok(()) } else { check_host(host, config) }
}

/// The host that the request names (RFC 9112, sections 3.2 and 3.2.2): in its target, or in its Host header. An
/// ambiguous request is refused, because a proxy in front of this server may have read it differently.
fn host_of<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<&'a str, ApiError> {
    let mut hosts = headers.get_all(header::HOST).into_iter();
    let host = match hosts.next() {
        Some(host) => host.to_str().map_err(|_| malformed("the Host header is not text"))?,
        None => "",
    };
    if hosts.next().is_some() {
        return Err(malformed("the request has more than one Host header"));
    }
    match uri.authority().map(|authority| authority.as_str()) {
        Some(target) if !host.is_empty() && !target.eq_ignore_ascii_case(host) => {
            Err(malformed("the request's target and its Host header name different hosts"))
        }
        Some(target) => Ok(target),
        None => Ok(host),
    }
}

/// The beginning of text that a client sent.
fn quoted(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// The principal that asked for the ticket, if its key is still valid.
async fn redeem(app: &App, ticket: &str, session: &str) -> Result<Principal, ApiError> {
    let wrong = || ApiError::unauthorized("this ticket is not known here, was used, or is too old");
    let who = app.tickets.redeem(ticket, session, Instant::now()).ok_or_else(wrong)?;
    if let Some(key) = &who.key_id {
        let read = refresh(&app.keys).await;
        if !app.keys.has(key) {
            return Err(read.err().unwrap_or_else(wrong));
        }
    }
    Ok(who)
}

fn key_of(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}

fn check_host(host: &str, config: &GuardConfig) -> Result<(), ApiError> {
    if config.local_socket {
        return Ok(());
    }
    if is_loopback(host) || config.hosts.iter().any(|known| known.eq_ignore_ascii_case(name(host)))
    {
        return Ok(());
    }
    let message = format!("this server is not called `{}`", quoted(host));
    Err(ApiError::forbidden("wrong_host", message).hint(
        "call it by 127.0.0.1 or localhost, add the name to BELLJAR_ALLOWED_HOSTS, or create an \
         API key",
    ))
}

fn check_origin(headers: &HeaderMap, host: &str, config: &GuardConfig) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let own = origin.split_once("://").is_some_and(|(_, authority)| authority == host);
    let known = cors::is_known(&config.origins, origin);
    // Pages of this server itself are allowed, if the name in both headers really belongs to this server.
    if known || (own && (is_loopback(host) || config.keys_required || config.local_socket)) {
        return Ok(());
    }
    let message = format!("web pages of `{}` may not call this server", quoted(origin));
    Err(ApiError::forbidden("wrong_origin", message)
        .hint("add the origin to BELLJAR_ALLOWED_ORIGINS"))
}

/// The name in a Host header, without the port.
fn name(host: &str) -> &str {
    if host.starts_with('[') {
        return host.split_once(']').map_or(host, |(name, _)| &name[1..]);
    }
    host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host }
    })
}

fn is_loopback(host: &str) -> bool {
    let name = name(host);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use axum::{Router, middleware};
    use belljar_engine::keys;
    use belljar_engine::store::{DatabaseUrl, KeyLimits, PostgresStore, Store};
    use belljar_testkit::postgres::Postgres;
    use http_body_util::BodyExt as _;
    use tower::Service as _;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_answered_with_an_error_in_json() {
        async fn broken() {
            panic!("secret of the server");
        }
        let mut router = Router::new().route("/", get(broken)).layer(middleware::from_fn(handle));
        let answer = router.call(Request::<axum::body::Body>::default()).await.unwrap();
        assert_eq!(answer.status(), 500);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/json");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "internal");
        assert!(!body.to_string().contains("secret"), "{body}");
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_page_that_points_its_own_name_at_us_is_refused() {
        let config = GuardConfig { hosts: vec!["jar.lan".into()], ..GuardConfig::default() };
        for good in ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", "jar.lan:80"] {
            assert!(check_host(good, &config).is_ok(), "{good}");
        }
        for bad in
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "", "[::2]"]
        {
            assert!(check_host(bad, &config).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        let config =
            GuardConfig { origins: vec!["https://app.example".into()], ..GuardConfig::default() };
        let with =
            |origin: &str, host: &str| check_origin(&headers(&[("origin", origin)]), host, &config);
        assert!(with("http://127.0.0.1:8000", "127.0.0.1:8000").is_ok());
        assert!(with("https://app.example", "127.0.0.1:8000").is_ok());
        assert!(with("http://evil.example", "127.0.0.1:8000").is_err());
        assert!(with("http://evil.example", "evil.example").is_err(), "rebound");
        assert!(with("http://127.0.0.1:9999", "127.0.0.1:8000").is_err(), "another port");
        assert!(with("null", "127.0.0.1:8000").is_err());
        assert!(check_origin(&headers(&[]), "", &config).is_ok(), "not a browser");
    }

    #[test]
    fn a_request_calls_us_by_one_name() {
        let host = |target: &str, hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append("host", host.parse().unwrap());
            }
            let uri = target.parse().unwrap();
            host_of(&uri, &headers).map(str::to_owned).map_err(|error| error.status.as_u16())
        };
        assert_eq!(host("/x", &["127.0.0.1:1"]), Ok("127.0.0.1:1".into()));
        assert_eq!(host("http://evil.example/x", &[]), Ok("evil.example".into()));
        assert_eq!(host("http://LOCALHOST/x", &["localhost"]), Ok("LOCALHOST".into()));
        assert_eq!(host("/x", &[]), Ok(String::new()));
        assert_eq!(host("/x", &["127.0.0.1", "evil.example"]), Err(400));
        assert_eq!(host("/x", &["127.0.0.1", "127.0.0.1"]), Err(400));
        assert_eq!(host("http://evil.example/x", &["127.0.0.1"]), Err(400));
    }

    #[test]
    fn keys_are_found_in_both_places() {
        assert_eq!(key_of(&headers(&[("authorization", "Bearer a")])), Some("a"));
        assert_eq!(key_of(&headers(&[("authorization", "bearer  a ")])), Some("a"));
        assert_eq!(key_of(&headers(&[("x-api-key", "b")])), Some("b"));
        assert_eq!(key_of(&headers(&[("authorization", "Basic a")])), None);
    }

    #[tokio::test]
    async fn a_key_is_not_refused_while_the_database_is_away() {
        let postgres = Postgres::start();
        let url = DatabaseUrl::parse(&postgres.database()).unwrap();
        let store: Arc<dyn Store> = Arc::new(PostgresStore::open(&url, "").await.unwrap());
        let limits = KeyLimits::default;
        let cached = keys::create(&*store, "a".into(), "acme".into(), limits()).await.unwrap();
        let ring = KeyRing::open(Arc::clone(&store)).await.unwrap();
        let late = keys::create(&*store, "b".into(), "acme".into(), limits()).await.unwrap();
        postgres.stop();
        let (config, uri) = (GuardConfig::default(), Uri::from_static("/v1/sessions"));
        let with = |key: &str| headers(&[("host", "localhost"), ("x-api-key", key)]);
        assert!(identify(&config, &ring, &uri, &with(&cached.secret)).await.is_ok());
        let refused = identify(&config, &ring, &uri, &with(&late.secret)).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (503, "unavailable"));
        assert!(refused.into_response().headers().contains_key(header::RETRY_AFTER));
        postgres.resume();
        assert!(identify(&config, &ring, &uri, &with(&late.secret)).await.is_ok());
        let wrong = identify(&config, &ring, &uri, &with("bjk_wrong")).await.unwrap_err();
        assert_eq!(wrong.status, 401);
    }
}
