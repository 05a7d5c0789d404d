//! `belljar session network`

use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::clock;
use clap::Args;
use indicatif::HumanBytes;
use serde::Deserialize;
use serde_json::Value;

use super::show::shown_network;
use super::{find_id, print_json, spoken};
use crate::client::{Client, escape};
use crate::commands::output::{self, plain};
use crate::flags::SessionArg;
use crate::table;

#[derive(Debug, Args)]
#[command(after_help = "\
The newest connections come first, 256 at most. A refusal names its reason: the session's policy, the
server's (BELLJAR_MAX_NETWORK), a private address, or the limit of bytes. See docs/network.md.")]
pub(crate) struct SessionNetworkArgs {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Show only what was refused or failed
    #[arg(long)]
    pub(crate) refused: bool,
    /// Print everything as JSON
    #[arg(long, conflicts_with = "refused")]
    pub(crate) json: bool,
}

pub(super) async fn network(client: &Client, args: &SessionNetworkArgs) -> Result<ExitCode> {
    let id = find_id(client, &args.session).await?;
    let found = client.get(&format!("/v1/sessions/{}/network", escape(&id))).await?;
    if args.json {
        return print_json(&found).map(|()| ExitCode::SUCCESS);
    }
    let network = Network::deserialize(&found)
        .context("the server's description of the network cannot be read")?;
    let now = clock::now_ms();
    let shown = network.visits.iter().filter(|visit| !args.refused || visit.outcome != "reached");
    let rows: Vec<Vec<String>> = shown.map(|visit| visit.cells(now)).collect();
    if !rows.is_empty() {
        let header = ["when", "outcome", "method", "host", "sent", "received", "why"];
        output::print(&table::render(&header, &rows))?;
    }
    output::say(&format!(
        "policy: {}; {} reached, {} refused, {} failed",
        shown_network(&network.policy),
        network.reached,
        network.refused,
        network.failed
    ));
    Ok(ExitCode::SUCCESS)
}

/// The network traffic of a session, as the server describes it.
#[derive(Debug, Deserialize)]
struct Network {
    policy: Value,
    reached: u64,
    refused: u64,
    failed: u64,
    visits: Vec<Visit>,
}

#[derive(Debug, Deserialize)]
struct Visit {
    time: String,
    method: String,
    host: String,
    port: u16,
    outcome: String,
    reason: Option<String>,
    status: Option<u16>,
    sent: u64,
    received: u64,
}

impl Visit {
    fn cells(&self, now: i64) -> Vec<String> {
        let when = clock::parse_rfc3339(&self.time)
            .map_or_else(|| self.time.clone(), |ms| format!("{} ago", spoken(now - ms)));
        let host = match self.host.as_str() {
            "" => "-".to_owned(),
            host => format!("{}:{}", plain(host), self.port),
        };
        let why = match (&self.reason, self.status) {
            (Some(reason), _) => plain(reason),
            (None, Some(status)) => format!("answered {status}"),
            (None, None) => "-".to_owned(),
        };
        let (sent, received) = (HumanBytes(self.sent), HumanBytes(self.received));
        let method = if self.method.is_empty() { "-".to_owned() } else { plain(&self.method) };
        vec![when, self.outcome.clone(), method, host, sent.to_string(), received.to_string(), why]
    }
}
