//! `belljar session remove`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::find_id;
use crate::client::Client;
use crate::commands::remove::remove_each;

#[derive(Debug, Args)]
#[command(after_help = "\
This removes the files of the session (also with storage BIND), its snapshots, its executions and its
log. They cannot be restored. A live session is stopped first. Artifacts are kept; see
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

pub(super) async fn remove(client: &Client, args: &SessionRemoveArgs) -> Result<ExitCode> {
    let remove = async |name: &str| {
        let id = find_id(client, name).await?;
        client.delete(&format!("/v1/sessions/{id}?purge=true")).await?;
        Ok(id)
    };
    remove_each(&args.sessions, args.json, remove).await
}
