//! URLs that the server connects to, parsed by the `url` crate (the WHATWG standard) and then checked.
//!
//! The standard accepts and repairs many malformed URLs. Those that other programs may read as another
//! host are refused here: user info, backslashes, missing slashes, spaces and control characters.

use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;

use url::{Position, SyntaxViolation, Url};

use crate::host::Host;

const NOT_A_URL: &str = "it is not a valid URL";

/// An absolute http or https URL without user info and fragment. Displayed as its origin, because path
/// and query may hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpUrl {
    url: Url,
    host: Host,
    port: u16,
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.url.scheme(), self.authority())
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpUrl({self})")
    }
}

impl HttpUrl {
    /// The error completes "it cannot be used: ..." and does not repeat the URL.
    pub fn parse(text: &str) -> Result<HttpUrl, &'static str> {
        let url = parse_strictly(text, None)?;
        if url.fragment().is_some() {
            return Err("it has a `#`, and the text after it is never sent");
        }
        HttpUrl::check(url)
    }

    /// The URL that a `Location` header refers to. A fragment is dropped; https never becomes http.
    pub fn redirected(&self, location: &str) -> Result<HttpUrl, &'static str> {
        let mut url = parse_strictly(location, Some(&self.url))?;
        url.set_fragment(None);
        let next = HttpUrl::check(url)?;
        if self.is_https() && !next.is_https() {
            return Err("it leads from https to http");
        }
        Ok(next)
    }

    fn check(url: Url) -> Result<HttpUrl, &'static str> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err("it begins with neither http:// nor https://");
        }
        let host = match url.host() {
            // The parser has converted `127.1`, `0x7f000001` and similar forms to plain addresses.
            Some(url::Host::Ipv4(address)) => Host::Address(IpAddr::V4(address)),
            Some(url::Host::Ipv6(address)) => Host::Address(IpAddr::V6(address).to_canonical()),
            Some(url::Host::Domain(name)) => {
                Host::parse(name).map_err(|_| "its host is not valid")?
            }
            None => return Err("it has no host"),
        };
        let port = url.port_or_known_default().filter(|port| *port > 0);
        let port = port.ok_or("its port is not valid")?;
        Ok(HttpUrl { url, host, port })
    }

    #[must_use]
    pub fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }

    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `host` or `host:port`, as in the `Host` header.
    #[must_use]
    pub fn authority(&self) -> String {
        // `None` for the default port of the scheme.
        match self.url.port() {
            None => self.host.to_string(),
            Some(port) => format!("{}:{port}", self.host),
        }
    }

    #[must_use]
    pub fn path(&self) -> &str {
        self.url.path()
    }

    #[must_use]
    pub fn path_and_query(&self) -> &str {
        &self.url[Position::BeforePath..Position::AfterQuery]
    }

    /// The same origin with another path and an optional query. Characters that are not allowed there are
    /// percent-encoded.
    #[must_use]
    pub fn with_path(&self, path: &str, query: Option<&str>) -> HttpUrl {
        let mut changed = self.clone();
        changed.url.set_path(path);
        changed.url.set_query(query);
        changed
    }

    /// Whether both have the same scheme, host and port.
    #[must_use]
    pub fn has_origin_of(&self, other: &HttpUrl) -> bool {
        let origin = |it: &HttpUrl| (it.is_https(), it.host.clone(), it.port);
        origin(self) == origin(other)
    }
}

