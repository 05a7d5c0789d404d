//! The name of a dataset: a path below `/session/data`.

use std::fmt;
use std::str::FromStr;

const MAX_COMPONENTS: usize = 8;

/// File systems allow 255 bytes. The name of the temporary file needs some of them.
const MAX_COMPONENT_BYTES: usize = 200;

/// A relative path of plain names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DatasetName(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name of a dataset is a path of up to {MAX_COMPONENTS} names, each of 1 to \
     {MAX_COMPONENT_BYTES} bytes, without control characters, `\\` or a dot at its beginning"
)]
pub struct BadName;

impl DatasetName {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last component.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The same path with another last component.
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
                // `.` and `..` would leave the directory, and hidden files are used by the server.
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
