//! `belljar session`: a client of a server's sessions. One file per subcommand.

mod args;
mod cp;
mod create;
mod datasets;
mod exec;
mod export;
pub(super) mod follow;
mod fork;
mod hibernate;
mod list;
mod network;
mod remove;
mod restore;
mod show;
mod stage;
mod stop;
mod upload;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use serde_json::Value;

pub(crate) use args::{SessionArgs, SessionCommand};
use list::SessionListArgs;

use super::as_client;
use super::output::print_json;
use crate::client::{Client, escape};
use crate::settings::Settings;

pub(crate) fn session(command: SessionCommand, settings: &Settings) -> Result<ExitCode> {
    as_client(settings, async |client| match command {
        SessionCommand::Create(args) => create::create(client, args).await,
        SessionCommand::List(args) => list::list(client, &args).await,
        SessionCommand::Show(args) => show::show(client, &args).await,
        SessionCommand::Exec(args) => exec::exec(client, args).await,
        SessionCommand::Cp(args) => cp::cp(client, &args).await,
        SessionCommand::Stop(args) => stop::stop(client, &args).await,
        SessionCommand::Remove(args) => remove::remove(client, &args).await,
        SessionCommand::Hibernate(args) => hibernate::hibernate(client, &args).await,
        SessionCommand::Fork(args) => fork::fork(client, &args).await,
        SessionCommand::Restore(args) => restore::restore(client, &args).await,
        SessionCommand::Network(args) => network::network(client, &args).await,
        SessionCommand::Datasets(args) => datasets::datasets(client, &args).await,
        SessionCommand::Upload(args) => upload::upload(client, &args).await,
        SessionCommand::Stage(args) => stage::stage(client, &args).await,
        SessionCommand::Export(args) => export::export(client, &args).await,
    })
}

/// A session, as the server describes it; `--json` shows all fields.
#[derive(Debug, Deserialize)]
struct Session {
    id: String,
    key: Option<String>,
    state: String,
    image: String,
    storage: String,
    datasets: String,
    limits: Limits,
    network: serde_json::Value,
    #[serde(default)]
    volumes: BTreeMap<String, String>,
    workspace: Option<String>,
    ttl: u64,
    idle_timeout: Option<u64>,
    created: String,
    last_used: String,
    expires: String,
    ended: Option<String>,
    ended_because: Option<String>,
    running: u64,
    queued: u64,
    execs: u64,
    memory_used: Option<u64>,
    directory: Option<String>,
    kept_until: Option<String>,
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Limits {
    memory: u64,
    cpus: f64,
    pids: u64,
    tmpfs: u64,
}

impl Session {
    fn from(value: &Value) -> Result<Session> {
        Session::deserialize(value).context("the server's description of a session cannot be read")
    }

    fn has_ended(&self) -> bool {
        matches!(self.state.as_str(), "stopped" | "failed")
    }
}

/// The session with this id; else the newest live session with this key; else the newest ended one.
async fn find(client: &Client, name: &str) -> Result<Value> {
    find_any(client, name).await?.ok_or_else(|| no_session(name))
}

async fn find_any(client: &Client, name: &str) -> Result<Option<Value>> {
    match client.get(&format!("/v1/sessions/{}", escape(name))).await {
        Err(error) if error.is("session_not_found") => {}
        answer => return Ok(Some(answer?)),
    }
    let mut list = client.get(&format!("/v1/sessions?key={}", escape(name))).await?;
    let Some(with_key) = list["sessions"].as_array_mut().filter(|list| !list.is_empty()) else {
        return Ok(None);
    };
    let lives = |value: &Value| Session::from(value).is_ok_and(|session| !session.has_ended());
    let chosen = with_key.iter().position(lives).unwrap_or(0);
    Ok(Some(with_key.swap_remove(chosen)))
}

/// States of a session that has not ended.
const LIVE_STATES: [&str; 7] =
    ["creating", "ready", "busy", "hibernating", "hibernated", "waking", "stopping"];

/// All sessions of the caller that have not ended.
pub(super) async fn live(client: &Client) -> Result<Vec<Value>> {
    let mut found: BTreeMap<String, Value> = BTreeMap::new();
    for state in LIVE_STATES {
        let (state, key, limit) = (Some(state.to_owned()), None, u32::MAX);
        let (sessions, _) =
            list::fetch(client, &SessionListArgs { state, key, limit, json: false }).await?;
        for session in sessions {
            // A session whose state changed meanwhile may be listed twice.
            found.insert(Session::from(&session)?.id, session);
        }
    }
    Ok(found.into_values().collect())
}

pub(super) async fn find_id(client: &Client, name: &str) -> Result<String> {
    Ok(Session::from(&find(client, name).await?)?.id)
}

/// The same; `None` if there is no such session.
pub(super) async fn find_known_id(client: &Client, name: &str) -> Result<Option<String>> {
    let found = find_any(client, name).await?;
    found.map(|session| Ok(Session::from(&session)?.id)).transpose()
}

pub(super) fn no_session(name: &str) -> anyhow::Error {
    anyhow!("there is no session with the id or key `{name}`; `belljar session list` shows all")
}

/// A duration in its largest unit.
pub(super) fn spoken(ms: i64) -> String {
    // Rounds to the nearest second, so that an hour of which a moment has passed is not shown as 59 min.
    match (ms.max(0) + 500) / 1000 {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min", s / 60),
        s @ 7200..172_800 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_time_are_short() {
        let spans = [-5, 0, 119_400, 119_500, 3_600_000, 7_200_000, 86_400_000, 864_000_000];
        let expected = ["0 s", "0 s", "119 s", "2 min", "60 min", "2 h", "24 h", "10 days"];
        assert_eq!(spans.map(spoken), expected);
    }
}
