//! `belljar usage`: the usage of tenants per day, from the server's database.

use std::process::ExitCode;

use anyhow::Result;
use belljar_engine::clock;
use belljar_engine::store::UsageRow;
use clap::Args;
use indicatif::HumanBytes;
use serde::Serialize;

use super::state_db;
use crate::flags::values::parse_day;
use crate::settings::Settings;
use crate::table;

#[derive(Debug, Args)]
#[command(after_help = "\
Reads the database in BELLJAR_STATE_DIR, which a running server updates every ten seconds. Days are in
UTC.")]
pub(crate) struct UsageArgs {
    /// The first day [default: 30 days ago]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = parse_day)]
    pub(crate) since: Option<String>,
    /// Only this tenant
    #[arg(long, value_name = "TENANT")]
    pub(crate) tenant: Option<String>,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The default number of days; the same as over HTTP.
const DEFAULT_DAYS: i64 = 30;

#[derive(Debug, Serialize)]
struct UsageReport {
    since: String,
    usage: Vec<UsageRow>,
}

pub(crate) fn usage(args: UsageArgs, settings: &Settings) -> Result<ExitCode> {
    let thirty_days_ago = || clock::day(clock::now_ms() - DEFAULT_DAYS * 86_400_000);
    let since = args.since.unwrap_or_else(thirty_days_ago);
    let rows = match state_db::open_existing(settings)? {
        Some(store) => {
            state_db::block_on(async { Ok(store.usage(args.tenant, since.clone()).await?) })?
        }
        None => Vec::new(),
    };
    if args.json {
        let report = UsageReport { since, usage: rows };
        state_db::print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    } else if rows.is_empty() {
        eprintln!("Nothing was used since {since}.");
    } else {
        state_db::print(&render(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn render(rows: &[UsageRow]) -> String {
    // All rows have the same statuses.
    let statuses: Vec<&str> =
        rows.first().into_iter().flat_map(|row| row.execs.keys().copied()).collect();
    let mut header = vec!["day", "tenant", "sessions", "runs"];
    header.extend(&statuses);
    header.extend(["cpu s", "memory GiB s", "in", "out"]);
    let cells = |row: &UsageRow| {
        let mut cells = vec![row.day.clone(), row.tenant.clone()];
        cells.extend([row.sessions, row.runs].map(|number| number.to_string()));
        cells.extend(row.execs.values().map(u64::to_string));
        cells.extend([row.cpu_seconds, row.memory_gib_seconds].map(|sum| format!("{sum:.1}")));
        cells.extend([row.bytes_in, row.bytes_out].map(|bytes| HumanBytes(bytes).to_string()));
        cells
    };
    table::render(&header, &rows.iter().map(cells).collect::<Vec<_>>())
}
