//! The name of a volume, which is also the name of its directory in the sandbox.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const MAX_BYTES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` cannot be the name of a volume: expected 1 to {MAX_BYTES} letters, digits, `.`, `_` and \
     `-`, with a letter or digit at its beginning",
    shown(.0)
)]
pub struct BadVolumeName(String);

/// The text, cut to the length of a valid name.
fn shown(text: &str) -> String {
    text.chars().take(MAX_BYTES).collect::<String>().escape_debug().to_string()
}

impl VolumeName {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for VolumeName {
    type Err = BadVolumeName;

    fn from_str(text: &str) -> Result<VolumeName, BadVolumeName> {
        let fine = (1..=MAX_BYTES).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if fine { Ok(VolumeName(text.to_owned())) } else { Err(BadVolumeName(text.to_owned())) }
    }
}

impl TryFrom<String> for VolumeName {
    type Error = BadVolumeName;

    fn try_from(text: String) -> Result<VolumeName, BadVolumeName> {
        text.parse()
    }
}

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> String {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_taken() {
        for good in ["a", "models", "Team_1.cache-2", "0", &"x".repeat(64)] {
            assert_eq!(good.parse::<VolumeName>().unwrap().as_str(), good);
        }
        let long = "x".repeat(65);
        for bad in
            ["", ".", "..", ".hidden", "-a", "_a", "a/b", "a b", "größe", "a\0", "a:b", &long]
        {
            assert!(bad.parse::<VolumeName>().is_err(), "{bad:?}");
        }
        let error = "\u{1b}[31m".parse::<VolumeName>().unwrap_err().to_string();
        assert!(!error.contains('\u{1b}'), "{error}");
    }
}
