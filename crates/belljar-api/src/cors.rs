//! What lets pages of the allowed origins read our answers (CORS, as the Fetch standard has it).
//!
//! Only origins that the operator named, never a wildcard, and no credentials: a browser adds nothing
//! by itself, so a page shows a key that it was given, or comes to a server without keys.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::guard::GuardConfig;

/// Methods that any call has.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";

/// Headers that callers send, besides those that are always allowed.
const HEADERS: &str = "authorization, content-type, if-none-match, if-range, last-event-id, range, \
                       x-api-key";

/// Headers of answers that pages may read, besides those that they always may.
const EXPOSED: &str = "accept-ranges, content-disposition, content-range, etag, retry-after";

/// Seconds for which a browser need not ask again.
const MAX_AGE: &str = "600";

/// The origin of a page that may call us, as the browser named it.
pub(crate) fn allowed_page(headers: &HeaderMap, config: &GuardConfig) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    origin.to_str().is_ok_and(|origin| config.knows_origin(origin)).then(|| origin.clone())
}

/// Whether a browser asks what a page may do, before it does it.
pub(crate) fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to that.
pub(crate) fn preflight() -> Response {
    let allowed = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS),
        (header::ACCESS_CONTROL_MAX_AGE, MAX_AGE),
    ];
    (StatusCode::NO_CONTENT, allowed).into_response()
}

/// Lets the page read the answer, and caches know that another page may get another one.
pub(crate) fn tell(page: Option<&HeaderValue>, headers: &mut HeaderMap) {
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    if let Some(page) = page {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, page.clone());
        let exposed = HeaderValue::from_static(EXPOSED);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
}
