//! The URL of a dataset: the operator's template, filled with the dataset's id.

use std::fmt::{self, Write as _};

use belljar_network::outbound::HttpUrl;

use super::error::SourceError;

/// The longest id, and the longest part of one: a part becomes the name of a file.
const MAX_ID: usize = 1024;
const MAX_ID_PART: usize = 200;

/// A URL with placeholders for a dataset's id. Displayed as its origin, because the rest may hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Template {
    /// The URL with `x` for each placeholder; only its origin is used.
    sample: HttpUrl,
    path: Vec<TemplatePart>,
    query: Option<Vec<TemplatePart>>,
}

#[derive(Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    /// `{name}`: the id after the prefix, as one path segment.
    Name,
    /// `{path}`: the id after the prefix, with its slashes.
    Path,
    /// `{id}`: the whole id, as one path segment.
    Id,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({})", self.sample)
    }
}

impl Template {
    /// The error completes "its url ..." and does not repeat the URL.
    pub(super) fn parse(text: &str) -> Result<Template, String> {
        if text.contains("${") {
            return Err("has a `${...}`, which only values of `headers` can have".into());
        }
        // A template is not a URL yet, so its path is found here; `HttpUrl` parses the URL that it makes.
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err("begins with neither http:// nor https://".into());
        };
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains(['{', '}']) {
            return Err("has a placeholder in its host; use it in the path or query".into());
        }
        let (path, query) = match tail.split_once('?') {
            Some((path, query)) => (parts(path)?, Some(parts(query)?)),
            None => (parts(tail)?, None),
        };
        let filled_path = fill(&path, "x", "x");
        if climbs(&filled_path) {
            return Err("has a `.` or `..` in its path".into());
        }
        let filled_query = query.as_deref().map(|query| format!("?{}", fill(query, "x", "x")));
        let sample =
            format!("{scheme}://{authority}{filled_path}{}", filled_query.unwrap_or_default());
        let sample = HttpUrl::parse(&sample).map_err(|why| format!("cannot be used: {why}"))?;
        Ok(Template { sample, path, query })
    }

    pub(super) fn has_placeholder(&self) -> bool {
        let mut parts = self.path.iter().chain(self.query.iter().flatten());
        parts.any(|part| !matches!(part, TemplatePart::Text(_)))
    }

    /// The URL of dataset `id`, of which `rest` follows the prefix. Both have passed [`check_id`].
    pub(super) fn fill(&self, id: &str, rest: &str) -> Result<HttpUrl, SourceError> {
        let path = fill(&self.path, id, rest);
        // No part of an id is `.` or `..`, but the template may have a dot before the placeholder.
        if climbs(&path) {
            return Err(invalid(id, "it would lead out of its source's path"));
        }
        let query = self.query.as_deref().map(|query| fill(query, id, rest));
        Ok(self.sample.with_path(&path, query.as_deref()))
    }
}

fn parts(text: &str) -> Result<Vec<TemplatePart>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, placeholder) = rest.split_at(at);
        parts.push(TemplatePart::Text(before.to_owned()));
        let end = placeholder.find('}').ok_or("has a `{` without its `}`")?;
        parts.push(match &placeholder[..=end] {
            "{name}" => TemplatePart::Name,
            "{path}" => TemplatePart::Path,
            "{id}" => TemplatePart::Id,
            _ => return Err("has a placeholder other than {name}, {path} and {id}".into()),
        });
        rest = &placeholder[end + 1..];
    }
    parts.push(TemplatePart::Text(rest.to_owned()));
    Ok(parts)
}

fn fill(parts: &[TemplatePart], id: &str, rest: &str) -> String {
    let mut filled = String::new();
    for part in parts {
        match part {
            TemplatePart::Text(text) => filled.push_str(text),
            TemplatePart::Name => percent_encode(&mut filled, rest, false),
            TemplatePart::Path => percent_encode(&mut filled, rest, true),
            TemplatePart::Id => percent_encode(&mut filled, id, false),
        }
    }
    filled
}

