//! Addresses: what a source's template makes of a dataset's id, and where a redirect leads.

use std::fmt;

use hyper::Uri;

use super::error::SourceError;

/// The longest id, and the longest part of one: a part becomes the name of a file.
const MAX_ID: usize = 1024;
const MAX_ID_PART: usize = 200;

/// One address to ask. Shows itself as its origin, because the rest may hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) https: bool,
    /// In lower case, without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
    /// Begins with a slash.
    pub(super) path_and_query: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.https { "https" } else { "http" }, self.authority())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

impl Target {
    /// An absolute URL; the error says what is wrong without repeating it.
    pub(super) fn parse(url: &str) -> Result<Target, &'static str> {
        let url = url.split('#').next().unwrap_or_default();
        let uri: Uri = url.parse().map_err(|_| "it is no valid URL")?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("it begins with neither http:// nor https://"),
        };
        let authority = uri.authority().ok_or("it has no host")?;
        if authority.as_str().contains('@') {
            return Err("it names a user; a header of the source can do that");
        }
        let host = bare_host(authority.host());
        if host.is_empty() {
            return Err("it has no host");
        }
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, port)) if !port.ends_with(']') => {
                port.parse().ok().filter(|port| *port > 0).ok_or("its port is no port")?
            }
            _ if https => 443,
            _ => 80,
        };
        let path_and_query = match uri.path_and_query().map_or("/", |it| it.as_str()) {
            query if query.starts_with('?') => format!("/{query}"),
            path => path.to_owned(),
        };
        Ok(Target { https, host, port, path_and_query })
    }

    /// `host` or `host:port`, as it stands in a URL and in the `Host` header.
    pub(super) fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.https, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    pub(super) fn path(&self) -> &str {
        self.path_and_query.split('?').next().unwrap_or_default()
    }

    /// Where secrets that are meant for the other one may go too.
    pub(super) fn has_origin_of(&self, other: &Target) -> bool {
        (self.https, &self.host, self.port) == (other.https, &other.host, other.port)
    }

    /// Where a `Location` header leads from here.
    pub(super) fn redirected(&self, location: &str) -> Result<Target, &'static str> {
        let next = if let Some(rest) = location.strip_prefix("//") {
            Target::parse(&format!("{}://{rest}", if self.https { "https" } else { "http" }))?
        } else if has_scheme(location) {
            Target::parse(location)?
        } else {
            let path = match location {
                query if query.starts_with('?') => format!("{}{query}", self.path()),
                path if path.starts_with('/') => path.to_owned(),
                path => {
                    let directory = self.path().rsplit_once('/').map_or("", |(before, _)| before);
                    format!("{directory}/{path}")
                }
            };
            Target::parse(&format!("{self}{}", without_dots(&path)))?
        };
        if self.https && !next.https {
            return Err("from https it leads to http");
        }
        Ok(next)
    }
}

/// As names are compared: in lower case, without brackets and without the dot of the root.
pub(super) fn bare_host(host: &str) -> String {
    host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

fn has_scheme(location: &str) -> bool {
    let before = location.split(['/', '?', '#']).next().unwrap_or_default();
    before.contains(':')
}

/// `/a/../b` is `/b`.
fn without_dots(path_and_query: &str) -> String {
    let (path, query) = match path_and_query.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path_and_query, None),
    };
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            ".." => drop(kept.pop()),
            "." => {}
            segment => kept.push(segment),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        kept.push("");
    }
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("/{}{query}", kept.join("/"))
}

/// A URL with holes for a dataset's name.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Template {
    /// Of the URL with something in its holes; its path is not used.
    origin: Target,
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// What follows the prefix, as one segment.
    Name,
    /// What follows the prefix, with its slashes.
    Path,
    /// The whole id, as one segment.
    Id,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({})", self.origin)
    }
}

impl Template {
    /// The error completes "its url ...", and does not repeat it.
    pub(super) fn parse(url: &str) -> Result<Template, String> {
        if url.contains("${") {
            return Err("has a `${...}`; only values of `headers` can".into());
        }
        if url.contains('#') {
            return Err("has a `#`, and what follows it is never sent".into());
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err("begins with neither http:// nor https://".into());
        };
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains(['{', '}']) {
            return Err("has a placeholder in its host; it can stand in the path or query".into());
        }
        let slash = if tail.starts_with('/') { "" } else { "/" };
        let parts = parts(&format!("{slash}{tail}"))?;
        let sample: String = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text,
                Part::Name | Part::Path | Part::Id => "x",
            })
            .collect();
        let origin = Target::parse(&format!("{scheme}://{authority}{sample}"))
            .map_err(|why| format!("cannot be used: {why}"))?;
        if climbs(origin.path()) {
            return Err("has a `.` or `..` in its path".into());
        }
        Ok(Template { origin, parts })
    }

    pub(super) fn has_placeholder(&self) -> bool {
        self.parts.iter().any(|part| !matches!(part, Part::Text(_)))
    }

    /// The address of dataset `id`, of which `rest` follows the prefix. Both have been checked.
    pub(super) fn fill(&self, id: &str, rest: &str) -> Result<Target, SourceError> {
        let mut path_and_query = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => path_and_query.push_str(text),
                Part::Name => escape_into(&mut path_and_query, rest, false),
                Part::Path => escape_into(&mut path_and_query, rest, true),
                Part::Id => escape_into(&mut path_and_query, id, false),
            }
        }
        let target = Target { path_and_query, ..self.origin.clone() };
        // An id cannot have dots alone between slashes, but a template may add some to a dot.
        if climbs(target.path()) {
            return Err(invalid(id, "it would lead out of its source's path"));
        }
        Ok(target)
    }
}

