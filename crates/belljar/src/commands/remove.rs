//! Removes several things by their names.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use super::output::print_json;
use super::{EXIT_FAILED, output};

/// Removes them one by one with `remove`, which returns the id of what it removed. A failure is reported, and the
/// others are still removed.
pub(super) async fn remove_each(
    names: &[String],
    as_json: bool,
    remove: impl AsyncFn(&str) -> Result<String>,
) -> Result<ExitCode> {
    let mut removed = Vec::new();
    let mut failed = false;
    for name in names {
        match remove(name).await {
            Ok(id) => {
                if !as_json {
                    output::print(&format!("{id} removed\n"))?;
                }
                removed.push(id);
            }
            Err(error) => {
                output::say(&format!("{error:#}"));
                failed = true;
            }
        }
    }
    if as_json {
        print_json(&json!({ "removed": removed }))?;
    }
    Ok(if failed { ExitCode::from(EXIT_FAILED) } else { ExitCode::SUCCESS })
}
