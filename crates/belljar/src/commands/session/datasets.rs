//! `belljar session datasets`

use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::clock;
use clap::Args;
use indicatif::HumanBytes;
use serde::Deserialize;
use serde_json::Value;

use super::{find_id, print_json, spoken};
use crate::client::{Client, escape};
use crate::commands::output::{self, plain};
use crate::flags::SessionArg;
use crate::table;

#[derive(Debug, Args)]
pub(crate) struct SessionDatasetsArgs {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Print them as JSON, with the names of their columns
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) async fn datasets(client: &Client, args: &SessionDatasetsArgs) -> Result<ExitCode> {
    let id = find_id(client, &args.session).await?;
    let found = client.get(&path_in(&id)).await?;
    if args.json {
        return print_json(&found).map(|()| ExitCode::SUCCESS);
    }
    let list = List::deserialize(&found).context("the server's list of datasets cannot be read")?;
    if !list.datasets.is_empty() {
        let now = clock::now_ms();
        let rows: Vec<Vec<String>> = list.datasets.iter().map(|it| it.cells(now)).collect();
        let header = ["name", "status", "size", "format", "rows", "columns", "modified", "path"];
        output::print(&table::render(&header, &rows))?;
    }
    for dataset in &list.datasets {
        if let Some(reason) = &dataset.reason {
            output::say(&format!("{}: {}", plain(&dataset.name), plain(reason)));
        }
    }
    if let Some(message) = &list.message {
        output::say(message);
    }
    if list.more > 0 {
        output::say(&format!("{} more are not listed", list.more));
    }
    Ok(ExitCode::SUCCESS)
}

/// The path of a session's datasets on the server.
pub(super) fn path_in(session: &str) -> String {
    format!("/v1/sessions/{}/datasets", escape(session))
}

#[derive(Debug, Deserialize)]
struct List {
    datasets: Vec<Dataset>,
    #[serde(default)]
    more: u64,
    message: Option<String>,
}

/// A dataset, as the server describes it.
#[derive(Debug, Deserialize)]
pub(super) struct Dataset {
    name: String,
    path: String,
    status: String,
    reason: Option<String>,
    size: Option<u64>,
    modified: Option<String>,
    format: Option<String>,
    columns: Option<Vec<String>>,
    rows: Option<u64>,
    pub(super) sha256: Option<String>,
    cached: Option<bool>,
}

impl Dataset {
    pub(super) fn from(value: &Value) -> Result<Dataset> {
        Dataset::deserialize(value).context("the server's description of a dataset cannot be read")
    }

    /// Whether the server already had the dataset, so that nothing was transferred.
    pub(super) fn was_there(&self) -> bool {
        self.cached == Some(true)
    }

    /// Its path in the session, and its size and shape.
    pub(super) fn describe(&self) -> String {
        let size = self.size.map(|size| HumanBytes(size).to_string());
        let rows = self.rows.map(|rows| format!("{rows} rows"));
        let columns = self.columns.as_ref().map(|columns| format!("{} columns", columns.len()));
        let known = [size, self.format.clone(), rows, columns];
        let known: Vec<String> = known.into_iter().flatten().collect();
        format!("{}: {}", plain(&self.path), known.join(", "))
    }

    fn cells(&self, now: i64) -> Vec<String> {
        let dash = || "-".to_owned();
        let number = |number: Option<u64>| number.map_or_else(dash, |it| it.to_string());
        let modified = self.modified.as_deref().and_then(clock::parse_rfc3339);
        vec![
            plain(&self.name),
            self.status.clone(),
            self.size.map_or_else(dash, |size| HumanBytes(size).to_string()),
            self.format.clone().unwrap_or_else(dash),
            number(self.rows),
            number(self.columns.as_ref().map(|columns| columns.len() as u64)),
            modified.map_or_else(dash, |ms| format!("{} ago", spoken(now - ms))),
            plain(&self.path),
        ]
    }
}
