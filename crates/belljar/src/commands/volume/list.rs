//! `belljar volume list`

use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::clock;
use clap::Args;
use indicatif::HumanBytes;

use super::Volume;
use crate::client::Client;
use crate::commands::output::{self, print_json};
use crate::commands::session::spoken;
use crate::table;

#[derive(Debug, Args)]
pub(crate) struct VolumeListArgs {
    /// Print them as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) async fn list(client: &Client, args: &VolumeListArgs) -> Result<ExitCode> {
    let found = client.get("/v1/volumes").await?;
    if args.json {
        print_json(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    let volumes = found["volumes"].as_array();
    let volumes = volumes.context("the server's list of volumes cannot be read")?;
    let volumes: Vec<Volume> = volumes.iter().map(Volume::from).collect::<Result<_>>()?;
    if volumes.is_empty() {
        eprintln!("There are no volumes.");
        return Ok(ExitCode::SUCCESS);
    }
    let now = clock::now_ms();
    let rows: Vec<Vec<String>> = volumes.iter().map(|volume| cells(volume, now)).collect();
    output::print(&table::render(&["name", "size", "quota", "used by", "created"], &rows))?;
    Ok(ExitCode::SUCCESS)
}

fn cells(volume: &Volume, now: i64) -> Vec<String> {
    let created = clock::parse_rfc3339(&volume.created)
        .map_or_else(|| "-".to_owned(), |created| format!("{} ago", spoken(now - created)));
    vec![
        volume.name.clone(),
        HumanBytes(volume.size).to_string(),
        volume.quota().to_owned(),
        volume.used_by.len().to_string(),
        created,
    ]
}
