//! Secrets that the proxy adds to requests, so that they never enter a sandbox. The operator lists the origins of each
//! secret (`BELLJAR_NETWORK_SECRETS`), so that a client that creates sessions cannot send a secret to its own host.

use std::collections::HashMap;
use std::fmt;

use hyper::header::HeaderValue;
use serde_json::{Map, Value};

use crate::host::Target;
use crate::outbound::HttpUrl;
use crate::policy::Injection;
use crate::{NetworkError, setting};

/// All secrets of this server, by name.
#[derive(Default, Clone)]
pub struct Secrets {
    by_name: HashMap<String, Secret>,
}

#[derive(Clone)]
struct Secret {
    value: HeaderValue,
    /// Where the secret may be sent: whether the connection is https, and the host.
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
    /// Parses the setting: a JSON object, or `@` and the path of a file with one. Each `${NAME}` in a value is
    /// looked up in `env`. Errors do not repeat values.
    pub fn parse(text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Secrets, String> {
        if text.trim().is_empty() {
            return Ok(Secrets::default());
        }
        let entries = setting::entries(text, "a secret for each name")?;
        let secret = |(name, value): (&String, &Value)| {
            let secret = Secret::parse(value, &env).map_err(|why| format!("`{name}`: {why}"))?;
            Ok((name.clone(), secret))
        };
        Ok(Secrets { by_name: entries.iter().map(secret).collect::<Result<_, String>>()? })
    }

    /// Adds `others`, which replace secrets with the same names.
    #[must_use]
    pub fn overridden_by(mut self, others: &Secrets) -> Secrets {
        self.by_name.extend(others.by_name.clone());
        self
    }

    /// The value of a header, if the secret exists and may be sent to this host.
    pub(crate) fn value(&self, injection: &Injection) -> Option<&HeaderValue> {
        let secret = self.by_name.get(&injection.secret)?;
        let origin = (injection.terminate, injection.target.clone());
        secret.origins.contains(&origin).then_some(&secret.value)
    }

    /// Refuses injections whose secret does not exist or is not for their host.
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
        let value = setting::header_value(text, env, &mut Vec::new())
            .map_err(|why| format!("its value {why}"))?;
        Ok(Secret { value, origins: origins(entry)? })
    }
}

fn origins(entry: &Map<String, Value>) -> Result<Vec<(bool, Target)>, String> {
    const WHY: &str = "`hosts` is the list of origins that it may be sent to, such as \
                       [\"https://api.example.com\", \"http://10.0.0.5:8080\"]";
    let hosts = entry.get("hosts").and_then(Value::as_array).ok_or(WHY)?;
    let origin = |host: &Value| {
        let url = HttpUrl::parse(host.as_str()?).ok().filter(|url| url.path_and_query() == "/")?;
        Some((url.is_https(), Target { host: url.host().clone(), port: url.port() }))
    };
    let origins: Option<Vec<_>> = hosts.iter().map(origin).collect();
    origins.filter(|origins| !origins.is_empty()).ok_or(WHY.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    fn env(name: &str) -> Option<String> {
        (name == "TOKEN").then(|| "hunter2".into())
    }

    #[test]
    fn a_secret_is_sent_only_to_the_operators_origins() {
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
            // Without TLS, although the secret is for https only.
            ("api.test", "API", ""),
            ("10.0.0.5:8080", "API", terminate),
            ("api.test", "OTHER", terminate),
        ] {
            let error = check(host, name, tls).unwrap_err().to_string();
            assert!(error.contains("has no secret") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn errors_give_the_reason_and_no_value() {
        assert!(Secrets::parse("  ", env).unwrap().by_name.is_empty());
        for (text, why) in [
            ("hunter2", "not valid JSON"),
            (r#"["hunter2"]"#, "JSON object"),
            (r#"{"A": "hunter2"}"#, "`A`: expected"),
            (r#"{"A": {"value": "hunter2"}}"#, "`hosts` is the list"),
            (r#"{"A": {"value": "hunter2", "hosts": []}}"#, "`hosts` is the list"),
            (r#"{"A": {"value": "hunter2", "hosts": ["api.test"]}}"#, "`hosts` is the list"),
            (r#"{"A": {"value": "hunter2", "hosts": ["https://u@h"]}}"#, "`hosts` is the list"),
            (r#"{"A": {"value": "hunter2", "hosts": ["https://h/x"]}}"#, "`hosts` is the list"),
            (r#"{"A": {"value": "hunter2", "hosts": ["https://h?x"]}}"#, "`hosts` is the list"),
            (r#"{"A": {"value": "hunter2", "hosts": ["https://h#x"]}}"#, "`hosts` is the list"),
            (r#"{"A": {"value": "${MISSING}", "hosts": ["https://h"]}}"#, "MISSING"),
            (r#"{"A": {"value": "hunter2", "hosts": ["https://h"], "x": 1}}"#, "neither"),
        ] {
            let error = Secrets::parse(text, env).unwrap_err();
            assert!(error.contains(why) && !error.contains("hunter2"), "{text}: {error}");
        }
    }
}