/// Whether some server may take a path for another one, higher up.
fn climbs(path: &str) -> bool {
    let path = path.to_ascii_lowercase().replace("%2e", ".");
    path.split('/').any(|segment| matches!(segment, "." | ".."))
}

fn parts(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, placeholder) = rest.split_at(at);
        parts.push(Part::Text(before.to_owned()));
        let end = placeholder.find('}').ok_or("has a `{` without its `}`")?;
        parts.push(match &placeholder[..=end] {
            "{name}" => Part::Name,
            "{path}" => Part::Path,
            "{id}" => Part::Id,
            _ => return Err("has a placeholder that is none of {name}, {path} and {id}".into()),
        });
        rest = &placeholder[end + 1..];
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

/// Only what means nothing in a URL stays as it is.
fn escape_into(escaped: &mut String, text: &str, keep_slashes: bool) {
    use std::fmt::Write as _;
    for byte in text.bytes() {
        let stays = byte.is_ascii_alphanumeric()
            || b"-._~".contains(&byte)
            || (byte == b'/' && keep_slashes);
        if stays {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string succeeds.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
}

/// Refuses ids that some server on the way may take for another place than they name.
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
            "" => return Err(invalid(id, "there is nothing before, after or between its slashes")),
            "." | ".." => return Err(invalid(id, "`.` and `..` are no names")),
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
        let target = Template::parse(template).unwrap().fill(id, rest).unwrap();
        format!("{target}{}", target.path_and_query)
    }

    #[test]
    fn ids_fill_holes_and_nothing_else() {
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
    fn templates_that_cannot_work_are_refused_without_being_repeated() {
        for (template, why) in [
            ("ftp://h/{name}", "neither http"),
            ("h/{name}", "neither http"),
            ("https:///{name}", "cannot be used"),
            ("https://:80/{name}", "no"),
            ("https://{name}/x", "in its host"),
            ("https://h{id}", "in its host"),
            ("https://user:hunter2@h/{name}", "names a user"),
            ("https://h:99999/{name}", "no"),
            ("https://h/{nome}", "{name}, {path} and {id}"),
            ("https://h/{name", "without its"),
            ("https://h/name}", "none of"),
            ("https://h/{name}#x", "#"),
            ("https://h/{name}?key=${hunter2}", "headers"),
            ("https://h/a b/{name}", "no valid URL"),
            ("https://h/a/%2E./{name}", "`..` in its path"),
        ] {
            let error = Template::parse(template).unwrap_err();
            assert!(error.contains(why) && !error.contains("hunter2"), "{template}: {error}");
        }
    }

    #[test]
    fn redirects_lead_where_a_browser_would_go() {
        let here = Target::parse("https://h:444/a/b?q=1").unwrap();
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
            let next = here.redirected(location).unwrap();
            assert_eq!(format!("{next}{}", next.path_and_query), expected, "{location}");
        }
        for location in ["http://h/", "file:///etc/passwd", "https://u@h/", "https://", "x:y"] {
            assert!(here.redirected(location).is_err(), "{location}");
        }
        assert!(!here.has_origin_of(&Target::parse("https://h/a/b").unwrap()));
        assert!(here.has_origin_of(&here.redirected("/x").unwrap()));
    }

    proptest! {
        /// Whatever the id: the host, the beginning of the path and the query are the template's.
        #[test]
        fn no_id_escapes_its_hole(id in "\\PC{1,40}") {
            prop_assume!(check_id(&id).is_ok());
            let template = Template::parse("https://h/a/{path}/z?n={name}").unwrap();
            let target = template.fill(&id, &id).unwrap();
            let uri: Uri = format!("{target}{}", target.path_and_query).parse().unwrap();
            prop_assert_eq!(uri.host(), Some("h"));
            prop_assert!(uri.path().starts_with("/a/") && uri.path().ends_with("/z"));
            let segments = uri.path().split('/').count();
            prop_assert_eq!(segments, id.split('/').count() + 3);
            prop_assert!(!uri.query().unwrap().contains(['&', '#', '?', '/']));
        }
    }
}
