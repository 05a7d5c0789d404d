//! `belljar session fork`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::hibernate::say_lost;
use super::{find_id, print_json};
use crate::client::Client;
use crate::commands::output;
use crate::flags::SessionArg;

#[derive(Debug, Args)]
pub(crate) struct SessionForkArgs {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Number of copies
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
    pub(crate) count: usize,
    /// Copy the state after this execution, which must have a checkpoint
    #[arg(long, value_name = "EXEC")]
    pub(crate) from: Option<String>,
    /// Fork even if threads, connections, processes or kernels other than Python's are not copied; they are
    /// listed
    #[arg(long)]
    pub(crate) force: bool,
    /// Print everything about them as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) async fn fork(client: &Client, args: &SessionForkArgs) -> Result<ExitCode> {
    let id = find_id(client, &args.session).await?;
    let mut ask = json!({ "count": args.count, "force": args.force });
    if let Some(exec) = &args.from {
        ask["from"] = exec.as_str().into();
    }
    let forked = client.post(&format!("/v1/sessions/{id}/fork"), &ask).await?;
    if args.json {
        print_json(&forked)?;
        return Ok(ExitCode::SUCCESS);
    }
    for session in forked["sessions"].as_array().into_iter().flatten() {
        let id = session["id"].as_str().unwrap_or_default();
        output::print(&format!("{id}\n"))?;
    }
    // All forks have lost the same things.
    say_lost(&forked["sessions"][0]);
    Ok(ExitCode::SUCCESS)
}

/// The checkpoints of a session, as text.
pub(super) fn listed(checkpoints: &Value) -> String {
    let rows = checkpoints["checkpoints"].as_array().into_iter().flatten();
    let line = |row: &Value| {
        let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        let kib = row["bytes"].as_u64().unwrap_or(0).div_ceil(1024);
        format!("{}  {}  {kib} KiB\n", text("exec_id"), text("created"))
    };
    rows.map(line).collect()
}
