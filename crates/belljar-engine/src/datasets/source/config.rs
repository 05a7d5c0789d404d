//! Parses `BELLJAR_DATASET_SOURCES`. Errors do not repeat values, because any of them may be a secret.

use std::fmt;
use std::time::Duration;

use belljar_network::host::{Host, split_port};
use belljar_network::outbound::HttpUrl;
use belljar_network::setting;
use hyper::header::{self, HeaderMap, HeaderName};
use serde_json::{Map, Value};

use super::error::SourceError;
use super::template::{self, Template};

const KEYS: &str = "`url`, `headers`, `allow`, `timeout_s` and `max_bytes`";

const DEFAULT_TIMEOUT_S: u64 = 300;
/// A day. A longer timeout is a mistake.
const MAX_TIMEOUT_S: u64 = 86_400;
const DEFAULT_MAX_BYTES: u64 = 2 << 30;

/// Shorter secrets are not removed from the answer of a source, because they could be ordinary words.
const SHORTEST_SECRET: usize = 4;

/// Headers that our client sets itself, or that change what a source sends.
const RESERVED: &[HeaderName] = &[
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

/// An entry of the setting: the source of one dataset, or of all datasets with a prefix.
pub(super) struct DatasetSource {
    pub(super) matches: Matches,
    template: Template,
    /// May hold secrets, so the headers are sent to the template's origin only.
    pub(super) headers: HeaderMap,
    /// Removed from messages of the source, the longest first.
    secrets: Vec<String>,
    /// Hosts that may have addresses that are not public.
    allow: Vec<AllowedHost>,
    pub(super) timeout: Duration,
    pub(super) max_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Matches {
    Name(String),
    Prefix(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedHost {
    host: Host,
    /// `None` for every port.
    port: Option<u16>,
}

impl fmt::Debug for DatasetSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.keys().map(HeaderName::as_str).collect();
        f.debug_struct("DatasetSource")
            .field("matches", &self.matches)
            .field("template", &self.template)
            .field("headers", &headers)
            .field("allow", &self.allow)
            .field("timeout", &self.timeout)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

impl DatasetSource {
    /// How many bytes of the id match; `None` if it is not a dataset of this source.
    pub(super) fn matched(&self, id: &str) -> Option<usize> {
        match &self.matches {
            Matches::Name(name) => (id == name).then_some(name.len()),
            // The prefix alone is not the name of a dataset.
            Matches::Prefix(prefix) => {
                (id.starts_with(prefix.as_str()) && id.len() > prefix.len()).then_some(prefix.len())
            }
        }
    }

    /// The URL of a dataset of this source.
    pub(super) fn url(&self, id: &str) -> Result<HttpUrl, SourceError> {
        let rest = match &self.matches {
            Matches::Name(_) => id,
            Matches::Prefix(prefix) => id.strip_prefix(prefix.as_str()).unwrap_or(id),
        };
        self.template.fill(id, rest)
    }

    /// Sets one option of the setting.
    fn set(
        &mut self,
        key: &str,
        value: &Value,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        match key {
            "url" => {}
            "headers" => (self.headers, self.secrets) = headers(value, env)?,
            "allow" => self.allow = allow(value)?,
            "timeout_s" => {
                let seconds = value.as_u64().filter(|s| (1..=MAX_TIMEOUT_S).contains(s));
                let seconds = seconds.ok_or(format!(
                    "`timeout_s` is a number of seconds from 1 to {MAX_TIMEOUT_S}"
                ))?;
                self.timeout = Duration::from_secs(seconds);
            }
            "max_bytes" => {
                let why = "`max_bytes` is a number, or a size such as \"512M\" or \"2G\"";
                self.max_bytes = size(value).filter(|size| *size > 0).ok_or(why)?;
            }
            other => return Err(format!("`{other}` is not one of {KEYS}")),
        }
        Ok(())
    }

    /// Whether this host may have an address that is not public.
    pub(super) fn may_be_near(&self, url: &HttpUrl) -> bool {
        self.allow.iter().any(|allowed| {
            allowed.host == *url.host() && allowed.port.is_none_or(|port| port == url.port())
        })
    }

    /// Removes our secrets from a message of the source.
    pub(super) fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            text = text.replace(secret.as_str(), "[secret]");
        }
        text
    }
}

/// Parses the setting: a JSON object, or `@` and the path of a file with one.
pub(super) fn parse(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<DatasetSource>, String> {
    let entries = setting::entries(text, "a source for each prefix")?;
    let mut sources: Vec<DatasetSource> = Vec::new();
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
) -> Result<DatasetSource, String> {
    let nothing = Map::new();
    let (url, options) = match value {
        Value::String(url) => (url, &nothing),
        Value::Object(options) => match options.get("url") {
            Some(Value::String(url)) => (url, options),
            _ => return Err("it needs a `url`, a string".into()),
        },
        _ => return Err("expected a URL, or an object with a `url`".into()),
    };
    let matches = matches(name)?;
    let template = Template::parse(url).map_err(|why| format!("its url {why}"))?;
    if !template.has_placeholder() && matches!(matches, Matches::Prefix(_)) {
        return Err(
            "its url is the same for every dataset; add {name}, {path} or {id} to it, or use the full name of \
             one dataset, without `/` or `*` at the end"
                .into(),
        );
    }
    let mut source = DatasetSource {
        matches,
        template,
        headers: HeaderMap::new(),
        secrets: Vec::new(),
        allow: Vec::new(),
        timeout: Duration::from_secs(DEFAULT_TIMEOUT_S),
        max_bytes: DEFAULT_MAX_BYTES,
    };
    for (key, value) in options {
        source.set(key, value, env)?;
    }
    Ok(source)
}

fn matches(name: &str) -> Result<Matches, String> {
    let prefix = name.strip_suffix('*').unwrap_or(name);
    if prefix.contains('*') {
        return Err("`*` is only possible at its end".into());
    }
    // No valid id begins with an invalid one, so the prefix must be valid.
    let without_slash = prefix.strip_suffix('/').unwrap_or(prefix);
    if name != "*" {
        template::check_id(without_slash).map_err(|why| why.to_string())?;
    }
    let is_prefix = name.ends_with(['*', '/']);
    Ok(if is_prefix { Matches::Prefix(prefix.into()) } else { Matches::Name(name.into()) })
}

/// The headers, and the secrets in them.
fn headers(
    value: &Value,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(HeaderMap, Vec<String>), String> {
    let Value::Object(entries) = value else {
        return Err("`headers` is an object with a string for each name".into());
    };
    let mut headers = HeaderMap::new();
    let mut secrets = Vec::new();
    for (name, value) in entries {
        let header: HeaderName =
            name.parse().map_err(|_| format!("`{name}` is not the name of a header"))?;
        if RESERVED.contains(&header) {
            return Err(format!("header `{name}` cannot be set: the server sets it"));
        }
        let Value::String(value) = value else {
            return Err(format!("the value of header `{name}` is not a string"));
        };
        let value = setting::header_value(value, env, &mut secrets)
            .map_err(|why| format!("the value of header `{name}` {why}"))?;
        if headers.insert(header, value).is_some() {
            return Err(format!("header `{name}` is there twice"));
        }
    }
    secrets.retain(|secret| secret.len() >= SHORTEST_SECRET);
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.dedup();
    Ok((headers, secrets))
}

fn allow(value: &Value) -> Result<Vec<AllowedHost>, String> {
    const WHY: &str = "`allow` is a list of hosts, such as [\"data.internal:8443\", \"[fd00::1]\"]";
    let names = value.as_array().ok_or(WHY)?;
    names.iter().map(|name| allowed(name.as_str()?)).collect::<Option<_>>().ok_or(WHY.into())
}

fn allowed(text: &str) -> Option<AllowedHost> {
    let (host, port) = split_port(text).ok()?;
    Some(AllowedHost { host: Host::parse(host).ok()?, port })
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
        (name == "TOKEN").then(|| "hunter2hunter2".into())
    }

    #[test]
    fn all_options_are_parsed() {
        let text = r#"{
            "sales/": {"url": "https://data.example.com/{name}.parquet",
                       "headers": {"Authorization": "Bearer ${TOKEN}", "X-Plain": "$5"},
                       "allow": ["Data.Internal:8443", "[fd00::1]", "10.0.0.1"],
                       "timeout_s": 9, "max_bytes": "2G"},
            "plain/*": "http://h/{path}",
            "one/file": "http://h/file.csv"
        }"#;
        let sources = parse(text, &env).unwrap();
        let by = |id: &str| sources.iter().find(|source| source.matched(id).is_some());
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
            assert_eq!(sales.may_be_near(&HttpUrl::parse(url).unwrap()), near, "{url}");
        }
        assert_eq!(by("plain/a/b").unwrap().url("plain/a/b").unwrap().path(), "/a/b");
        assert_eq!(by("one/file").unwrap().url("one/file").unwrap().path(), "/file.csv");
        assert!(by("sales/").is_none() && by("one/files").is_none() && by("other").is_none());
        let shown = format!("{sources:?}");
        assert!(shown.contains("authorization") && !shown.contains("hunter2"), "{shown}");
        assert_eq!(sales.redact("no hunter2hunter2 here"), "no [secret] here");
    }

    #[test]
    fn errors_give_the_reason_and_no_value() {
        for (text, why) in [
            ("[]", "expected a JSON object"),
            ("{", "not valid JSON"),
            (r#"{"a/": 1}"#, "`a/`: expected a URL"),
            (r#"{"a/": {}}"#, "`url`"),
            (
                r#"{"a/": {"url": "http://h/{id}", "hedders": {}}}"#,
                "`hedders` is not one of `url`,",
            ),
            (r#"{"a/": "http://h/"}"#, "the same for every dataset"),
            (r#"{"a*": "http://h/"}"#, "full name of one dataset"),
            (r#"{"a*b": "http://h/{id}"}"#, "`*` is only possible at its end"),
            (r#"{"../": "http://h/{id}"}"#, "not names"),
            (r#"{"": "http://h/{id}"}"#, "empty"),
            (r#"{"a/": "http://h/{id}", "a/*": "http://h/{id}"}"#, "the same datasets"),
            (r#"{"a": {"url": "http://h", "headers": "hunter2"}}"#, "`headers` is an object"),
            (r#"{"a": {"url": "http://h", "headers": {"A": ["hunter2"]}}}"#, "not a string"),
            (
                r#"{"a": {"url": "http://h", "headers": {"A b": "hunter2"}}}"#,
                "not the name of a header",
            ),
            (r#"{"a": {"url": "http://h", "headers": {"Host": "hunter2"}}}"#, "the server sets it"),
            (r#"{"a": {"url": "http://h", "headers": {"A": "${MISSING}"}}}"#, "variable MISSING"),
            (r#"{"a": {"url": "http://h", "headers": {"A": "1", "a": "2"}}}"#, "twice"),
            (r#"{"a": {"url": "http://h", "allow": "h"}}"#, "`allow` is a list"),
            (r#"{"a": {"url": "http://h", "allow": ["http://h"]}}"#, "`allow` is a list"),
            (r#"{"a": {"url": "http://h", "allow": ["h:x"]}}"#, "`allow` is a list"),
            (r#"{"a": {"url": "http://h", "timeout_s": 0}}"#, "`timeout_s`"),
            (r#"{"a": {"url": "http://h", "max_bytes": "lots"}}"#, "`max_bytes`"),
        ] {
            let error = parse(text, &env).unwrap_err();
            assert!(error.contains(why) && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn sources_can_be_in_a_file() {
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
