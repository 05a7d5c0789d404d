//! Headers of requests and responses that pass through the gateway.

use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue};
use belljar_api::PUBLIC_URL;
use belljar_api::listen::Peer;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The protocol that the client wants to change to, if it asks for that.
#[must_use]
pub(super) fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut named = headers.get_all(header::CONNECTION).into_iter();
    let is_asked = named.any(|value| {
        let mut words = value.to_str().unwrap_or_default().split(',');
        words.any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
    });
    headers.get(header::UPGRADE).filter(|_| is_asked).cloned()
}

/// Removes the headers of a request that are not for the node: hop-by-hop headers, and `Expect`, which the gateway answers.
pub(super) fn remove_own(headers: &mut HeaderMap) {
    belljar_network::remove_hop_by_hop(headers);
    headers.remove(header::EXPECT);
}

/// Asks the node for the same change of protocol.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

/// Sets the base of links for the node. What the client sent is removed.
pub(super) fn set_public_url(headers: &mut HeaderMap, url: Option<&HeaderValue>) {
    match url {
        Some(url) => drop(headers.insert(PUBLIC_URL, url.clone())),
        None => drop(headers.remove(PUBLIC_URL)),
    }
}

/// Says who the client is. A proxy in front of the gateway may have said it already.
pub(super) fn add_forwarded(headers: &mut HeaderMap, peer: Option<Peer>) {
    if let Some(peer) = peer {
        let address = peer.address.ip().to_string();
        let before: Vec<&str> = headers
            .get_all(&FORWARDED_FOR)
            .into_iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        let all = before.into_iter().chain([address.as_str()]).collect::<Vec<_>>().join(", ");
        if let Ok(all) = HeaderValue::from_str(&all) {
            headers.insert(FORWARDED_FOR, all);
        }
    }
    let scheme = if peer.is_some_and(|peer| peer.tls) { "https" } else { "http" };
    headers.entry(FORWARDED_PROTO).or_insert(HeaderValue::from_static(scheme));
    if let Some(host) = headers.get(header::HOST).cloned() {
        headers.entry(FORWARDED_HOST).or_insert(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn peer() -> Option<Peer> {
        Some(Peer { address: "10.0.0.7:1".parse().unwrap(), tls: true })
    }

    #[test]
    fn hop_by_hop_headers_do_not_pass() {
        let mut passing = headers(&[
            ("connection", "close, X-Mine, Host, Content-Length"),
            ("proxy-connection", "keep-alive"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("range", "bytes=0-1"),
            ("host", "jar.example"),
            ("content-length", "5"),
        ]);
        remove_own(&mut passing);
        let left = [("range", "bytes=0-1"), ("host", "jar.example"), ("content-length", "5")];
        assert_eq!(passing, headers(&left));
    }

    #[test]
    fn a_change_of_protocol_needs_both_headers() {
        let websocket = ("upgrade", "websocket");
        assert!(wanted_upgrade(&headers(&[websocket])).is_none());
        let asked = headers(&[("connection", "keep-alive, Upgrade"), websocket]);
        assert_eq!(wanted_upgrade(&asked).unwrap(), "websocket");
    }

    #[test]
    fn the_base_of_links_is_that_of_the_gateway() {
        let mut passing = headers(&[("belljar-public-url", "https://evil.example")]);
        set_public_url(&mut passing, Some(&HeaderValue::from_static("https://jar.example")));
        assert_eq!(passing, headers(&[("belljar-public-url", "https://jar.example")]));
        set_public_url(&mut passing, None);
        assert!(passing.is_empty());
    }

    #[test]
    fn the_client_is_named_after_those_before_it() {
        let mut passing = headers(&[("host", "jar.example"), ("x-forwarded-for", "1.2.3.4")]);
        add_forwarded(&mut passing, peer());
        assert_eq!(passing["x-forwarded-for"], "1.2.3.4, 10.0.0.7");
        assert_eq!(passing["x-forwarded-proto"], "https");
        assert_eq!(passing["x-forwarded-host"], "jar.example");
        let mut behind = headers(&[("x-forwarded-proto", "https"), ("x-forwarded-host", "a")]);
        add_forwarded(&mut behind, None);
        assert_eq!(
            (&behind["x-forwarded-proto"], &behind["x-forwarded-host"]),
            (&"https".parse().unwrap(), &"a".parse().unwrap())
        );
    }
}
