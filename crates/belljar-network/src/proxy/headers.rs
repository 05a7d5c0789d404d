//! Makes the request that goes to the host from the one that the client sent.

use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Version};

use super::denial::Denial;
use crate::host::Target;

/// Hop-by-hop headers (RFC 9110, section 7.6.1). They are for one connection and not for the host.
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

/// Removes hop-by-hop headers, and those that `Connection` names except `Host` and `Content-Length`.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // Removing these would change the request.
        .filter(|name| *name != header::HOST && *name != header::CONTENT_LENGTH)
        .collect();
    for name in named.into_iter().chain(HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// The request for the host, with our own `Host` header and framing.
pub(super) fn rewrite(
    request: Request<Incoming>,
    target: &Target,
    default_port: u16,
) -> Result<Request<Incoming>, Denial> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    // `http://host?query` has no path.
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    parts.uri = path.parse().map_err(|_| Denial::malformed("its path is not valid"))?;
    parts.version = Version::HTTP_11;
    remove_hop_by_hop(&mut parts.headers);
    parts.headers.remove(header::EXPECT);
    let host = match target.port {
        port if port == default_port => target.host.to_string(),
        _ => target.to_string(),
    };
    let host =
        HeaderValue::try_from(host).map_err(|_| Denial::malformed("its host is not valid"))?;
    parts.headers.insert(header::HOST, host);
    // hyper has parsed the body. The length that hyper found is used, not the one in the header.
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
