//! `belljar session stop`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::{Session, find_id, live, print_json};
use crate::client::Client;
use crate::commands::{EXIT_FAILED, output};

#[derive(Debug, Args)]
pub(crate) struct SessionStopArgs {
    /// Ids of sessions, or their keys
    #[arg(value_name = "ID", required_unless_present = "all")]
    pub(crate) sessions: Vec<String>,
    /// All your sessions, including hibernated ones
    #[arg(long, conflicts_with = "sessions")]
    pub(crate) all: bool,
    /// Print the stopped sessions as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Stops sessions one by one. A failure is reported, and the others are still stopped.
pub(super) async fn stop(client: &Client, args: &SessionStopArgs) -> Result<ExitCode> {
    let mut stopped = Vec::new();
    let mut failed = false;
    let names = if args.all { all(client).await? } else { args.sessions.clone() };
    if names.is_empty() && !args.json {
        eprintln!("There are no sessions to stop.");
    }
    for name in &names {
        match stop_one(client, name).await {
            Ok(session) => {
                if !args.json {
                    output::print(&format!("{}\n", outcome(&Session::from(&session)?)))?;
                }
                stopped.push(session);
            }
            Err(error) => {
                output::say(&format!("{error:#}"));
                failed = true;
            }
        }
    }
    if args.json {
        print_json(&json!({ "sessions": stopped }))?;
    }
    Ok(if failed { ExitCode::from(EXIT_FAILED) } else { ExitCode::SUCCESS })
}

/// The ids of all live sessions.
async fn all(client: &Client) -> Result<Vec<String>> {
    live(client).await?.iter().map(|session| Ok(Session::from(session)?.id)).collect()
}

async fn stop_one(client: &Client, name: &str) -> Result<Value> {
    let id = find_id(client, name).await?;
    Ok(client.delete(&format!("/v1/sessions/{id}")).await?)
}

fn outcome(session: &Session) -> String {
    let because = session.ended_because.as_deref().unwrap_or("it ended");
    format!("{} {}: {because}", session.id, session.state)
}
