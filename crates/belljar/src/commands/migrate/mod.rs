//! `belljar migrate`: moves the records of this machine's server from SQLite files to Postgres, and their content to S3.

mod content;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use belljar_engine::store::{self, DatabaseUrl, MigratedTable, MigrationSource, StateLock};
use clap::Args;

use super::output::{self, print};
use super::state_db;
use crate::settings::Settings;
use crate::{home, records, table};

/// How often the progress is shown.
const PACE: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = "\
Copies sessions, executions, datasets, volumes, keys, usage and the list of artifacts, and compares
counts and hashes of each table. With BELLJAR_BLOBS_URL it also copies the content of artifacts and
the snapshots of sleeping sessions to S3, and compares their hashes there. Then any node can wake
these sessions. It can be interrupted and started again at any point. Stop the server first. Then
start it with BELLJAR_DATABASE_URL. The SQLite files and the directories are kept.")]
pub(crate) struct MigrateArgs {
    /// The database, which must be empty; without it, BELLJAR_DATABASE_URL is used
    #[arg(long, value_name = "POSTGRES_URL")]
    pub(crate) to: Option<String>,
}

pub(crate) fn migrate(args: &MigrateArgs, settings: &Settings) -> Result<ExitCode> {
    let url = match &args.to {
        Some(text) => DatabaseUrl::parse(text).context("--to is not valid")?,
        None => {
            let missing = "name the database with --to or BELLJAR_DATABASE_URL";
            settings.database.clone().context(missing)?
        }
    };
    let _lock = StateLock::take(&settings.state_dir)?;
    let source = MigrationSource {
        store: home::database(settings),
        catalog: settings.artifacts.database.clone(),
    };
    let mut report = Report { done: Vec::new(), said: Instant::now() };
    let owner = state_db::block_on(async {
        let owner = store::migrate(&source, &url, |table| report.add(table)).await?;
        content::copy(settings, &url, &owner).await?;
        Ok(owner)
    })?;
    // Sandboxes and directories of this machine are found by the name of their server.
    records::keep_node_id(&settings.state_dir, &owner)?;
    print(&(table::render(&["table", "rows", "sha256"], &report.done) + "\n"))?;
    print(&format!("Moved to {url}. Start the server with BELLJAR_DATABASE_URL.\n"))?;
    Ok(ExitCode::SUCCESS)
}

struct Report {
    /// The tables that are complete.
    done: Vec<Vec<String>>,
    said: Instant,
}

impl Report {
    fn add(&mut self, table: &MigratedTable) {
        let MigratedTable { name, rows, total, sha256 } = table;
        if let Some(sha256) = sha256 {
            self.done.push(vec![(*name).to_owned(), rows.to_string(), sha256.to_string()]);
        } else if self.said.elapsed() >= PACE {
            output::say(&format!("{name}: {rows} of {total} rows"));
            self.said = Instant::now();
        }
    }
}
