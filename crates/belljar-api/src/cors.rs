//! CORS headers (Fetch standard): pages of allowed origins may read our responses.
//!
//! Only origins that the operator named are allowed, never a wildcard, and without credentials. A browser adds no key
//! by itself, so a page sends a key that it was given, or calls a server without keys.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// The methods of all routes.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";

/// Headers that clients send, besides those that are always allowed.
const HEADERS: &str = "authorization, content-type, if-none-match, if-range, last-event-id, range, \
                       x-api-key";

/// Response headers that pages may read, besides those that are always readable.
const EXPOSED: &str = "accept-ranges, content-disposition, content-range, etag, retry-after";

/// Seconds for which a browser may cache the response to a preflight request.
const MAX_AGE: &str = "600";

/// The origin of the request, if pages of that origin may call this server.
pub fn allowed_page(headers: &HeaderMap, origins: &[String]) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    origin.to_str().is_ok_and(|origin| is_known(origins, origin)).then(|| origin.clone())
}

/// Whether the operator allows this origin.
pub(crate) fn is_known(origins: &[String], origin: &str) -> bool {
    origins.iter().any(|known| known.eq_ignore_ascii_case(origin))
}

/// Whether it is a preflight request.
pub fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The response to a preflight request.
pub(crate) fn preflight() -> Response {
    let allowed = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS),
        (header::ACCESS_CONTROL_MAX_AGE, MAX_AGE),
    ];
    (StatusCode::NO_CONTENT, allowed).into_response()
}

/// Lets the page read the response. `Vary` is for caches: another origin may get another response.
pub fn add_headers(page: Option<&HeaderValue>, headers: &mut HeaderMap) {
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    if let Some(page) = page {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, page.clone());
        let exposed = HeaderValue::from_static(EXPOSED);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
}