/// Encodes everything except unreserved characters (RFC 3986, section 2.3). `HttpUrl` encodes fewer characters,
/// depending on their position.
fn percent_encode(encoded: &mut String, text: &str, keep_slashes: bool) {
    for byte in text.bytes() {
        let is_kept = byte.is_ascii_alphanumeric()
            || b"-._~".contains(&byte)
            || (byte == b'/' && keep_slashes);
        if is_kept {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
}

/// Whether a server may read this path as one in a parent directory.
fn climbs(path: &str) -> bool {
    let path = path.to_ascii_lowercase().replace("%2e", ".");
    path.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// Refuses ids that a server may read as another path.
pub(super) fn check_id(id: &str) -> Result<(), SourceError> {
    if id.is_empty() {
        return Err(invalid(id, "it is empty"));
    }
    if id.len() > MAX_ID {
        return Err(invalid(id, &format!("it is longer than {MAX_ID} bytes")));
    }
    if id.contains(|c: char| c.is_control() || c == '\\') {
        return Err(invalid(id, "it has a backslash or a control character"));
    }
    for part in id.split('/') {
        match part {
            "" => return Err(invalid(id, "it begins or ends with `/`, or has `//` in it")),
            "." | ".." => return Err(invalid(id, "`.` and `..` are not names")),
            part if part.len() > MAX_ID_PART => {
                let why = format!("a part of it is longer than {MAX_ID_PART} bytes");
                return Err(invalid(id, &why));
            }
            _ => {}
        }
    }
    Ok(())
}

fn invalid(id: &str, why: &str) -> SourceError {
    const SHOWN: usize = 80;
    let mut shown: String = id.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if id.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    SourceError::InvalidId { id: shown, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(template: &str, id: &str, rest: &str) -> String {
        let url = Template::parse(template).unwrap().fill(id, rest).unwrap();
        format!("{url}{}", url.path_and_query())
    }

    #[test]
    fn ids_fill_placeholders_and_nothing_else() {
        let name = "https://h/data/{name}.csv";
        assert_eq!(filled(name, "s/a", "a"), "https://h/data/a.csv");
        assert_eq!(filled(name, "s/a/b", "a/b"), "https://h/data/a%2Fb.csv");
        assert_eq!(filled(name, "s/é ü", "é ü"), "https://h/data/%C3%A9%20%C3%BC.csv");
        assert_eq!(
            filled(name, "s/a?b#c@d&e=%2e", "a?b#c@d&e=%2e"),
            "https://h/data/a%3Fb%23c%40d%26e%3D%252e.csv"
        );
        assert_eq!(filled("http://h:81/{path}", "s/a/b?c", "a/b?c"), "http://h:81/a/b%3Fc");
        assert_eq!(filled("https://h?d={id}&v=1", "s/a&b", "a&b"), "https://h/?d=s%2Fa%26b&v=1");
        assert_eq!(filled("https://[::1]:8443/{name}", "a", "a"), "https://[::1]:8443/a");
        assert_eq!(filled("https://h//{path}", "a/b", "a/b"), "https://h//a/b");
        assert_eq!(filled("https://h", "a", "a"), "https://h/");
    }

    #[test]
    fn ids_do_not_climb() {
        for id in ["", "/", "a/", "/a", "a//b", "..", "a/../b", "a/.", "a\\b", "a\nb", "a\u{9b}b"] {
            assert_eq!(check_id(id).unwrap_err().code(), "invalid_dataset", "{id:?}");
        }
        for id in [&"a".repeat(MAX_ID_PART + 1), &"a/".repeat(MAX_ID)] {
            assert!(check_id(id).unwrap_err().to_string().len() < 250);
        }
        for id in ["a", "a..b", "...", "2024/q1.csv", "ünï/çødé", "a?b", "a b@c#d%2e"] {
            check_id(id).unwrap();
        }
        for template in ["https://h/a/.{name}", "https://h/a/%2E{name}"] {
            let filled = Template::parse(template).unwrap().fill("s/.x", ".");
            assert_eq!(filled.unwrap_err().code(), "invalid_dataset", "{template}");
        }
    }

    #[test]
    fn invalid_templates_are_refused_without_being_repeated() {
        for (template, why) in [
            ("ftp://h/{name}", "neither http"),
            ("h/{name}", "neither http"),
            ("https:///{name}", "cannot be used"),
            ("https://:80/{name}", "cannot be used"),
            ("https://{name}/x", "in its host"),
            ("https://h{id}", "in its host"),
            ("https://user:hunter2@h/{name}", "user info"),
            ("https://h:99999/{name}", "cannot be used"),
            ("https://h/{nome}", "{name}, {path} and {id}"),
            ("https://h/{name", "without its"),
            ("https://h/name}", "other than"),
            ("https://h/{name}#x", "#"),
            ("https://h/{name}?key=${hunter2}", "headers"),
            ("https://h/a b/{name}", "not a valid URL"),
            ("https://h/a/%2E./{name}", "`..` in its path"),
        ] {
            let error = Template::parse(template).unwrap_err();
            assert!(error.contains(why) && !error.contains("hunter2"), "{template}: {error}");
        }
    }

    proptest! {
        /// An id changes neither the host nor the rest of the path and the query.
        #[test]
        fn no_id_leaves_its_placeholder(id in "\\PC{1,40}") {
            prop_assume!(check_id(&id).is_ok());
            let template = Template::parse("https://h/a/{path}/z?n={name}").unwrap();
            let url = template.fill(&id, &id).unwrap();
            prop_assert_eq!(url.to_string(), "https://h");
            prop_assert!(url.path().starts_with("/a/") && url.path().ends_with("/z"));
            let segments = url.path().split('/').count();
            prop_assert_eq!(segments, id.split('/').count() + 3);
            let query = url.path_and_query().split_once('?').unwrap().1;
            prop_assert!(!query.contains(['&', '#', '?', '/']));
        }
    }
}
