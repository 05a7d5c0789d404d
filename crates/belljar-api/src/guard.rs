//! Who may come in: the Host and Origin of a request, the key it shows, how often it comes.
//!
//! A server without keys trusts whoever can reach it, so it only listens where strangers cannot
//! reach it, and makes sure that a web page the user happens to visit is no way around that: a page
//! may resolve its own name to 127.0.0.1 (then Host gives it away) or call across sites (then
//! Origin does).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use belljar_engine::Principal;
use belljar_engine::audit::Entry;

use crate::App;
use crate::error::ApiError;
use crate::input::{BodyLimit, Stall};
use crate::terminals;

/// What a server accepts besides what is always right.
#[derive(Debug, Clone, Default)]
pub struct GuardConfig {
    /// Names for this server in the Host header, without port.
    pub hosts: Vec<String>,
    /// Web origins that may call from a browser.
    pub origins: Vec<String>,
    /// Whether a key is needed even while none exists: the server listens to strangers.
    pub keys_required: bool,
    /// Whether requests come through a UNIX socket, where Host means nothing.
    pub local_socket: bool,
}

/// How much of the path of a refused request is written down: who has no key must not be able to
/// fill the audit log with it.
const MAX_SHOWN_PATH: usize = 100;

/// Paths that tell nothing and are asked for by machines without a key.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];

/// Paths that a signed token opens, which is checked where they lead.
const SIGNED: &str = "/artifacts/";

pub(crate) async fn guard(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    app.note_request();
    let path = request.uri().path().to_owned();
    let admitted = admit(&app, request.headers(), &path).await;
    match admitted {
        Ok(principal) => {
            let share = app.tenants.of(&principal.tenant);
            request.extensions_mut().insert(principal);
            request.extensions_mut().insert(BodyLimit(app.max_body));
            request.extensions_mut().insert(Stall(app.stall()));
            request.extensions_mut().insert(share.clone());
            // Whoever shows no key takes nothing of a tenant's share here; whose artifact it is that
            // they ask for is not known yet.
            if OPEN.contains(&&*path) || path.starts_with(SIGNED) {
                return next.run(request).await;
            }
            match share.enter() {
                Ok(entered) => share.charge(next.run(request).await, entered).await,
                Err(error) => error.into_response(),
            }
        }
        Err(error) => {
            let nobody = Principal { tenant: "-".into(), ..Principal::default() };
            let shown: String = path.chars().take(MAX_SHOWN_PATH).collect();
            let detail = format!("{} {shown}: {}", request.method(), error.message);
            let entry = Entry {
                action: "deny",
                outcome: error.code,
                detail: Some(&detail),
                ..Entry::default()
            };
            app.engine.audit().note(&nobody, &entry);
            error.into_response()
        }
    }
}

async fn admit(app: &App, headers: &HeaderMap, path: &str) -> Result<Principal, ApiError> {
    check_origin(headers, &app.guard)?;
    if !app.wants_keys() {
        check_host(headers, &app.guard)?;
        return Ok(Principal::default());
    }
    if OPEN.contains(&path) || path.starts_with(SIGNED) {
        return Ok(Principal::default());
    }
    let Some(secret) = shown_key(headers) else {
        if let Some((ticket, session)) = terminals::shown_ticket(headers, path) {
            return redeem(app, ticket, session).await;
        }
        return Err(ApiError::unauthorized("this server wants an API key"));
    };
    let principal = match app.keys.recognise(secret) {
        Some(principal) => principal,
        None => {
            // It may have been made a moment ago.
            if let Err(error) = app.keys.refresh().await {
                tracing::error!("failed to read the keys: {error}");
            }
            let unknown =
                || ApiError::unauthorized("this API key is not known here, or was revoked");
            app.keys.recognise(secret).ok_or_else(unknown)?
        }
    };
    if let (Some(per_minute), Some(key)) =
        (principal.limits.requests_per_minute, principal.key_id.as_ref())
    {
        app.rates.take(key, per_minute, Instant::now()).map_err(|seconds| {
            ApiError::too_many(format!("more than {per_minute} requests per minute"), seconds)
        })?;
    }
    Ok(principal)
}

/// Whoever comes with a ticket comes as the one who asked for it, if his key is still good.
async fn redeem(app: &App, ticket: &str, session: &str) -> Result<Principal, ApiError> {
    let wrong = || ApiError::unauthorized("this ticket is not known here, was used, or is too old");
    let who = app.tickets.redeem(ticket, session, Instant::now()).ok_or_else(wrong)?;
    if let Some(key) = &who.key_id {
        if let Err(error) = app.keys.refresh().await {
            tracing::error!("failed to read the keys: {error}");
        }
        if !app.keys.has(key) {
            return Err(wrong());
        }
    }
    Ok(who)
}

fn shown_key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}

fn check_host(headers: &HeaderMap, config: &GuardConfig) -> Result<(), ApiError> {
    if config.local_socket {
        return Ok(());
    }
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if is_loopback(host) || config.hosts.iter().any(|known| known.eq_ignore_ascii_case(name(host)))
    {
        return Ok(());
    }
    Err(ApiError::forbidden("wrong_host", format!("this server is not called `{host}`")).hint(
        "call it by 127.0.0.1 or localhost, add the name to BELLJAR_ALLOWED_HOSTS, or create an \
         API key",
    ))
}

fn check_origin(headers: &HeaderMap, config: &GuardConfig) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let own = origin.split_once("://").is_some_and(|(_, authority)| authority == host);
    let known = config.origins.iter().any(|known| known.eq_ignore_ascii_case(origin));
    // Its own pages, as long as the name in both is really ours.
    if known || (own && (is_loopback(host) || config.keys_required || config.local_socket)) {
        return Ok(());
    }
    Err(ApiError::forbidden(
        "wrong_origin",
        format!("web pages of `{origin}` may not call this server"),
    )
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
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_page_that_points_its_own_name_at_us_is_refused() {
        let config = GuardConfig { hosts: vec!["jar.lan".into()], ..GuardConfig::default() };
        for good in ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", "jar.lan:80"] {
            assert!(check_host(&headers(&[("host", good)]), &config).is_ok(), "{good}");
        }
        for bad in
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "", "[::2]"]
        {
            assert!(check_host(&headers(&[("host", bad)]), &config).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        let config =
            GuardConfig { origins: vec!["https://app.example".into()], ..GuardConfig::default() };
        let with = |origin: &str, host: &str| {
            check_origin(&headers(&[("origin", origin), ("host", host)]), &config)
        };
        assert!(with("http://127.0.0.1:8000", "127.0.0.1:8000").is_ok());
        assert!(with("https://app.example", "127.0.0.1:8000").is_ok());
        assert!(with("http://evil.example", "127.0.0.1:8000").is_err());
        assert!(with("http://evil.example", "evil.example").is_err(), "rebound");
        assert!(with("http://127.0.0.1:9999", "127.0.0.1:8000").is_err(), "another port");
        assert!(with("null", "127.0.0.1:8000").is_err());
        assert!(check_origin(&headers(&[]), &config).is_ok(), "not a browser");
    }

    #[test]
    fn keys_are_found_in_both_places() {
        assert_eq!(shown_key(&headers(&[("authorization", "Bearer a")])), Some("a"));
        assert_eq!(shown_key(&headers(&[("authorization", "bearer  a ")])), Some("a"));
        assert_eq!(shown_key(&headers(&[("x-api-key", "b")])), Some("b"));
        assert_eq!(shown_key(&headers(&[("authorization", "Basic a")])), None);
    }
}
