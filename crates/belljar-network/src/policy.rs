//! Where code in a sandbox may go: nowhere, to hosts on a list, or to every public one.
//!
//! A rule is a host with or without a port: `example.org`, `*.example.com:443`, `10.0.0.5:8080`,
//! `[fd00::7]`, `*`. Without a port it means the ports of the web; with `:*` every port but those
//! of mail. `*.example.com` means what is below it, at any depth, and not itself.
//!
//! Addresses that are near (see [`crate::outbound::address`]) are reached only where a rule names
//! them as such: neither a star nor a name that leads there is enough.

use std::fmt;
use std::net::IpAddr;

use hyper::header::HeaderName;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::host::{Host, Target, split_port};
use super::secrets::is_ours;
use crate::outbound::address::{Reach, reach};

/// Rules and injections of one policy.
const MAX_RULES: usize = 256;
const MAX_INJECTIONS: usize = 32;

/// What a rule without a port means.
const WEB: [u16; 2] = [80, 443];

/// Not part of "every port": whoever may send mail from here may send it in your name.
const MAIL: [u16; 4] = [25, 465, 587, 2525];

/// Where code in a sandbox may go. The default is nowhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Written")]
pub struct Policy {
    allow: Vec<Rule>,
    inject: Vec<Injection>,
}

/// A policy as it is written.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum Written {
    Word(String),
    List(WrittenList),
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenList {
    allow: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inject: Vec<WrittenInjection>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    host: Pattern,
    ports: Ports,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// Every public address and every name.
    Any,
    /// Every name that ends so; with its dot.
    Below(String),
    Host(Host),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ports {
    Web,
    Every,
    One(u16),
}

/// A header with a secret of the server's, for requests to one host. The sandbox never sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    pub(crate) target: Target,
    pub(crate) header: HeaderName,
    /// The name of the secret.
    pub(crate) secret: String,
    /// The connection is https as far as the host is concerned, and ends at the proxy as far as
    /// the sandbox is. Otherwise it is plain http.
    pub(crate) terminate: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenInjection {
    host: String,
    header: String,
    value_from: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls: Option<String>,
}

impl Policy {
    /// `none`, `open`, hosts separated by spaces or commas, or JSON. The error says what is wrong.
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
                // Beside hosts, `open` is what it stands for: an operator lists near ones there.
                let words = words.iter().map(|word| if *word == "open" { "*:*" } else { word });
                Policy::of_rules(words)
            }
        }
    }

    /// Every public address.
    #[must_use]
    pub fn open() -> Policy {
        let everywhere = Rule { host: Pattern::Any, ports: Ports::Every };
        Policy { allow: vec![everywhere], inject: Vec::new() }
    }

    #[must_use]
    pub fn is_none(&self) -> bool {
        self.allow.is_empty()
    }

    /// What either of them allows.
    #[must_use]
    pub fn and(mut self, other: &Policy) -> Policy {
        self.allow.extend(other.allow.iter().cloned());
        self
    }

    /// Its rules as they are written.
    pub(crate) fn rules(&self) -> impl Iterator<Item = String> {
        self.allow.iter().map(ToString::to_string)
    }

    #[must_use]
    pub fn injections(&self) -> &[Injection] {
        &self.inject
    }

    /// Whether TLS ends at the proxy for some host, so that its authority must be believed inside.
    #[must_use]
    pub fn terminates_tls(&self) -> bool {
        self.inject.iter().any(|injection| injection.terminate)
    }

    /// What of `other` this one does not allow, if anything.
    pub(crate) fn exceeded_by(&self, other: &Policy) -> Option<String> {
        let beyond = |rule: &&Rule| !self.allow.iter().any(|own| own.covers(rule));
        other.allow.iter().find(beyond).map(ToString::to_string)
    }

    /// Whether somebody may ask for this host and port. Its addresses are another question.
    pub(crate) fn permits(&self, target: &Target) -> bool {
        self.allow.iter().any(|rule| rule.permits(target))
    }

    /// Whether this address is named, for those that are near.
    pub(crate) fn names(&self, address: IpAddr, port: u16) -> bool {
        let host = Host::Address(address.to_canonical());
        self.allow.iter().any(|rule| {
            rule.ports.permit(port) && matches!(&rule.host, Pattern::Host(named) if *named == host)
        })
    }

    /// Whether this address is named with any port.
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
                return Err(format!("more than {MAX_RULES} hosts"));
            }
        }
        Ok(Policy { allow, inject: Vec::new() })
    }
}

impl TryFrom<Value> for Policy {
    type Error = String;

