//! Network policies: which hosts code in a sandbox may connect to.
//!
//! A rule is a host with or without a port: `example.org`, `*.example.com:443`, `10.0.0.5:8080`,
//! `[fd00::7]`, `*`. Without a port it allows ports 80 and 443; with `:*` every port except those of mail.
//! `*.example.com` matches subdomains at any depth, and not `example.com` itself.
//!
//! A near address (see [`crate::outbound::address`]) is allowed only by a rule with exactly this address, not by a `*`
//! or by a name that resolves to it.

use std::fmt;
use std::net::IpAddr;

use hyper::header::{self, HeaderName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::host::{Host, Target, split_port};
use crate::outbound::address::{Reach, reach};

/// Limits of one policy.
const MAX_RULES: usize = 256;
const MAX_INJECTIONS: usize = 32;

/// The ports of a rule without a port.
const WEB: [u16; 2] = [80, 443];

/// Excluded from "every port", so that sandboxes cannot send spam from this machine.
const MAIL: [u16; 4] = [25, 465, 587, 2525];

/// Headers that the proxy sets itself, or that change the framing of a request.
const RESERVED: &[HeaderName] = &[
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
];

/// Which hosts code in a sandbox may connect to; by default, none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "PolicyJson")]
pub struct Policy {
    allow: Vec<Rule>,
    inject: Vec<Injection>,
}

/// A policy in JSON.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum PolicyJson {
    Word(String),
    List(PolicyListJson),
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyListJson {
    allow: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inject: Vec<InjectionJson>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    host: Pattern,
    ports: Ports,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// `*`: every public address and every name.
    Any,
    /// `*.example.com`, stored as `.example.com`.
    Subdomains(String),
    Host(Host),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ports {
    Web,
    Every,
    One(u16),
}

/// A header whose value is a secret of the server, added to requests for one host. Code in the sandbox never
/// sees the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    pub(crate) target: Target,
    pub(crate) header: HeaderName,
    /// The secret's name.
    pub(crate) secret: String,
    /// The proxy terminates the sandbox's TLS and connects to the host with TLS. Otherwise it is plain http.
    pub(crate) terminate: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InjectionJson {
    host: String,
    header: String,
    value_from: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls: Option<String>,
}

impl Policy {
    /// Parses `none`, `open`, hosts separated by spaces or commas, or JSON.
    pub fn parse(text: &str) -> Result<Policy, String> {
        let text = text.trim();
        if text.starts_with('{') || text.starts_with('"') {
            return serde_json::from_str(text).map_err(|why| why.to_string());
        }
        let words: Vec<&str> = text
            .split(|c: char| c.is_whitespace() || c == ',')
            .filter(|word| !word.is_empty())
            .collect();
        match words[..] {
            [] | ["none"] => Ok(Policy::default()),
            ["open"] => Ok(Policy::open()),
            _ => {
                // An operator can add near addresses to `open`.
                let words = words.iter().map(|word| if *word == "open" { "*:*" } else { word });
                Policy::of_rules(words)
            }
        }
    }

    /// Allows every public address.
    #[must_use]
    pub fn open() -> Policy {
        let everywhere = Rule { host: Pattern::Any, ports: Ports::Every };
        Policy { allow: vec![everywhere], inject: Vec::new() }
    }

    #[must_use]
    pub fn is_none(&self) -> bool {
        self.allow.is_empty()
    }

    /// Allows what either of the two allows.
    #[must_use]
    pub fn and(mut self, other: &Policy) -> Policy {
        self.allow.extend(other.allow.iter().cloned());
        self
    }

    /// Its rules as text.
    pub(crate) fn rules(&self) -> impl Iterator<Item = String> {
        self.allow.iter().map(ToString::to_string)
    }

    #[must_use]
    pub fn injections(&self) -> &[Injection] {
        &self.inject
    }

    /// Whether the proxy terminates TLS for some host, so that sandboxes must trust its certificate authority.
    #[must_use]
    pub fn terminates_tls(&self) -> bool {
        self.inject.iter().any(|injection| injection.terminate)
    }

    /// The first rule of `other` that this policy does not allow.
    pub(crate) fn exceeded_by(&self, other: &Policy) -> Option<String> {
        let beyond = |rule: &&Rule| !self.allow.iter().any(|own| own.covers(rule));
        other.allow.iter().find(beyond).map(ToString::to_string)
    }

    /// Whether this host and port are allowed. The addresses that the host resolves to are checked separately.
    pub(crate) fn permits(&self, target: &Target) -> bool {
        self.allow.iter().any(|rule| rule.permits(target))
    }

    /// Whether a rule has exactly this address, which near addresses need.
    pub(crate) fn names(&self, address: IpAddr, port: u16) -> bool {
        let host = Host::Address(address.to_canonical());
        self.allow.iter().any(|rule| {
            rule.ports.permit(port) && matches!(&rule.host, Pattern::Host(named) if *named == host)
        })
    }

    /// The same with any port.
    pub(crate) fn names_any_port(&self, address: IpAddr) -> bool {
        let host = Host::Address(address.to_canonical());
        self.allow.iter().any(|rule| matches!(&rule.host, Pattern::Host(named) if *named == host))
    }

    fn of_rules<'a>(words: impl Iterator<Item = &'a str>) -> Result<Policy, String> {
        let mut allow: Vec<Rule> = Vec::new();
        for word in words {
            let rule =
                Rule::parse(word).map_err(|why| format!("`{}` {why}", word.escape_debug()))?;
            if !allow.contains(&rule) {
                allow.push(rule);
            }
            if allow.len() > MAX_RULES {
                return Err(format!("it has more than {MAX_RULES} hosts"));
            }
        }
        Ok(Policy { allow, inject: Vec::new() })
    }
}

impl TryFrom<Value> for Policy {
    type Error = String;

    fn try_from(written: Value) -> Result<Policy, String> {
        let list: PolicyListJson = match written {
            Value::String(word) if word == "none" => return Ok(Policy::default()),
            Value::String(word) if word == "open" => return Ok(Policy::open()),
            Value::Object(_) => serde_json::from_value(written).map_err(|why| why.to_string())?,
            _ => return Err(EXPECTED.into()),
        };
        let mut policy = Policy::of_rules(list.allow.iter().map(String::as_str))?;
        if list.inject.len() > MAX_INJECTIONS {
            return Err(format!("it has more than {MAX_INJECTIONS} headers to inject"));
        }
        for written in list.inject {
            let injection = Injection::try_from(written)?;
            if !policy.permits(&injection.target) {
                return Err(format!("inject: `{}` is not in `allow`", injection.target));
            }
            policy.inject.push(injection);
        }
        Ok(policy)
    }
}

const EXPECTED: &str = "expected \"none\", \"open\" or {\"allow\": [\"example.org\", ...]}";

impl From<Policy> for PolicyJson {
    fn from(policy: Policy) -> PolicyJson {
        if policy.inject.is_empty() {
            if policy.is_none() {
                return PolicyJson::Word("none".into());
            }
            if policy == Policy::open() {
                return PolicyJson::Word("open".into());
            }
        }
        PolicyJson::List(PolicyListJson {
            allow: policy.allow.iter().map(ToString::to_string).collect(),
            inject: policy.inject.into_iter().map(InjectionJson::from).collect(),
        })
    }
}

impl TryFrom<InjectionJson> for Injection {
    type Error = String;

    fn try_from(written: InjectionJson) -> Result<Injection, String> {
        let wrong = |what: &str, why: &str| format!("inject: {what} {why}");
        let terminate = match written.tls.as_deref() {
            None => false,
            Some("terminate") => true,
            Some(_) => return Err(wrong("tls", "can only be `terminate`")),
        };
        let default_port = if terminate { 443 } else { 80 };
        let target = Target::parse(&written.host, Some(default_port))
            .map_err(|why| wrong(&format!("host `{}`", written.host.escape_debug()), why))?;
        let header: HeaderName = written.header.parse().map_err(|_| {
            wrong(&format!("`{}`", written.header.escape_debug()), "is not a header name")
        })?;
        if RESERVED.contains(&header) {
            return Err(wrong(
                &format!("header `{header}`"),
                "cannot be injected: the proxy sets it",
            ));
        }
        Ok(Injection { target, header, secret: written.value_from, terminate })
    }
}

impl From<Injection> for InjectionJson {
    fn from(injection: Injection) -> InjectionJson {
        InjectionJson {
            host: injection.target.to_string(),
            header: injection.header.to_string(),
            value_from: injection.secret,
            tls: injection.terminate.then(|| "terminate".into()),
        }
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Rule, &'static str> {
        let (host, ports) = match text.strip_suffix(":*") {
            Some(host) => (host, Ports::Every),
            None => {
                let (host, port) = split_port(text)?;
                (host, port.map_or(Ports::Web, Ports::One))
            }
        };
        let host = if host == "*" {
            Pattern::Any
        } else if let Some(below) = host.strip_prefix("*.") {
            match Host::parse(below)? {
                Host::Name(name) => Pattern::Subdomains(format!(".{name}")),
                Host::Address(_) => return Err("has a `*` before an address"),
            }
        } else {
            Pattern::Host(Host::parse(host)?)
        };
        Ok(Rule { host, ports })
    }

    fn permits(&self, target: &Target) -> bool {
        let host = match (&self.host, &target.host) {
            (Pattern::Any, Host::Name(_)) => true,
            // A near address needs a rule of its own.
            (Pattern::Any, Host::Address(address)) => reach(*address) == Reach::Global,
            (Pattern::Subdomains(suffix), Host::Name(name)) => name.ends_with(suffix),
            (Pattern::Subdomains(_), Host::Address(_)) => false,
            (Pattern::Host(own), host) => own == host,
        };
        host && self.ports.permit(target.port)
    }

    /// Whether it allows everything that `other` allows.
    fn covers(&self, other: &Rule) -> bool {
        let host = match (&self.host, &other.host) {
            (Pattern::Any, Pattern::Host(Host::Address(address))) => {
                reach(*address) == Reach::Global
            }
            (Pattern::Any, _) => true,
            (Pattern::Subdomains(suffix), Pattern::Subdomains(other)) => other.ends_with(suffix),
            (Pattern::Subdomains(suffix), Pattern::Host(Host::Name(name))) => {
                name.ends_with(suffix)
            }
            (own, other) => own == other,
        };
        host && self.ports.cover(other.ports)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Pattern::Any => write!(f, "*")?,
            Pattern::Subdomains(suffix) => write!(f, "*{suffix}")?,
            Pattern::Host(host) => write!(f, "{host}")?,
        }
        match self.ports {
            Ports::Web => Ok(()),
            Ports::Every => write!(f, ":*"),
            Ports::One(port) => write!(f, ":{port}"),
        }
    }
}

