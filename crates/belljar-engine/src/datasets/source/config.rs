//! `BELLJAR_DATASET_SOURCES`, from text to [`Source`]s. What is wrong is said without repeating
//! values: any of them may be a secret.

use std::fmt;
use std::time::Duration;

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use super::error::SourceError;
use super::target::{self, Target, Template};
use belljar_network::outbound::setting;

const KEYS: &str = "`url`, `headers`, `allow`, `timeout_s` and `max_bytes`";

const DEFAULT_TIMEOUT_S: u64 = 300;
/// A day: more is a mistake.
const MAX_TIMEOUT_S: u64 = 86_400;
const DEFAULT_MAX_BYTES: u64 = 2 << 30;

/// Shorter words are not taken out of what a source says: they could be any word.
const SHORTEST_SECRET: usize = 4;

/// The client decides about these, or they would change what comes back.
const OURS: &[HeaderName] = &[
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
    header::ACCEPT_ENCODING,
    header::RANGE,
    header::IF_RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
];

/// Where datasets with a certain name, or with a prefix in common, come from.
pub(super) struct Source {
    pub(super) matches: Matches,
    template: Template,
    /// Secrets among them, so they go to the template's origin and nowhere else.
    pub(super) headers: HeaderMap,
    /// What must not be repeated if the source says it back to us, the longest first.
    secrets: Vec<String>,
    allow: Vec<Allowed>,
    pub(super) timeout: Duration,
    pub(super) max_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Matches {
    Name(String),
    Prefix(String),
}

/// A host that may be near; on any port where none is given.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Allowed {
    host: String,
    port: Option<u16>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.keys().map(HeaderName::as_str).collect();
        f.debug_struct("Source")
            .field("matches", &self.matches)
            .field("template", &self.template)
            .field("headers", &headers)
            .field("allow", &self.allow)
            .field("timeout", &self.timeout)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// How much of the id it knows, if the id is one of its own.
    pub(super) fn knows(&self, id: &str) -> Option<usize> {
        match &self.matches {
            Matches::Name(name) => (id == name).then_some(name.len()),
            // A prefix with nothing after it names no dataset.
            Matches::Prefix(prefix) => {
                (id.starts_with(prefix.as_str()) && id.len() > prefix.len()).then_some(prefix.len())
            }
        }
    }

    /// The address of a dataset it knows.
    pub(super) fn target(&self, id: &str) -> Result<Target, SourceError> {
        let rest = match &self.matches {
            Matches::Name(_) => id,
            Matches::Prefix(prefix) => id.strip_prefix(prefix.as_str()).unwrap_or(id),
        };
        self.template.fill(id, rest)
    }

    pub(super) fn may_be_near(&self, target: &Target) -> bool {
        self.allow.iter().any(|allowed| {
            allowed.host == target.host && allowed.port.is_none_or(|port| port == target.port)
        })
    }

    /// Takes our secrets out of what a source says.
    pub(super) fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            text = text.replace(secret.as_str(), "[secret]");
        }
        text
    }
}