fn parse_strictly(text: &str, base: Option<&Url>) -> Result<Url, &'static str> {
    if text.contains(|c: char| c.is_control() || c == ' ') {
        return Err(NOT_A_URL);
    }
    let refused: Cell<Option<&'static str>> = Cell::new(None);
    let refuse = |violation: SyntaxViolation| match violation {
        SyntaxViolation::EmbeddedCredentials => {
            refused.set(Some("it has user info; use a header for that"));
        }
        SyntaxViolation::Backslash | SyntaxViolation::ExpectedDoubleSlash => {
            refused.set(Some(NOT_A_URL));
        }
        _ => {}
    };
    let options = Url::options().base_url(base).syntax_violation_callback(Some(&refuse));
    let url = options.parse(text).map_err(|why| match why {
        url::ParseError::RelativeUrlWithoutBase => "it begins with neither http:// nor https://",
        _ => NOT_A_URL,
    })?;
    refused.get().map_or(Ok(url), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &HttpUrl) -> String {
        format!("{url}{}", url.path_and_query())
    }

    #[test]
    fn malformed_and_ambiguous_urls_are_refused() {
        for (text, why) in [
            ("", "neither http"),
            ("h/x", "neither http"),
            ("ftp://h/x", "neither http"),
            ("file:///etc/passwd", "neither http"),
            ("https:h/x", "not a valid URL"),
            ("https:///h/x", "not a valid URL"),
            ("https://", "not a valid URL"),
            ("https://:80/", "not a valid URL"),
            ("https://h:99999/", "not a valid URL"),
            ("https://h:0/", "port"),
            ("https://h:x/", "not a valid URL"),
            ("https://u@h/", "user info"),
            ("https://u:p@h/", "user info"),
            ("https://@h/", "user info"),
            ("https://h\\@evil.test/", "not a valid URL"),
            ("https:\\\\h\\x", "not a valid URL"),
            ("https://h/a b", "not a valid URL"),
            (" https://h/", "not a valid URL"),
            ("https://h/\n", "not a valid URL"),
            ("https://h\t/", "not a valid URL"),
            ("https://h\0/", "not a valid URL"),
            ("https://h%00.evil.test/", "not a valid URL"),
            ("https://-h/", "host is not valid"),
            ("https://a..b/", "host is not valid"),
            ("https://[::1%25lo]/", "not a valid URL"),
            ("https://1.2.3.4.5/", "not a valid URL"),
            ("https://h/#x", "`#`"),
        ] {
            let error = HttpUrl::parse(text).expect_err(text);
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn every_notation_of_an_address_is_that_address() {
        for text in [
            "127.0.0.1",
            "127.1",
            "0177.0.0.1",
            "0x7f000001",
            "2130706433",
            "127.0.0.1.",
            "[::ffff:127.0.0.1]",
            "[::FFFF:7f00:1]",
            "１２７.0.0.1",
        ] {
            let url = HttpUrl::parse(&format!("http://{text}:81/")).unwrap();
            assert_eq!(url.host(), &Host::Address(IpAddr::from([127, 0, 0, 1])), "{text}");
            assert_eq!(url.authority(), "127.0.0.1:81", "{text}");
        }
        let url = HttpUrl::parse("HTTPS://BÜCHER.example.:443?q").unwrap();
        assert_eq!(shown(&url), "https://xn--bcher-kva.example/?q");
        assert_eq!((url.port(), url.is_https()), (443, true));
    }

    #[test]
    fn redirects_lead_where_a_browser_would_go() {
        let here = HttpUrl::parse("https://h:444/a/b?q=1").unwrap();
        for (location, expected) in [
            ("https://Other/x?y#z", "https://other/x?y"),
            ("HTTPS://h:444/x", "https://h:444/x"),
            ("//other:1/x", "https://other:1/x"),
            ("/x/../y?z=/../", "https://h:444/y?z=/../"),
            ("c?d", "https://h:444/a/c?d"),
            ("../../c", "https://h:444/c"),
            ("?e", "https://h:444/a/b?e"),
            ("https://other?e", "https://other/?e"),
        ] {
            assert_eq!(shown(&here.redirected(location).unwrap()), expected, "{location}");
        }
        for location in ["http://h/", "file:///etc/passwd", "https://u@h/", "https://", "x:y"] {
            assert!(here.redirected(location).is_err(), "{location}");
        }
        assert!(!here.has_origin_of(&HttpUrl::parse("https://h/a/b").unwrap()));
        assert!(here.has_origin_of(&here.redirected("/x").unwrap()));
        assert!(here.has_origin_of(&HttpUrl::parse("https://H.:444/").unwrap()));
    }

    #[test]
    fn a_path_never_becomes_a_host() {
        let url = HttpUrl::parse("https://h/a").unwrap();
        assert_eq!(
            shown(&url.with_path("//evil.test/x", Some("a=1"))),
            "https://h//evil.test/x?a=1"
        );
        assert_eq!(shown(&url.with_path("/a?b#c", None)), "https://h/a%3Fb%23c");
    }
}
