//! `belljar status`: the server, its sessions, their use, and the directories.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use belljar_engine::clock;
use clap::Args;
use indicatif::HumanBytes;
use serde_json::{Value, json};

use super::colours::{Colour, Paint};
use super::output::{self, plain, print_json};
use super::{as_client, session};
use crate::client::{Client, ClientError};
use crate::flags::ServerFlags;
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "\
The exit status is 0 if a server answers, 1 if none does.")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn status(args: &StatusArgs, settings: &Settings) -> Result<ExitCode> {
    as_client(settings, async |client| {
        let status = match client.get("/healthz").await {
            Ok(health) => of_server(client, &health).await?,
            Err(error @ ClientError::NotListening { .. }) => json!({
                "running": false,
                "url": client.url(),
                "why": error.to_string(),
                // The directories that a server with these settings would use.
                "directories": { "state": settings.state_dir, "home": settings.home },
            }),
            Err(error) => return Err(error.into()),
        };
        let is_running = status["running"] == true;
        if args.json {
            print_json(&status)?;
        } else {
            output::print(&describe(&status, Paint::of_stdout()))?;
        }
        Ok(if is_running { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

async fn of_server(client: &Client, health: &Value) -> Result<Value> {
    let sessions = session::live(client).await?;
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    for session in &sessions {
        *states.entry(session["state"].as_str().unwrap_or("unknown")).or_default() += 1;
    }
    let memory: u64 = sessions.iter().filter_map(|it| it["memory_used"].as_u64()).sum();
    let enforced = health["enforced"].as_object();
    let void: Option<Vec<&String>> = enforced.map(|limits| {
        limits.iter().filter(|(_, holds)| **holds == false).map(|(limit, _)| limit).collect()
    });
    Ok(json!({
        "running": true,
        "url": client.url(),
        "health": health["status"],
        "version": health["version"],
        "backend": health["backend"],
        "zygote": health["zygote"],
        "pid": health["pid"],
        "started": health["started"],
        // The sessions of all tenants, if the server shows them.
        "sessions_of_all": health["sessions"],
        "sessions": states,
        "memory": { "server": health["memory_used"], "sessions": memory },
        "enforced": health["enforced"],
        "not_enforced": void,
        "directories": health["directories"],
    }))
}

fn describe(status: &Value, paint: Paint) -> String {
    let text = |value: &Value| plain(value.as_str().unwrap_or("?"));
    let mut lines: Vec<(&str, String)> = Vec::new();
    if status["running"] == true {
        let mut server =
            format!("belljar {} at {}", text(&status["version"]), text(&status["url"]));
        if let Some(pid) = status["pid"].as_u64() {
            server += &format!(", process {pid}");
        }
        let started = status["started"].as_str().and_then(clock::parse_rfc3339);
        if let Some(started) = started {
            server += &format!(", up {}", session::spoken(clock::now_ms() - started));
        }
        lines.push(("server", paint.paint(Colour::Good, &server)));
        if status["health"] != "ok" {
            lines.push(("trouble", paint.paint(Colour::Bad, &text(&status["health"]))));
        }
        lines.push((
            "backend",
            format!("{}, zygote {}", text(&status["backend"]), text(&status["zygote"])),
        ));
        lines.push(("sessions", sessions(status)));
        lines.push(("memory", memory(&status["memory"])));
        lines.push(limits(status, paint));
    } else {
        lines.push(("server", paint.paint(Colour::Bad, "none")));
        lines.push(("", text(&status["why"])));
    }
    for (name, directory) in status["directories"].as_object().into_iter().flatten() {
        lines.push((name, text(directory)));
    }
    lines.iter().map(|(name, value)| format!("{name:<10}  {value}\n")).collect()
}

fn sessions(status: &Value) -> String {
    let states = status["sessions"].as_object().into_iter().flatten();
    let states: Vec<(&String, u64)> =
        states.map(|(state, count)| (state, count.as_u64().unwrap_or(0))).collect();
    let total: u64 = states.iter().map(|(_, count)| count).sum();
    let each: Vec<String> =
        states.iter().map(|(state, n)| format!("{n} {}", plain(state))).collect();
    let mut line = match total {
        0 => "none".to_owned(),
        total => format!("{total}: {}", each.join(", ")),
    };
    match status["sessions_of_all"].as_u64() {
        Some(all) if all > total => line += &format!("; {all} of all tenants"),
        _ => {}
    }
    line
}

fn memory(memory: &Value) -> String {
    let sessions = HumanBytes(memory["sessions"].as_u64().unwrap_or(0));
    match memory["server"].as_u64() {
        Some(server) => format!("sessions {sessions}, server {}", HumanBytes(server)),
        None => format!("sessions {sessions}"),
    }
}

fn limits(status: &Value, paint: Paint) -> (&'static str, String) {
    let names = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(plain).collect()
    };
    match &status["not_enforced"] {
        Value::Null => ("limits", "are being tested".to_owned()),
        void if names(void).is_empty() => ("limits", "all are enforced".to_owned()),
        void => {
            let void = format!("NOT enforced: {}; see `belljar doctor`", names(void).join(", "));
            ("limits", paint.paint(Colour::Bad, &void))
        }
    }
}