/// The sources of a setting, as it is written: JSON, or `@` and the file that has it.
pub(super) fn parse(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Source>, String> {
    let text = setting::read(text)?;
    let value: Value = serde_json::from_str(&text).map_err(|why| format!("no JSON: {why}"))?;
    let Value::Object(entries) = value else {
        return Err("expected a JSON object with a source for each prefix".into());
    };
    let mut sources: Vec<Source> = Vec::new();
    for (name, value) in &entries {
        let source = source(name, value, env).map_err(|why| format!("`{name}`: {why}"))?;
        if sources.iter().any(|other| other.matches == source.matches) {
            return Err(format!("`{name}`: another entry is for the same datasets"));
        }
        sources.push(source);
    }
    Ok(sources)
}

fn source(
    name: &str,
    value: &Value,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Source, String> {
    let nothing = Map::new();
    let (url, options) = match value {
        Value::String(url) => (url, &nothing),
        Value::Object(options) => match options.get("url") {
            Some(Value::String(url)) => (url, options),
            _ => return Err("it needs a `url` in quotes".into()),
        },
        _ => return Err("expected a URL, or an object with a `url`".into()),
    };
    let matches = matches(name)?;
    let template = Template::parse(url).map_err(|why| format!("its url {why}"))?;
    if !template.has_placeholder() && matches!(matches, Matches::Prefix(_)) {
        return Err(
            "its url is the same for every dataset; put {name}, {path} or {id} into it, or name \
             one dataset in full, without `/` or `*` at the end"
                .into(),
        );
    }
    let mut source = Source {
        matches,
        template,
        headers: HeaderMap::new(),
        secrets: Vec::new(),
        allow: Vec::new(),
        timeout: Duration::from_secs(DEFAULT_TIMEOUT_S),
        max_bytes: DEFAULT_MAX_BYTES,
    };
    for (key, value) in options {
        match key.as_str() {
            "url" => {}
            "headers" => (source.headers, source.secrets) = headers(value, env)?,
            "allow" => source.allow = allow(value)?,
            "timeout_s" => {
                let seconds = value.as_u64().filter(|s| (1..=MAX_TIMEOUT_S).contains(s));
                let seconds =
                    seconds.ok_or(format!("`timeout_s` is seconds, from 1 to {MAX_TIMEOUT_S}"))?;
                source.timeout = Duration::from_secs(seconds);
            }
            "max_bytes" => {
                let why = "`max_bytes` is a number, or a size such as \"512M\" or \"2G\"";
                source.max_bytes = size(value).filter(|size| *size > 0).ok_or(why)?;
            }
            other => return Err(format!("`{other}` is none of {KEYS}")),
        }
    }
    Ok(source)
}

fn matches(name: &str) -> Result<Matches, String> {
    let prefix = name.strip_suffix('*').unwrap_or(name);
    if prefix.contains('*') {
        return Err("`*` can only stand at its end".into());
    }
    // What no id can begin with would wait for ever.
    let without_slash = prefix.strip_suffix('/').unwrap_or(prefix);
    if name != "*" {
        target::check_id(without_slash).map_err(|why| why.to_string())?;
    }
    let is_prefix = name.ends_with(['*', '/']);
    Ok(if is_prefix { Matches::Prefix(prefix.into()) } else { Matches::Name(name.into()) })
}

/// Headers, and what of them is secret.
fn headers(
    value: &Value,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(HeaderMap, Vec<String>), String> {
    let Value::Object(entries) = value else {
        return Err("`headers` is an object with a text for each name".into());
    };
    let mut headers = HeaderMap::new();
    let mut secrets = Vec::new();
    for (name, value) in entries {
        let header: HeaderName =
            name.parse().map_err(|_| format!("`{name}` is no name of a header"))?;
        if OURS.contains(&header) {
            return Err(format!("header `{name}` is not yours to set"));
        }
        let Value::String(value) = value else {
            return Err(format!("the value of header `{name}` is no text"));
        };
        let value = setting::expand(value, env, &mut secrets)
            .map_err(|why| format!("the value of header `{name}` {why}"))?;
        let mut sent = HeaderValue::try_from(&value).map_err(|_| {
            format!(
                "the value of header `{name}` has a line break or another control character; does \
                 one of its variables end in one?"
            )
        })?;
        sent.set_sensitive(true);
        if headers.insert(header, sent).is_some() {
            return Err(format!("header `{name}` is there twice"));
        }
        // Secrets that are written out, too, with and without the word before them.
        secrets.extend(value.split_whitespace().map(str::to_owned));
        secrets.push(value);
    }
    secrets.retain(|secret| secret.len() >= SHORTEST_SECRET);
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.dedup();
    Ok((headers, secrets))
}

fn allow(value: &Value) -> Result<Vec<Allowed>, String> {
    const WHY: &str = "`allow` is a list of hosts, such as [\"data.internal:8443\", \"[fd00::1]\"]";
    let names = value.as_array().ok_or(WHY)?;
    names.iter().map(|name| allowed(name.as_str()?)).collect::<Option<_>>().ok_or(WHY.into())
}

fn allowed(text: &str) -> Option<Allowed> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, Some(port.parse().ok()?)),
        _ => (text, None),
    };
    let is_v6 = host.starts_with('[') && host.ends_with(']');
    let bare = target::bare_host(host);
    let is_valid = if is_v6 {
        bare.parse::<std::net::Ipv6Addr>().is_ok()
    } else {
        !bare.is_empty() && bare.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
    };
    is_valid.then_some(Allowed { host: bare, port })
}

