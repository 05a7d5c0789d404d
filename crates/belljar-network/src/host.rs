//! Parses host names strictly. The host that is compared with a policy must be the host that is connected to. So every
//! form that another program may read differently is refused. The `url` crate repairs such forms instead, so it is not
//! used here.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest name and the longest label in the DNS.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// An address, or a name in lower case, in ASCII, without a dot at the end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Address(IpAddr),
    Name(String),
}

/// Why a text is not a host; completes "it ...".
pub type InvalidHost = &'static str;

impl Host {
    /// Parses a host as it is written before a port: an IPv6 address has brackets.
    pub fn parse(text: &str) -> Result<Host, InvalidHost> {
        if let Some(inside) = text.strip_prefix('[') {
            let address = inside.strip_suffix(']').and_then(|inside| inside.parse().ok());
            let address: Ipv6Addr = address.ok_or("is not an IPv6 address in brackets")?;
            // For an IPv4-mapped address, the kernel connects to the IPv4 address in it.
            return Ok(Host::Address(IpAddr::V6(address).to_canonical()));
        }
        let name = ascii(text)?;
        // A dot at the end is the DNS root.
        let name = name.strip_suffix('.').unwrap_or(&name);
        if name.is_empty() {
            return Err("is empty");
        }
        if name.len() > MAX_NAME {
            return Err("is longer than 253 characters");
        }
        for label in name.split('.') {
            check_label(label)?;
        }
        // Some programs read `127.1`, `0177.0.0.1`, `0x7f.1` and `2130706433` as addresses, others as names.
        let last = name.rsplit('.').next().unwrap_or_default();
        if is_number(last) {
            let address: Ipv4Addr =
                name.parse().map_err(|_| "is not an IPv4 address of four decimal numbers")?;
            return Ok(Host::Address(IpAddr::V4(address)));
        }
        Ok(Host::Name(name.to_owned()))
    }

    /// The host without brackets, as the DNS needs it.
    #[must_use]
    pub fn bare(&self) -> String {
        match self {
            Host::Address(address) => address.to_string(),
            Host::Name(name) => name.clone(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Host::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Host::Name(name) => write!(f, "{name}"),
        }
    }
}

/// In lower case, with other letters in Punycode.
fn ascii(text: &str) -> Result<String, InvalidHost> {
    if text.is_ascii() {
        return Ok(text.to_ascii_lowercase());
    }
    idna::domain_to_ascii_strict(text).map_err(|_| "has characters that a host name cannot have")
}

fn check_label(label: &str) -> Result<(), InvalidHost> {
    if label.is_empty() {
        return Err("has an empty label between its dots");
    }
    if label.len() > MAX_LABEL {
        return Err("has a label of more than 63 characters");
    }
    // The standard forbids underscores in host names, but some hosts have them.
    if !label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b)) {
        return Err("has a character that a host name cannot have");
    }
    if label.starts_with('-') || label.ends_with('-') {
        return Err("has a label that begins or ends with `-`");
    }
    Ok(())
}

fn is_number(label: &str) -> bool {
    let hex = label.strip_prefix("0x");
    label.bytes().all(|b| b.is_ascii_digit())
        || hex.is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Splits `host:port` or `host`.
pub fn split_port(text: &str) -> Result<(&str, Option<u16>), InvalidHost> {
    let (host, port) = match text.rsplit_once(':') {
        // The last colon may be inside the brackets of an address.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    Ok((host, port.map(parse_port).transpose()?))
}

fn parse_port(text: &str) -> Result<u16, InvalidHost> {
    let plain = !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| plain).ok_or("has a port that is not a number from 1 to 65535")
}

/// A host and a port to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl Target {
    /// Parses the authority of a request.
    pub(crate) fn parse(authority: &str, default_port: Option<u16>) -> Result<Target, InvalidHost> {
        let (host, port) = split_port(authority)?;
        let host = Host::parse(host)?;
        let port = port.or(default_port).ok_or("has no port")?;
        Ok(Target { host, port })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        Target::parse(text, Some(80)).unwrap_or_else(|why| panic!("{text}: {why}")).to_string()
    }

    #[test]
    fn one_host_has_one_form() {
        for (text, expected) in [
            ("Example.ORG", "example.org:80"),
            ("example.org.:443", "example.org:443"),
            ("a_b.example", "a_b.example:80"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example:80"),
            ("BÜCHER.example", "xn--bcher-kva.example:80"),
            ("bücher。example", "xn--bcher-kva.example:80"),
            ("127.0.0.1", "127.0.0.1:80"),
            ("127.0.0.1.:8080", "127.0.0.1:8080"),
            ("[::1]:22", "[::1]:22"),
            ("[0:0:0:0:0:0:0:1]", "[::1]:80"),
            ("[::FFFF:127.0.0.1]:5", "127.0.0.1:5"),
            ("[::ffff:a9fe:a9fe]", "169.254.169.254:80"),
            ("[64:ff9b::10.0.0.1]", "[64:ff9b::a00:1]:80"),
            ("localhost", "localhost:80"),
            ("1.example", "1.example:80"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn ambiguous_hosts_are_refused() {
        for text in [
            "",
            ".",
            "..",
            ":80",
            "a..b",
            ".a",
            "a..",
            "-a",
            "a-",
            "a b",
            "a\0b",
            "a\0.example.org",
            "example.org\0.evil.test",
            "a%00b",
            "a/b",
            "a\\b",
            "a@b",
            "user:pass@b",
            "a#b",
            "a?b",
            "a:b",
            "a:",
            "a:0",
            "a:080",
            "a:+80",
            "a:65536",
            "a:80:80",
            "a:８０",
            "127.1",
            "127.0.1",
            "0177.0.0.1",
            "0x7f.0.0.1",
            "0x7f000001",
            "2130706433",
            "127.0.0.01",
            "1.2.3.4.5",
            "256.1.1.1",
            "a.0x1",
            "a.1",
            "127.0.0.1..",
            "１２７.0.0.1.x.1",
            "::1",
            "1:2:3:4:5:6:7:8",
            "[::1",
            "::1]",
            "[]",
            "[127.0.0.1]",
            "[fe80::1%eth0]",
            "[fe80::1%25eth0]",
            "[::1]x",
            "[::1]:",
            "[v1.x]",
            "exa\u{2024}mple.org\u{2100}",
        ] {
            let parsed = Target::parse(text, Some(80));
            assert!(parsed.is_err(), "{text:?}: {parsed:?}");
        }
        assert!(Target::parse("example.org", None).is_err());
        assert!(Host::parse(&"a".repeat(64)).is_err());
        assert!(Host::parse(&"a.".repeat(130)).is_err());
    }

    proptest! {
        /// The displayed form parses to the same value.
        #[test]
        fn displayed_forms_parse_again(text in "[a-zA-Z0-9.:\\[\\]\\-_xX%@ü\u{0}]{0,24}") {
            if let Ok(target) = Target::parse(&text, Some(80)) {
                prop_assert_eq!(&Target::parse(&target.to_string(), None).unwrap(), &target);
                let bare = target.host.bare();
                prop_assert!(bare.is_ascii() && !bare.contains(['@', '%', '\0', ' ']));
            }
        }
    }
}
