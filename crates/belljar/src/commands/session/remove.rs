//! `belljar session remove`

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use super::{find_id, print_json};
use crate::cli::SessionRemoveArgs;
use crate::client::Client;
use crate::commands::{EXIT_TROUBLE, output};

/// Removes one after another; one that cannot be removed does not save the others.
pub(super) async fn remove(client: &Client, args: &SessionRemoveArgs) -> Result<ExitCode> {
    let mut removed = Vec::new();
    let mut failed = false;
    for name in &args.sessions {
        match remove_one(client, name).await {
            Ok(id) => {
                if !args.json {
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
    if args.json {
        print_json(&json!({ "removed": removed }))?;
    }
    Ok(if failed { ExitCode::from(EXIT_TROUBLE) } else { ExitCode::SUCCESS })
}

async fn remove_one(client: &Client, name: &str) -> Result<String> {
    let id = find_id(client, name).await?;
    client.delete(&format!("/v1/sessions/{id}?purge=true")).await?;
    Ok(id)
}