    fn try_from(written: Value) -> Result<Policy, String> {
        let list: WrittenList = match written {
            Value::String(word) if word == "none" => return Ok(Policy::default()),
            Value::String(word) if word == "open" => return Ok(Policy::open()),
            Value::Object(_) => serde_json::from_value(written).map_err(|why| why.to_string())?,
            _ => return Err(EXPECTED.into()),
        };
        let mut policy = Policy::of_rules(list.allow.iter().map(String::as_str))?;
        if list.inject.len() > MAX_INJECTIONS {
            return Err(format!("more than {MAX_INJECTIONS} headers to inject"));
        }
        for written in list.inject {
            let injection = Injection::try_from(written)?;
            if !policy.permits(&injection.target) {
                return Err(format!(
                    "inject: `{}` is not among the hosts to allow",
                    injection.target
                ));
            }
            policy.inject.push(injection);
        }
        Ok(policy)
    }
}

const EXPECTED: &str = "expected \"none\", \"open\" or {\"allow\": [\"example.org\", ...]}";

impl From<Policy> for Written {
    fn from(policy: Policy) -> Written {
        if policy.inject.is_empty() {
            if policy.is_none() {
                return Written::Word("none".into());
            }
            if policy == Policy::open() {
                return Written::Word("open".into());
            }
        }
        Written::List(WrittenList {
            allow: policy.allow.iter().map(ToString::to_string).collect(),
            inject: policy.inject.into_iter().map(WrittenInjection::from).collect(),
        })
    }
}

impl TryFrom<WrittenInjection> for Injection {
    type Error = String;

    fn try_from(written: WrittenInjection) -> Result<Injection, String> {
        let wrong = |what: &str, why: &str| format!("inject: {what} {why}");
        let terminate = match written.tls.as_deref() {
            None => false,
            Some("terminate") => true,
            Some(_) => return Err(wrong("tls", "can only be `terminate`")),
        };
        let default_port = if terminate { 443 } else { 80 };
        let target = Target::parse(&written.host, Some(default_port))
            .map_err(|why| wrong(&format!("host `{}`", written.host.escape_debug()), why))?;
        let header: HeaderName = written
            .header
            .parse()
            .map_err(|_| wrong(&format!("`{}`", written.header.escape_debug()), "is no header"))?;
        if is_ours(&header) {
            return Err(wrong(&format!("header `{header}`"), "is the proxy's to set"));
        }
        Ok(Injection { target, header, secret: written.value_from, terminate })
    }
}

impl From<Injection> for WrittenInjection {
    fn from(injection: Injection) -> WrittenInjection {
        WrittenInjection {
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
                Host::Name(name) => Pattern::Below(format!(".{name}")),
                Host::Address(_) => return Err("has a star before an address"),
            }
        } else {
            Pattern::Host(Host::parse(host)?)
        };
        Ok(Rule { host, ports })
    }

    fn permits(&self, target: &Target) -> bool {
        let host = match (&self.host, &target.host) {
            (Pattern::Any, Host::Name(_)) => true,
            // A near one is named or not reached.
            (Pattern::Any, Host::Address(address)) => reach(*address) == Reach::Global,
            (Pattern::Below(suffix), Host::Name(name)) => name.ends_with(suffix),
            (Pattern::Below(_), Host::Address(_)) => false,
            (Pattern::Host(own), host) => own == host,
        };
        host && self.ports.permit(target.port)
    }

    /// Whether it allows everything that the other one does.
    fn covers(&self, other: &Rule) -> bool {
        let host = match (&self.host, &other.host) {
            (Pattern::Any, Pattern::Host(Host::Address(address))) => {
                reach(*address) == Reach::Global
            }
            (Pattern::Any, _) => true,
            (Pattern::Below(suffix), Pattern::Below(other)) => other.ends_with(suffix),
            (Pattern::Below(suffix), Pattern::Host(Host::Name(name))) => name.ends_with(suffix),
            (own, other) => own == other,
        };
        host && self.ports.cover(other.ports)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Pattern::Any => write!(f, "*")?,
            Pattern::Below(suffix) => write!(f, "*{suffix}")?,
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
    fn open_is_public_and_sends_no_mail() {
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
    fn a_ceiling_says_what_is_beyond_it() {
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
    fn json_comes_back_as_it_was() {
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
    fn what_is_wrong_is_said() {
        for (text, why) in [
            (r#""nothing""#, "expected \"none\""),
            ("{}", "missing field `allow`"),
            (r#"{"allow": [], "deny": []}"#, "unknown field `deny`"),
            (r#"{"allow": "a.test"}"#, "expected a sequence"),
            (r#"{"allow": ["a b"]}"#, "`a b` has a character"),
            (r#"{"allow": ["http://a/"]}"#, "`http://a/`"),
            (r#"{"allow": ["127.1"]}"#, "four plain numbers"),
            (r#"{"allow": ["*.10.0.0.1"]}"#, "star before an address"),
            (r#"{"allow": ["a*.b"]}"#, "no name can have"),
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
            (r#"{"host": "b.test", "header": "A", "value_from": "K"}"#, "not among the hosts"),
            (r#"{"host": "a.test", "header": "A b", "value_from": "K"}"#, "is no header"),
            (r#"{"host": "a.test", "header": "Host", "value_from": "K"}"#, "proxy's to set"),
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
        /// Whatever a covered policy permits, its ceiling permits too.
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