impl Ports {
    fn permit(self, port: u16) -> bool {
        match self {
            Ports::Web => WEB.contains(&port),
            Ports::Every => !MAIL.contains(&port),
            Ports::One(own) => own == port,
        }
    }

    fn cover(self, other: Ports) -> bool {
        match other {
            Ports::Every => self == Ports::Every,
            Ports::Web => WEB.iter().all(|port| self.permit(*port)),
            Ports::One(port) => self.permit(port),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(text: &str) -> Policy {
        Policy::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    fn permits(policy: &Policy, target: &str) -> bool {
        policy.permits(&Target::parse(target, Some(443)).unwrap())
    }

    #[test]
    fn rules_mean_what_they_say() {
        let list = policy("example.org, *.example.com:443 10.0.0.5:8080 [fd00::7] db.test:*");
        for (target, expected) in [
            ("example.org", true),
            ("EXAMPLE.org.:80", true),
            ("example.org:8080", false),
            ("www.example.org", false),
            ("notexample.org", false),
            ("a.example.com", true),
            ("a.b.example.com", true),
            ("a.example.com:80", false),
            ("example.com", false),
            ("evilexample.com", false),
            ("example.com.evil.test", false),
            ("10.0.0.5:8080", true),
            ("[::ffff:10.0.0.5]:8080", true),
            ("10.0.0.5:80", false),
            ("10.0.0.6:8080", false),
            ("[fd00::7]:80", true),
            ("[fd00::8]:80", false),
            ("db.test:5432", true),
            ("db.test:25", false),
        ] {
            assert_eq!(permits(&list, target), expected, "{target}");
        }
        assert!(list.names("10.0.0.5".parse().unwrap(), 8080));
        assert!(!list.names("10.0.0.5".parse().unwrap(), 80));
        assert!(!policy("*:*").names("10.0.0.5".parse().unwrap(), 80));
    }

    #[test]
    fn open_allows_public_hosts_except_ports_of_mail() {
        let open = Policy::open();
        assert!(permits(&open, "example.org:8443") && permits(&open, "8.8.8.8:53"));
        for target in ["a.test:25", "a.test:587", "127.0.0.1", "169.254.169.254:80", "[fd00::1]"] {
            assert!(!permits(&open, target), "{target}");
        }
        assert!(permits(&policy("open mail.test:587"), "mail.test:587"));
        let none = Policy::default();
        assert!(none.is_none() && !permits(&none, "example.org"));
    }

    #[test]
    fn a_ceiling_names_the_rule_that_exceeds_it() {
        let beyond = |ceiling: &str, asked: &str| policy(ceiling).exceeded_by(&policy(asked));
        for (ceiling, asked) in [
            ("none", "none"),
            ("open", "none"),
            ("open", "open"),
            ("open", "example.org *.example.com:8443 8.8.8.8:53"),
            ("open 10.0.0.5:8080", "10.0.0.5:8080"),
            ("*.example.com", "a.example.com:443 *.b.example.com:80"),
            ("*", "example.org *.test"),
        ] {
            assert_eq!(beyond(ceiling, asked), None, "{ceiling} and {asked}");
        }
        for (ceiling, asked, what) in [
            ("none", "example.org", "example.org"),
            ("example.org", "open", "*:*"),
            ("open", "10.0.0.5:8080", "10.0.0.5:8080"),
            ("open", "127.0.0.1", "127.0.0.1"),
            ("open", "mail.test:25", "mail.test:25"),
            ("*", "example.org:8080", "example.org:8080"),
            ("example.org:443", "example.org", "example.org"),
            ("*.example.com", "example.com", "example.com"),
            ("*.b.example.com", "*.example.com", "*.example.com"),
            ("10.0.0.5:80", "10.0.0.5", "10.0.0.5"),
        ] {
            assert_eq!(beyond(ceiling, asked).as_deref(), Some(what), "{ceiling} and {asked}");
        }
    }

    #[test]
    fn json_is_written_as_it_was_read() {
        for text in [
            r#""none""#,
            r#""open""#,
            r#"{"allow":["example.org","*.example.com:443","*:*"]}"#,
            r#"{"allow":["api.test"],"inject":[{"host":"api.test:443","header":"authorization","value_from":"KEY","tls":"terminate"}]}"#,
        ] {
            let policy: Policy = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&policy).unwrap(), text);
        }
        let injected = policy(
            r#"{"allow": ["api.test"], "inject": [{"host": "API.test", "header": "X-Key", "value_from": "K"}]}"#,
        );
        assert_eq!(injected.inject[0].target.to_string(), "api.test:80");
        assert!(!injected.terminates_tls());
    }

    #[test]
    fn invalid_policies_are_refused_with_the_reason() {
        for (text, why) in [
            (r#""nothing""#, "expected \"none\""),
            ("{}", "missing field `allow`"),
            (r#"{"allow": [], "deny": []}"#, "unknown field `deny`"),
            (r#"{"allow": "a.test"}"#, "expected a sequence"),
            (r#"{"allow": ["a b"]}"#, "`a b` has a character"),
            (r#"{"allow": ["http://a/"]}"#, "`http://a/`"),
            (r#"{"allow": ["127.1"]}"#, "four decimal numbers"),
            (r#"{"allow": ["*.10.0.0.1"]}"#, "`*` before an address"),
            (r#"{"allow": ["a*.b"]}"#, "host name cannot have"),
            (r#"{"allow": ["a\u0000b"]}"#, "`a\\0b`"),
            ("example.org,,-x", "`-x`"),
        ] {
            let error = Policy::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let inject = |injection: &str| {
            Policy::parse(&format!(r#"{{"allow": ["a.test"], "inject": [{injection}]}}"#))
                .unwrap_err()
        };
        for (injection, why) in [
            (r#"{"host": "b.test", "header": "A", "value_from": "K"}"#, "not in `allow`"),
            (r#"{"host": "a.test", "header": "A b", "value_from": "K"}"#, "is not a header name"),
            (r#"{"host": "a.test", "header": "Host", "value_from": "K"}"#, "the proxy sets it"),
            (
                r#"{"host": "a.test", "header": "A", "value_from": "K", "tls": "x"}"#,
                "only be `terminate`",
            ),
            (r#"{"host": "a@b", "header": "A", "value_from": "K"}"#, "host `a@b`"),
        ] {
            let error = inject(injection);
            assert!(error.contains(why), "{injection}: {error}");
        }
        let many = (0..=MAX_RULES).map(|n| format!("h{n}.test")).collect::<Vec<_>>().join(" ");
        assert!(Policy::parse(&many).unwrap_err().contains("more than"));
    }

    proptest! {
        /// A ceiling permits everything that a policy within it permits.
        #[test]
        fn a_ceiling_holds(
            ceiling in "(\\*|\\*\\.b\\.test|a\\.b\\.test|10\\.0\\.0\\.1|8\\.8\\.8\\.8)(:80|:25|:\\*)?",
            asked in "(\\*|\\*\\.a\\.b\\.test|\\*\\.b\\.test|a\\.b\\.test|10\\.0\\.0\\.1|8\\.8\\.8\\.8)(:80|:25|:\\*)?",
            target in "(x\\.a\\.b\\.test|a\\.b\\.test|b\\.test|10\\.0\\.0\\.1|8\\.8\\.8\\.8):(80|443|25|99)",
        ) {
            let (ceiling, asked) = (policy(&ceiling), policy(&asked));
            if ceiling.exceeded_by(&asked).is_none() && permits(&asked, &target) {
                prop_assert!(permits(&ceiling, &target));
            }
        }
    }
}
