//! `belljar artifacts list`

use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::clock;
use clap::Args;
use indicatif::HumanBytes;
use serde_json::{Value, json};

use super::Artifact;
use crate::client::{Client, escape};
use crate::commands::output::{self, plain, print_json};
use crate::commands::session::{find_known_id, no_session, spoken};
use crate::table;

#[derive(Debug, Args)]
pub(crate) struct ArtifactsListArgs {
    /// Only artifacts of this session (its id or key) or run (its id)
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Only artifacts of this execution
    #[arg(long, value_name = "EXEC")]
    pub(crate) exec: Option<String>,
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

pub(super) async fn list(client: &Client, args: &ArtifactsListArgs) -> Result<ExitCode> {
    let known = match &args.session {
        Some(name) => find_known_id(client, name).await?,
        None => None,
    };
    // Artifacts are kept when their session is removed, and a run has no session.
    let session = known.as_ref().or(args.session.as_ref());
    let (artifacts, more) = gather(client, session, args).await?;
    if let (Some(name), None, []) = (&args.session, &known, &artifacts[..]) {
        return Err(no_session(name));
    }
    if args.json {
        print_json(&json!({ "artifacts": artifacts, "more": more }))?;
    } else if artifacts.is_empty() {
        let filtered = args.session.is_some() || args.exec.is_some();
        eprintln!("There are no artifacts{}.", if filtered { " like that" } else { "" });
    } else {
        let now = clock::now_ms();
        let artifacts: Vec<Artifact> =
            artifacts.iter().map(Artifact::from).collect::<Result<_>>()?;
        let rows: Vec<Vec<String>> = artifacts.into_iter().map(|it| cells(it, now)).collect();
        let header = ["id", "name", "size", "type", "session", "created"];
        output::print(&table::render(&header, &rows))?;
    }
    if more {
        output::say(&format!("these are the newest {}; --limit shows more", args.limit));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads pages up to the limit. Returns the artifacts, and whether there are more.
async fn gather(
    client: &Client,
    session: Option<&String>,
    args: &ArtifactsListArgs,
) -> Result<(Vec<Value>, bool)> {
    let wanted = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let filter = |name: &str, value: Option<&str>| {
        value.map(|value| format!("&{name}={}", escape(value))).unwrap_or_default()
    };
    let filters =
        filter("session", session.map(String::as_str)) + &filter("exec", args.exec.as_deref());
    let mut found: Vec<Value> = Vec::new();
    loop {
        let limit = (wanted - found.len()).min(MAX_PAGE);
        let before = filter("before", found.last().and_then(|last| last["id"].as_str()));
        let mut page = client.get(&format!("/v1/artifacts?limit={limit}{filters}{before}")).await?;
        let artifacts = page["artifacts"].as_array_mut();
        let artifacts = artifacts.context("the server's list of artifacts cannot be read")?;
        let nothing_new = artifacts.is_empty();
        found.append(artifacts);
        let more = page["more"].as_bool().unwrap_or(false);
        if !more || nothing_new || found.len() >= wanted {
            return Ok((found, more));
        }
    }
}

fn cells(artifact: Artifact, now: i64) -> Vec<String> {
    let created = clock::parse_rfc3339(&artifact.created)
        .map_or_else(|| "-".to_owned(), |created| format!("{} ago", spoken(now - created)));
    vec![
        artifact.id,
        plain(&artifact.name),
        HumanBytes(artifact.size).to_string(),
        artifact.mime,
        artifact.session_id,
        created,
    ]
}
