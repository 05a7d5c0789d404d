//! `belljar session hibernate`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::{find_id, print_json};
use crate::client::Client;
use crate::commands::output;
use crate::flags::SessionArg;

#[derive(Debug, Args)]
pub(crate) struct SessionHibernateArgs {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Hibernate even if threads, connections, processes or kernels other than Python's are lost; they are
    /// listed
    #[arg(long)]
    pub(crate) force: bool,
    /// Print everything about it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) async fn hibernate(client: &Client, args: &SessionHibernateArgs) -> Result<ExitCode> {
    let id = find_id(client, &args.session).await?;
    let ask = json!({ "force": args.force });
    let session = client.post(&format!("/v1/sessions/{id}/hibernate"), &ask).await?;
    if args.json {
        print_json(&session)?;
    } else {
        output::print(&format!("{id} hibernates; it wakes when it is used\n"))?;
        say_lost(&session);
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists what a session lost when it was hibernated or forked with `--force`.
pub(super) fn say_lost(session: &Value) {
    for what in session["lost"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        // Code in the sandbox chose the names of threads and programs.
        eprintln!("lost: {}", what.escape_debug());
    }
}
