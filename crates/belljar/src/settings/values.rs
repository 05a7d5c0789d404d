//! Looks up and parses the values of declared variables; an error names what was expected.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};

use super::variables::declared;

/// The sources of values. The first source that has a value, even an empty one, is used.
pub(super) struct Values<'a> {
    pub(super) lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Values<'_> {
    /// The value as the user wrote it, or the default.
    pub(super) fn text(&self, name: &str) -> String {
        let default = declared(name).expect("every variable that is read is declared").default;
        (self.lookup)(name).filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_owned())
    }

    /// Whether a value is set.
    pub(super) fn is_set(&self, name: &str) -> bool {
        (self.lookup)(name).is_some_and(|value| !value.trim().is_empty())
    }

    pub(super) fn read<T>(&self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
        let text = self.text(name);
        parse(text.trim()).ok_or_else(|| refusal(name, &text))
    }

    /// `None` if the value is empty.
    pub(super) fn optional<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        if self.text(name).trim().is_empty() {
            return Ok(None);
        }
        self.read(name, parse).map(Some)
    }

    /// A limit; 0 and an empty value mean none.
    pub(super) fn limit(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Option<u64>,
    ) -> Result<Option<u64>> {
        Ok(self.optional(name, parse)?.filter(|limit| *limit > 0))
    }

    /// Words separated by spaces.
    pub(super) fn list<T>(&self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
        let text = self.text(name);
        text.split_whitespace().map(|word| parse(word).ok_or_else(|| refusal(name, word))).collect()
    }

    /// Absolute paths, separated by colons.
    pub(super) fn paths(&self, name: &str) -> Result<Vec<PathBuf>> {
        let text = self.text(name);
        let absolute = |path: &str| match path.strip_prefix('/') {
            Some(_) => Ok(PathBuf::from(path)),
            None => Err(refusal(name, path)),
        };
        text.split(':').map(str::trim).filter(|path| !path.is_empty()).map(absolute).collect()
    }

    /// An absolute path.
    pub(super) fn path(&self, name: &str) -> Result<Option<PathBuf>> {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(None);
        }
        let absolute = std::path::absolute(expanded(&text));
        absolute.with_context(|| format!("{name}: failed to resolve `{text}`")).map(Some)
    }

    pub(super) fn path_or(
        &self,
        name: &str,
        default: impl FnOnce() -> Result<PathBuf>,
    ) -> Result<PathBuf> {
        match self.path(name)? {
            Some(path) => Ok(path),
            None => default(),
        }
    }
}

/// Replaces `~` at the beginning by the home directory, as a shell does: no shell reads `.env` files.
fn expanded(text: &str) -> PathBuf {
    let below = text.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
    match (below, std::env::var_os("HOME")) {
        (Some(below), Some(home)) if !home.is_empty() => {
            PathBuf::from(home).join(below.trim_start_matches('/'))
        }
        _ => PathBuf::from(text),
    }
}

fn refusal(name: &str, text: &str) -> anyhow::Error {
    let variable = declared(name).expect("every variable that is read is declared");
    let value = if variable.secret { String::new() } else { format!("={text}") };
    anyhow!("{name}{value}: expected {}", variable.accepts)
}