/// Bytes, or a text such as `512M`.
fn size(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => crate::size::parse(text),
        value => value.as_u64(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "TOKEN" => Some("hunter2hunter2".into()),
            "BROKEN" => Some("hunter2\n".into()),
            _ => None,
        }
    }

    #[test]
    fn everything_that_can_be_said_is_understood() {
        let text = r#"{
            "sales/": {"url": "https://data.example.com/{name}.parquet",
                       "headers": {"Authorization": "Bearer ${TOKEN}", "X-Plain": "$5"},
                       "allow": ["Data.Internal:8443", "[fd00::1]", "10.0.0.1"],
                       "timeout_s": 9, "max_bytes": "2G"},
            "plain/*": "http://h/{path}",
            "one/file": "http://h/file.csv"
        }"#;
        let sources = parse(text, &env).unwrap();
        let by = |id: &str| sources.iter().find(|source| source.knows(id).is_some());
        let sales = by("sales/x").unwrap();
        assert_eq!(sales.headers["authorization"], "Bearer hunter2hunter2");
        assert_eq!(sales.headers["x-plain"], "$5");
        assert_eq!((sales.timeout.as_secs(), sales.max_bytes), (9, 2 << 30));
        for (url, near) in [
            ("http://data.internal:8443", true),
            ("http://data.internal", false),
            ("http://[fd00::1]:7", true),
            ("http://10.0.0.1", true),
            ("http://10.0.0.2", false),
        ] {
            assert_eq!(sales.may_be_near(&Target::parse(url).unwrap()), near, "{url}");
        }
        assert_eq!(by("plain/a/b").unwrap().target("plain/a/b").unwrap().path(), "/a/b");
        assert_eq!(by("one/file").unwrap().target("one/file").unwrap().path(), "/file.csv");
        assert!(by("sales/").is_none() && by("one/files").is_none() && by("other").is_none());
        let shown = format!("{sources:?}");
        assert!(shown.contains("authorization") && !shown.contains("hunter2"), "{shown}");
        assert_eq!(sales.redact("no hunter2hunter2 here"), "no [secret] here");
    }

    #[test]
    fn what_is_wrong_is_said_and_no_value_is() {
        for (text, why) in [
            ("[]", "expected a JSON object"),
            ("{", "no JSON"),
            (r#"{"a/": 1}"#, "`a/`: expected a URL"),
            (r#"{"a/": {}}"#, "`url`"),
            (r#"{"a/": {"url": "http://h/{id}", "hedders": {}}}"#, "`hedders` is none of `url`,"),
            (r#"{"a/": "http://h/"}"#, "the same for every dataset"),
            (r#"{"a*": "http://h/"}"#, "name one dataset in full"),
            (r#"{"a*b": "http://h/{id}"}"#, "`*` can only stand at its end"),
            (r#"{"../": "http://h/{id}"}"#, "no names"),
            (r#"{"": "http://h/{id}"}"#, "empty"),
            (r#"{"a/": "http://h/{id}", "a/*": "http://h/{id}"}"#, "the same datasets"),
            (r#"{"a": {"url": "http://h", "headers": "hunter2"}}"#, "`headers` is an object"),
            (r#"{"a": {"url": "http://h", "headers": {"A": ["hunter2"]}}}"#, "no text"),
            (r#"{"a": {"url": "http://h", "headers": {"A b": "hunter2"}}}"#, "no name of a header"),
            (r#"{"a": {"url": "http://h", "headers": {"Host": "hunter2"}}}"#, "not yours"),
            (r#"{"a": {"url": "http://h", "headers": {"A": "${MISSING}"}}}"#, "variable MISSING"),
            (r#"{"a": {"url": "http://h", "headers": {"A": "${hunter2"}}}"#, "without its"),
            (r#"{"a": {"url": "http://h", "headers": {"A": "${hunter2 x}"}}}"#, "is no name"),
            (r#"{"a": {"url": "http://h", "headers": {"A": "${BROKEN}"}}}"#, "line break"),
            (r#"{"a": {"url": "http://h", "headers": {"A": "1", "a": "2"}}}"#, "twice"),
            (r#"{"a": {"url": "http://h", "allow": "h"}}"#, "`allow` is a list"),
            (r#"{"a": {"url": "http://h", "allow": ["http://h"]}}"#, "`allow` is a list"),
            (r#"{"a": {"url": "http://h", "allow": ["h:x"]}}"#, "`allow` is a list"),
            (r#"{"a": {"url": "http://h", "timeout_s": 0}}"#, "`timeout_s`"),
            (r#"{"a": {"url": "http://h", "max_bytes": "lots"}}"#, "`max_bytes`"),
            ("@/nowhere/at/all.json", "`/nowhere/at/all.json`"),
        ] {
            let error = parse(text, &env).unwrap_err();
            assert!(error.contains(why) && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn sources_can_stand_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), r#"{"a/": "https://h/{name}"}"#).unwrap();
        let sources = parse(&format!("@{}", file.path().display()), &env).unwrap();
        assert_eq!(sources.len(), 1);
    }

    #[test]
    fn sizes_are_numbers_with_or_without_a_letter() {
        let text = |text: &str| size(&Value::from(text));
        assert_eq!(size(&Value::from(7)), Some(7));
        assert_eq!((text("7"), text("7k"), text("2 GiB")), (Some(7), Some(7 << 10), Some(2 << 30)));
        assert_eq!((text(""), text("x"), text("-1"), text("99999999T")), (None, None, None, None));
    }
}
