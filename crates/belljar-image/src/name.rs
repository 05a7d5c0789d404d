//! Names of images, as registries and container engines use them, including the tag.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The machine's own `/usr`, which is not an image in the store.
pub const HOST: &str = "host";

/// Long enough for any registry, short enough for a file name after escaping.
const MAX_NAME: usize = 200;

/// A repository and a tag (or a digest), such as `python:3.12` or `ghcr.example/team/lab:latest`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("`{HOST}` is this machine itself, not the name of an image")]
    Host,
    #[error(
        "`{0}` is not a name for an image: it consists of lower-case letters, digits, `.`, `_`, \
         `-` and `/`, and may have a tag after a colon, such as `team/lab:1.0`"
    )]
    Form(String),
}

impl Name {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The file name of its record: letters, digits and a few other characters, without a dot at
    /// the beginning.
    #[must_use]
    pub(crate) fn file_name(&self) -> String {
        self.0.replace('/', "%2F").replace(':', "%3A").replace('@', "%40") + ".json"
    }
}

impl FromStr for Name {
    type Err = BadName;

    /// Without a tag, the tag is `latest`.
    fn from_str(text: &str) -> Result<Name, BadName> {
        if text == HOST {
            return Err(BadName::Host);
        }
        let bad = || BadName::Form(text.chars().take(MAX_NAME).collect());
        if text.len() > MAX_NAME {
            return Err(bad());
        }
        if let Some((repository, digest)) = text.split_once('@') {
            let fits = is_repository(strip_tag(repository).0)
                && crate::OciDigest::from_str(digest).is_ok();
            return if fits { Ok(Name(text.to_owned())) } else { Err(bad()) };
        }
        let (repository, tag) = strip_tag(text);
        if !is_repository(repository) || !tag.is_none_or(is_tag) {
            return Err(bad());
        }
        Ok(Name(format!("{repository}:{}", tag.unwrap_or("latest"))))
    }
}

/// Splits off the tag. A colon before the last slash belongs to a port.
fn strip_tag(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
        _ => (text, None),
    }
}

fn is_repository(text: &str) -> bool {
    let mut parts = text.split('/');
    let is_part = |part: &str, extra: &[u8]| {
        let fits = |byte: u8| {
            byte.is_ascii_lowercase()
                || byte.is_ascii_digit()
                || b"._-".contains(&byte)
                || extra.contains(&byte)
        };
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        part.bytes().all(fits) && edge(part.bytes().next()) && edge(part.bytes().last())
    };
    // Only a registry has a port.
    let first = parts.next().unwrap_or_default();
    let extra: &[u8] = if text.contains('/') { b":" } else { b"" };
    is_part(first, extra) && parts.all(|part| is_part(part, b""))
}

fn is_tag(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=128).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with(['.', '-'])
}

impl TryFrom<String> for Name {
    type Error = BadName;

    fn try_from(text: String) -> Result<Name, BadName> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_tag_and_lead_to_one_file() {
        for (text, name) in [
            ("lab", "lab:latest"),
            ("debian:bookworm", "debian:bookworm"),
            ("127.0.0.1:5000/team/lab", "127.0.0.1:5000/team/lab:latest"),
            ("localhost:5000/lab:1.0-rc_1", "localhost:5000/lab:1.0-rc_1"),
        ] {
            let parsed: Name = text.parse().unwrap();
            assert_eq!(parsed.as_str(), name);
            assert!(!parsed.file_name().contains(['/', ':']));
        }
        for wrong in [
            "",
            "host",
            "Lab",
            "../etc",
            "a//b",
            "/a",
            "a/",
            ".a",
            "a:",
            "a:b:c",
            "a b",
            "a:.x",
            "a@sha256:1",
            "-rf",
            "a\0b",
        ] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
        assert!("x".repeat(201).parse::<Name>().is_err());
    }
}
