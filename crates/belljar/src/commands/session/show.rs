//! `belljar session show`

use std::process::ExitCode;

use anyhow::Result;
use belljar_engine::clock;
use clap::Args;
use indicatif::HumanBytes;

use super::{Session, find, print_json, spoken};
use crate::client::Client;
use crate::commands::output;
use crate::flags::SessionArg;

#[derive(Debug, Args)]
pub(crate) struct SessionShowArgs {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) async fn show(client: &Client, args: &SessionShowArgs) -> Result<ExitCode> {
    let found = find(client, &args.session).await?;
    if args.json {
        print_json(&found)?;
    } else {
        output::print(&describe(Session::from(&found)?, clock::now_ms()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(session: Session, now: i64) -> String {
    let left = clock::parse_rfc3339(&session.expires).map(|expires| spoken(expires - now));
    let expires = match left.filter(|_| !session.has_ended()) {
        Some(left) => format!("{}, in {left}", session.expires),
        None => session.expires.clone(),
    };
    let limits = &session.limits;
    let limits = format!(
        "memory {}, cpus {}, pids {}, tmpfs {}",
        HumanBytes(limits.memory),
        limits.cpus,
        limits.pids,
        HumanBytes(limits.tmpfs)
    );
    let ended = session.ended.map(|when| match &session.ended_because {
        Some(because) => format!("{when}: {because}"),
        None => when,
    });
    let volumes: Vec<String> =
        session.volumes.into_iter().map(|(name, mode)| format!("{name} ({mode})")).collect();
    let lines = [
        ("id", Some(session.id)),
        ("key", session.key),
        ("state", Some(session.state)),
        ("image", Some(session.image)),
        ("storage", Some(session.storage)),
        ("directory", session.directory),
        ("datasets", Some(session.datasets)),
        ("network", Some(shown_network(&session.network))),
        ("volumes", (!volumes.is_empty()).then(|| volumes.join(", "))),
        ("workspace", session.workspace),
        ("limits", Some(limits)),
        ("memory", session.memory_used.map(|bytes| format!("{} used", HumanBytes(bytes)))),
        ("created", Some(session.created)),
        ("last used", Some(session.last_used)),
        ("ttl", Some(format!("{} s", session.ttl))),
        ("idle limit", session.idle_timeout.map(|seconds| format!("{seconds} s"))),
        ("expires", Some(expires)),
        ("ended", ended),
        ("kept until", session.kept_until),
        (
            "execs",
            Some(format!(
                "{}, {} running, {} waiting",
                session.execs, session.running, session.queued
            )),
        ),
    ];
    let warnings = session.warnings.into_iter().map(|warning| ("warning", Some(warning)));
    lines
        .into_iter()
        .chain(warnings)
        .filter_map(|(name, value)| Some(format!("{name:<10}  {}\n", value?)))
        .collect()
}

/// The policy as one word or as a list of hosts. Injected headers are shown with their host.
pub(super) fn shown_network(policy: &serde_json::Value) -> String {
    if let Some(word) = policy.as_str() {
        return word.to_owned();
    }
    let texts = |list: &serde_json::Value, text: &dyn Fn(&serde_json::Value) -> Option<String>| {
        let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(text).collect::<Vec<_>>().join(", ")
    };
    let allowed = texts(&policy["allow"], &|host| host.as_str().map(str::to_owned));
    let injected = texts(&policy["inject"], &|header| {
        Some(format!("{} for {}", header["header"].as_str()?, header["host"].as_str()?))
    });
    if injected.is_empty() { allowed } else { format!("{allowed}; adds {injected}") }
}
