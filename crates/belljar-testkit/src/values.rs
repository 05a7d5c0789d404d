//! Small helpers for values that tests compare.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// A string of JSON; panics if it is something else.
#[track_caller]
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value:#}"))
}

/// Names of the entries of a directory, sorted; none if there is no directory.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
