//! Secrets that the proxy adds to requests, so that they never enter a sandbox. The operator says
//! where each may go (`BELLJAR_NETWORK_SECRETS`); who makes a session can only ask for what is so
//! allowed, and so can send no secret to a host of their own.

use std::collections::HashMap;
use std::fmt;

use hyper::header::{self, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use super::host::Target;
use super::policy::Injection;
use crate::NetworkError;
use crate::outbound::setting;

/// The proxy decides about these, or they would change where a request ends.
const OURS: &[HeaderName] = &[
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

/// Headers that cannot be injected.
pub(crate) fn is_ours(header: &HeaderName) -> bool {
    OURS.contains(header)
}

/// Every secret of this server, by name; there may be none.
#[derive(Default, Clone)]
pub struct Secrets {
    by_name: HashMap<String, Secret>,
}

#[derive(Clone)]
struct Secret {
    value: HeaderValue,
    /// Where it may go: https or not, and to whom.
    origins: Vec<(bool, Target)>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<_> = self.by_name.keys().collect();
        names.sort();
        f.debug_tuple("Secrets").field(&names).finish()
    }
}

impl Secrets {
    /// Understands the setting: a JSON object, or `@` and the path of a file with one. The parts
    /// of values that are written `${NAME}` are asked of `env`. The error shows no value.
    pub fn parse(text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Secrets, String> {
        if text.trim().is_empty() {
            return Ok(Secrets::default());
        }
        let text = setting::read(text)?;
        // What is wrong with it is not repeated: it may be the secret.
        let value: Value = serde_json::from_str(&text)
            .map_err(|why| format!("no JSON: line {}, column {}", why.line(), why.column()))?;
        let Value::Object(entries) = value else {
            return Err("expected a JSON object with a secret for each name".into());
        };
        let secret = |(name, value): (&String, &Value)| {
            let secret = Secret::parse(value, &env).map_err(|why| format!("`{name}`: {why}"))?;
            Ok((name.clone(), secret))
        };
        Ok(Secrets { by_name: entries.iter().map(secret).collect::<Result<_, String>>()? })
    }

    /// These, and those of `others`, which win where the names are the same.
    #[must_use]
    pub fn overridden_by(mut self, others: &Secrets) -> Secrets {
        self.by_name.extend(others.by_name.clone());
        self
    }

    /// The value for a header, if there is such a secret and it may go there.
    pub(crate) fn value(&self, injection: &Injection) -> Option<&HeaderValue> {
        let secret = self.by_name.get(&injection.secret)?;
        let origin = (injection.terminate, injection.target.clone());
        secret.origins.contains(&origin).then_some(&secret.value)
    }

    /// Refuses what cannot be injected. Whether a secret is not there, or not for this host, is
    /// the operator's to know.
    pub(crate) fn check(&self, injections: &[Injection]) -> Result<(), NetworkError> {
        match injections.iter().find(|injection| self.value(injection).is_none()) {
            None => Ok(()),
            Some(injection) => {
                let scheme = if injection.terminate { "https" } else { "http" };
                Err(NetworkError::NoSecret {
                    secret: injection.secret.escape_debug().to_string(),
                    origin: format!("{scheme}://{}", injection.target),
                })
            }
        }
    }
}

impl Secret {
    fn parse(value: &Value, env: &dyn Fn(&str) -> Option<String>) -> Result<Secret, String> {
        const SHAPE: &str = "expected {\"value\": \"...\", \"hosts\": [\"https://...\"]}";
        let entry = value.as_object().ok_or(SHAPE)?;
        if let Some(other) = entry.keys().find(|key| !matches!(key.as_str(), "value" | "hosts")) {
            return Err(format!("`{other}` is neither `value` nor `hosts`"));
        }
        let text = entry.get("value").and_then(Value::as_str).ok_or(SHAPE)?;
        let text = setting::expand(text, env, &mut Vec::new())
            .map_err(|why| format!("its value {why}"))?;
        let mut value = HeaderValue::try_from(text).map_err(|_| {
            "its value has a line break or another control character; does one of its variables \
             end in one?"
        })?;
        value.set_sensitive(true);
        Ok(Secret { value, origins: origins(entry)? })
    }
}

fn origins(entry: &Map<String, Value>) -> Result<Vec<(bool, Target)>, String> {
    const WHY: &str = "`hosts` is a list of where it may go, such as \
                       [\"https://api.example.com\", \"http://10.0.0.5:8080\"]";
    let hosts = entry.get("hosts").and_then(Value::as_array).ok_or(WHY)?;
    let origin = |host: &Value| {
        let (scheme, authority) = host.as_str()?.split_once("://")?;
        let (https, port) = match scheme {
            "https" => (true, 443),
            "http" => (false, 80),
            _ => return None,
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        Some((https, Target::parse(authority, Some(port)).ok()?))
    };
    let origins: Option<Vec<_>> = hosts.iter().map(origin).collect();
    origins.filter(|origins| !origins.is_empty()).ok_or(WHY.into())
}

#[cfg(test)]
mod tests {
    use super::super::policy::Policy;
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "TOKEN" => Some("hunter2".into()),
            "BROKEN" => Some("hunter2\n".into()),
            _ => None,
        }
    }

    #[test]
    fn a_secret_goes_where_the_operator_said_and_nowhere_else() {
        let text = r#"{"API": {"value": "Bearer ${TOKEN}",
            "hosts": ["https://api.test", "http://10.0.0.5:8080/"]}}"#;
        let secrets = Secrets::parse(text, env).unwrap();
        assert_eq!(format!("{secrets:?}"), r#"Secrets(["API"])"#);
        let check = |host: &str, name: &str, tls: &str| {
            let policy = Policy::parse(&format!(
                r#"{{"allow": ["api.test", "10.0.0.5:8080", "evil.test"], "inject":
                    [{{"host": "{host}", "header": "Authorization", "value_from": "{name}"{tls}}}]}}"#
            ));
            secrets.check(policy.unwrap().injections())
        };
        let terminate = r#", "tls": "terminate""#;
        check("api.test", "API", terminate).unwrap();
        check("10.0.0.5:8080", "API", "").unwrap();
        for (host, name, tls) in [
            ("evil.test", "API", terminate),
            // In the clear, though it is for https only.
            ("api.test", "API", ""),
            ("10.0.0.5:8080", "API", terminate),
            ("api.test", "OTHER", terminate),
        ] {
            let error = check(host, name, tls).unwrap_err().to_string();
            assert!(error.contains("has no secret") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_no_value_is() {
        assert!(Secrets::parse("  ", env).unwrap().by_name.is_empty());
        for (text, why) in [
            ("hunter2", "no JSON"),
            (r#"["hunter2"]"#, "JSON object"),
            (r#"{"A": "hunter2"}"#, "`A`: expected"),
            (r#"{"A": {"value": "hunter2"}}"#, "`hosts` is a list"),
            (r#"{"A": {"value": "hunter2", "hosts": []}}"#, "`hosts` is a list"),
            (r#"{"A": {"value": "hunter2", "hosts": ["api.test"]}}"#, "`hosts` is a list"),
            (r#"{"A": {"value": "hunter2", "hosts": ["https://u@h"]}}"#, "`hosts` is a list"),
            (r#"{"A": {"value": "${MISSING}", "hosts": ["https://h"]}}"#, "MISSING"),
            (r#"{"A": {"value": "${BROKEN}", "hosts": ["https://h"]}}"#, "line break"),
            (r#"{"A": {"value": "hunter2", "hosts": ["https://h"], "x": 1}}"#, "neither"),
            ("@/nowhere/at/all.json", "/nowhere/at/all.json"),
        ] {
            let error = Secrets::parse(text, env).unwrap_err();
            assert!(error.contains(why) && !error.contains("hunter2"), "{text}: {error}");
        }
    }
}
