//! Parsers of the values of settings; `None` means that the text is not valid.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use belljar_engine::size;
use belljar_engine::spec::{Datasets, Storage};
use url::Url;

use super::{ApiKey, LogFormat, ServerUrl};
use crate::flags::values;

/// Ten years. A larger value is a mistake.
const MAX_SECONDS: u64 = 3650 * 86400;

pub(super) fn number(range: RangeInclusive<u64>) -> impl Fn(&str) -> Option<u64> {
    move |text| text.parse().ok().filter(|number| range.contains(number))
}

pub(super) fn count(range: RangeInclusive<usize>) -> impl Fn(&str) -> Option<usize> {
    move |text| text.parse().ok().filter(|number| range.contains(number))
}

pub(super) fn seconds(text: &str) -> Option<u64> {
    number(1..=MAX_SECONDS)(text)
}

pub(super) fn seconds_or_0(text: &str) -> Option<u64> {
    number(0..=MAX_SECONDS)(text)
}

pub(super) fn size_from(least: u64) -> impl Fn(&str) -> Option<u64> {
    move |text| size::parse(text).filter(|size| *size >= least)
}

pub(super) fn cpus(text: &str) -> Option<u32> {
    values::parse_cpus(text).ok()
}

pub(super) fn threads(text: &str) -> Option<Option<usize>> {
    if text.eq_ignore_ascii_case("auto") {
        return Some(None);
    }
    count(1..=1024)(text).map(Some)
}

pub(super) fn yes_or_no(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

pub(super) fn storage(text: &str) -> Option<Storage> {
    match text.to_ascii_uppercase().as_str() {
        "TMPFS" => Some(Storage::Tmpfs),
        "BIND" => Some(Storage::Bind),
        _ => None,
    }
}

pub(super) fn datasets(text: &str) -> Option<Datasets> {
    match text.to_ascii_uppercase().as_str() {
        "NONE" => Some(Datasets::None),
        "LOCAL_RO" => Some(Datasets::LocalRo),
        "API" | "API_TMPFS" => Some(Datasets::Api),
        _ => None,
    }
}

/// An IP address with a port. Host names are not resolved, because that can take long; `localhost` is known.
pub(super) fn address(text: &str) -> Option<SocketAddr> {
    match text.to_ascii_lowercase().strip_prefix("localhost:") {
        Some(port) => Some(SocketAddr::from(([127, 0, 0, 1], port.parse().ok()?))),
        None => text.parse().ok(),
    }
}

/// A host name, an IPv4 address, or an IPv6 address in brackets.
pub(super) fn host(text: &str) -> Option<String> {
    let name = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_valid = match name {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)),
    };
    (is_valid && !text.is_empty()).then(|| text.to_ascii_lowercase())
}

/// `scheme://host[:port]`, as a browser writes it.
pub(super) fn origin(text: &str) -> Option<String> {
    let url = web_url(text).filter(|url| url.path() == "/")?;
    url.host_str().and_then(host)?;
    Some(url.origin().ascii_serialization())
}

/// The address at which clients reach the server, without a slash at its end.
pub(super) fn public_url(text: &str) -> Option<String> {
    web_url(text).map(|_| text.trim_end_matches('/').to_owned())
}

/// An `http` or `https` URL without a query, a fragment or a password. [`Url::parse`] corrects some mistakes; here the
/// text must be valid without correction.
pub(super) fn web_url(text: &str) -> Option<Url> {
    let (scheme, rest) = text.split_once("://")?;
    let is_exact = matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https")
        && !rest.starts_with('/')
        && rest.bytes().all(|b| b.is_ascii_graphic() && !b"\"'<>?#\\@".contains(&b));
    Url::parse(text).ok().filter(|_| is_exact)
}

pub(super) fn log_filter(text: &str) -> Option<String> {
    tracing_subscriber::EnvFilter::try_new(text).ok().map(|_| text.to_owned())
}

pub(super) fn log_format(text: &str) -> Option<LogFormat> {
    match text.to_ascii_lowercase().as_str() {
        "text" => Some(LogFormat::Text),
        "json" => Some(LogFormat::Json),
        _ => None,
    }
}

pub(super) fn url(text: &str) -> Option<ServerUrl> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = PathBuf::from(path);
        return path.is_absolute().then_some(ServerUrl::Unix(path));
    }
    public_url(text).map(ServerUrl::Http)
}

/// Any text that a header can contain, because keys of other software are accepted as well.
pub(super) fn api_key(text: &str) -> Option<ApiKey> {
    text.bytes().all(|b| b.is_ascii_graphic()).then(|| ApiKey(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port_and_need_no_looking_up() {
        for text in ["127.0.0.1:8000", "[::]:80", "0.0.0.0:0", "localhost:8000"] {
            assert!(address(text).is_some(), "{text}");
        }
        for text in ["", "8000", ":8000", "127.0.0.1", "example.com:80", "::1", "localhost:x"] {
            assert!(address(text).is_none(), "{text}");
        }
    }

    #[test]
    fn origins_have_a_scheme_and_no_path() {
        for text in ["http://a", "https://a.b:8443", "http://[::1]:3000", "http://[::1]"] {
            assert_eq!(origin(text).as_deref(), Some(text));
        }
        assert_eq!(origin("HTTP://A:80/").as_deref(), Some("http://a"));
        let wrong =
            ["*", "a.b", "ftp://a", "http://a/b", "http://", "http://a:b", "null", "http:a"];
        for text in wrong.into_iter().chain(["http:///a", "http://a?b", "http://u@a", "http://*"]) {
            assert_eq!(origin(text), None, "{text}");
        }
    }

    #[test]
    fn hosts_have_neither_scheme_nor_port() {
        for text in ["a:80", "http://a", "a/b", "*", "::1", "[::1"] {
            assert_eq!(host(text), None, "{text}");
        }
    }

    #[test]
    fn servers_are_found_by_http_and_by_socket() {
        let http = |text: &str| Some(ServerUrl::Http(text.into()));
        assert_eq!(url("http://127.0.0.1:8000/"), http("http://127.0.0.1:8000"));
        assert_eq!(url("https://box.example.com/belljar"), http("https://box.example.com/belljar"));
        assert_eq!(url("unix:/run/b.sock"), Some(ServerUrl::Unix("/run/b.sock".into())));
        for text in ["", "box:8000", "http://", "http://:80", "unix:", "unix:b.sock", "http://a b"]
        {
            assert_eq!(url(text), None, "{text}");
        }
    }
}
