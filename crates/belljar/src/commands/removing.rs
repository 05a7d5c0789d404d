//! Removing several things by their names.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use super::output::print_json;
use super::{EXIT_TROUBLE, output};
use crate::client::{Client, ClientError};

/// Removes one after another; one that cannot be removed does not save the others.
pub(super) async fn remove_each(
    client: &Client,
    names: &[String],
    as_json: bool,
    path_of: fn(&str) -> String,
    explain: fn(ClientError) -> anyhow::Error,
) -> Result<ExitCode> {
    let mut removed = Vec::new();
    let mut failed = false;
    for name in names {
        match client.delete(&path_of(name)).await {
            Ok(_) => {
                if !as_json {
                    output::print(&format!("{name} removed\n"))?;
                }
                removed.push(name);
            }
            Err(error) => {
                output::say(&format!("{:#}", explain(error)));
                failed = true;
            }
        }
    }
    if as_json {
        print_json(&json!({ "removed": removed }))?;
    }
    Ok(if failed { ExitCode::from(EXIT_TROUBLE) } else { ExitCode::SUCCESS })
}
