//! What a dataset may be called: a file below `/session/data`, with or without folders.

use std::fmt;
use std::str::FromStr;

const MAX_COMPONENTS: usize = 8;

/// A file system takes no longer name, and ours need room for the temporary one beside it.
const MAX_COMPONENT_BYTES: usize = 200;

/// Folders and a file, each of them a plain name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DatasetName(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a dataset's name is up to {MAX_COMPONENTS} plain names joined by `/`, each of 1 to \
     {MAX_COMPONENT_BYTES} bytes, without control characters, `\\` or a dot at its beginning"
)]
pub struct BadName;

impl DatasetName {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Without its folders.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The same folders with another file in them.
    pub(crate) fn with_file_name(&self, file_name: &str) -> Result<DatasetName, BadName> {
        match self.0.rsplit_once('/') {
            Some((folders, _)) => format!("{folders}/{file_name}").parse(),
            None => file_name.parse(),
        }
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DatasetName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<DatasetName, BadName> {
        let is_plain = |name: &str| {
            (1..=MAX_COMPONENT_BYTES).contains(&name.len())
                // What begins with a dot is hidden, or leads elsewhere.
                && !name.starts_with('.')
                && !name.chars().any(|c| c.is_control() || c == '\\')
        };
        let fine = text.split('/').count() <= MAX_COMPONENTS && text.split('/').all(is_plain);
        if fine { Ok(DatasetName(text.to_owned())) } else { Err(BadName) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_taken() {
        for good in ["a", "sales.csv", "2024/q1/sales.parquet", "größe 1.csv", "a..b", "%2e%2e"] {
            assert_eq!(good.parse::<DatasetName>().unwrap().as_str(), good);
        }
        let long = "x".repeat(201);
        let deep = "a/".repeat(8) + "a";
        for bad in ["", "/", "/a", "a/", "a//b", "..", "a/../b", ".hidden", "a\\b", "a\nb", "\0"] {
            assert_eq!(bad.parse::<DatasetName>(), Err(BadName), "{bad:?}");
        }
        assert!(long.parse::<DatasetName>().is_err() && deep.parse::<DatasetName>().is_err());
        let name: DatasetName = "a/b".parse().unwrap();
        assert_eq!(name.with_file_name("b.csv").unwrap().as_str(), "a/b.csv");
        assert_eq!(name.file_name(), "b");
    }
}
