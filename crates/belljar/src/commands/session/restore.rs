//! `belljar session restore`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::fork::listed;
use super::{find_id, print_json};
use crate::client::Client;
use crate::commands::output;
use crate::flags::SessionArg;

#[derive(Debug, Args)]
pub(crate) struct SessionRestoreArgs {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// The execution to go back to; without it, the checkpoints are listed
    #[arg(value_name = "EXEC")]
    pub(crate) exec: Option<String>,
    /// Print the server's response as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Restores a session; without an execution, lists its checkpoints.
pub(super) async fn restore(client: &Client, args: &SessionRestoreArgs) -> Result<ExitCode> {
    let id = find_id(client, &args.session).await?;
    let (answer, said) = match &args.exec {
        Some(exec) => {
            let ask = json!({ "exec_id": exec });
            let session = client.post(&format!("/v1/sessions/{id}/restore"), &ask).await?;
            (session, format!("{id} has its state after {exec} again\n"))
        }
        None => {
            let checkpoints = client.get(&format!("/v1/sessions/{id}/checkpoints")).await?;
            let said = listed(&checkpoints);
            if said.is_empty() && !args.json {
                output::say("there are no checkpoints; `session create --checkpoints` keeps them");
            }
            (checkpoints, said)
        }
    };
    if args.json {
        print_json(&answer)?;
    } else {
        output::print(&said)?;
    }
    Ok(ExitCode::SUCCESS)
}
