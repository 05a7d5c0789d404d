//! `belljar session remove`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::{find_id, print_json};
use crate::client::Client;
use crate::commands::{EXIT_TROUBLE, output};

#[derive(Debug, Args)]
#[command(after_help = "\
What is removed cannot be had back: the files of the session (also with storage BIND), its
snapshots, its executions and its log. One that is alive is stopped first. Artifacts stay; see
`belljar artifacts`.

  belljar session remove demo")]
pub(crate) struct SessionRemoveArgs {
    /// Ids of sessions, or their keys
    #[arg(value_name = "ID", required = true)]
    pub(crate) sessions: Vec<String>,
    /// Print what was removed as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

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
