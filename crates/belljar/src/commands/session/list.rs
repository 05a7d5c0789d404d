//! `belljar session list`

use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::clock;
use clap::Args;
use indicatif::HumanBytes;
use serde_json::{Value, json};

use super::{Session, print_json, spoken};
use crate::client::{Client, escape};
use crate::commands::output;
use crate::table;

#[derive(Debug, Args)]
pub(crate) struct SessionListArgs {
    /// Only sessions in this state: creating, ready, busy, stopping, stopped, failed, ...
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<String>,
    /// Only sessions with this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Print them as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The largest page that a server sends.
const MAX_PAGE: usize = 1000;

pub(super) async fn list(client: &Client, args: &SessionListArgs) -> Result<ExitCode> {
    let (sessions, has_more) = fetch(client, args).await?;
    if args.json {
        print_json(&json!({ "sessions": sessions }))?;
    } else if sessions.is_empty() {
        eprintln!("There are no sessions{}.", if is_filtered(args) { " like that" } else { "" });
    } else {
        let now = clock::now_ms();
        let sessions: Vec<Session> = sessions.iter().map(Session::from).collect::<Result<_>>()?;
        let rows: Vec<Vec<String>> = sessions.into_iter().map(|it| cells(it, now)).collect();
        let header = ["id", "key", "state", "storage", "created", "expires", "execs", "memory"];
        output::print(&table::render(&header, &rows))?;
    }
    if has_more {
        output::say(&format!("these are the newest {}; --limit shows more", args.limit));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads pages up to the limit. Returns the sessions, and whether there are more.
pub(super) async fn fetch(client: &Client, args: &SessionListArgs) -> Result<(Vec<Value>, bool)> {
    let wanted = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let filter = |name: &str, value: &Option<String>| {
        value.as_ref().map(|value| format!("&{name}={}", escape(value))).unwrap_or_default()
    };
    let filters = filter("state", &args.state) + &filter("key", &args.key);
    let mut found = Vec::new();
    let mut before = None;
    loop {
        let limit = (wanted - found.len()).min(MAX_PAGE);
        let path = format!("/v1/sessions?limit={limit}{filters}{}", filter("before", &before));
        let mut page = client.get(&path).await?;
        let sessions = page["sessions"].as_array_mut();
        found.append(sessions.context("the server's list of sessions cannot be read")?);
        before = page["next"].as_str().map(str::to_owned);
        if before.is_none() || found.len() >= wanted {
            return Ok((found, before.is_some()));
        }
    }
}

fn is_filtered(args: &SessionListArgs) -> bool {
    args.state.is_some() || args.key.is_some()
}

fn cells(session: Session, now: i64) -> Vec<String> {
    let dash = || "-".to_owned();
    let created = clock::parse_rfc3339(&session.created)
        .map_or_else(dash, |created| format!("{} ago", spoken(now - created)));
    let expires = clock::parse_rfc3339(&session.expires)
        .filter(|_| !session.has_ended())
        .map_or_else(dash, |expires| format!("in {}", spoken(expires - now)));
    let memory = session.memory_used.map_or_else(dash, |bytes| HumanBytes(bytes).to_string());
    vec![
        session.id,
        session.key.unwrap_or_else(dash),
        session.state,
        session.storage,
        created,
        expires,
        session.execs.to_string(),
        memory,
    ]
}
