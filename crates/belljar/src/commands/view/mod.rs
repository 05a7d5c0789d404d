//! `belljar view`: shows a session from its directory on disk, also while it runs.
//!
//! Needs only the directory: no server and no sandbox. The server wrote the files (`record.rs` of the engine). Text
//! from the sandbox is escaped.

mod highlight;
mod page;
mod record;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::colours::Paint;
use super::output::{print, print_json};
use page::Page;
use record::{Log, Record};

#[derive(Debug, Args)]
#[command(after_help = "\
Each session with storage BIND has a directory below SESSIONS_ROOT; `belljar session show` shows its
path. Colours are used only on a terminal, and not if NO_COLOR is set.

Examples:
  belljar view /var/lib/belljar/sessions/ses_5a1f...
  belljar view . --follow --no-state")]
pub(crate) struct ViewArgs {
    /// The directory of a session
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// How many of the last executions to show; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,
    /// Do not show variables
    #[arg(long)]
    pub(crate) no_state: bool,
    /// Do not show artifacts
    #[arg(long)]
    pub(crate) no_artifacts: bool,
    /// Show executions as they end, until the session ends
    #[arg(long)]
    pub(crate) follow: bool,
    /// Print JSON; with --follow, one execution per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// How often the directory is read again.
const FOLLOW_PACE: Duration = Duration::from_millis(200);

pub(crate) fn view(args: &ViewArgs) -> Result<ExitCode> {
    let record = Record::open(&args.directory)?;
    let mut log = record.log();
    let (execs, earlier) = log.last(args.limit)?;
    if args.json && !args.follow {
        print_json(&json!({
            "directory": record.directory(),
            "metadata": record.metadata()?,
            "execs": execs,
            "earlier_execs": earlier,
            "state": if args.no_state { None } else { record.state()? },
            "artifacts": if args.no_artifacts { None } else { Some(record.artifacts()?) },
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let page = Page::new(Paint::of_stdout());
    if !args.json {
        print(&page.metadata(record.directory(), record.metadata()?.as_ref()))?;
        print(&page.history(&execs, earlier))?;
    }
    if args.follow {
        if args.json {
            execs.iter().try_for_each(|exec| print(&format!("{exec}\n")))?;
        }
        follow(&record, &mut log, &page, args.json)?;
    }
    if !args.json && !args.no_state {
        print(&page.state(record.state()?.as_ref()))?;
    }
    if !args.json && !args.no_artifacts {
        print(&page.artifacts(&record.artifacts()?))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows new executions until the session has ended.
fn follow(record: &Record, log: &mut Log, page: &Page, json: bool) -> Result<()> {
    loop {
        // Checked before reading, so that everything written before the end is read.
        let ended = record.has_ended();
        for exec in log.more()? {
            print(&if json { format!("{exec}\n") } else { page.exec(&exec) })?;
        }
        if ended {
            return Ok(());
        }
        thread::sleep(FOLLOW_PACE);
    }
}
