//! `belljar artifacts show`

use std::process::ExitCode;

use anyhow::Result;
use belljar_engine::clock;
use clap::Args;
use indicatif::HumanBytes;

use super::{Artifact, find, shown_link};
use crate::client::Client;
use crate::commands::output::{self, plain, print_json};
use crate::commands::session::spoken;

#[derive(Debug, Args)]
pub(crate) struct ArtifactsShowArgs {
    /// The id of the artifact
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) async fn show(client: &Client, args: &ArtifactsShowArgs) -> Result<ExitCode> {
    let found = find(client, &args.id).await?;
    if args.json {
        print_json(&found)?;
    } else {
        output::print(&describe(client, Artifact::from(&found)?))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(client: &Client, artifact: Artifact) -> String {
    let link = shown_link(client, &artifact);
    let created = match clock::parse_rfc3339(&artifact.created) {
        Some(ms) => format!("{}, {} ago", artifact.created, spoken(clock::now_ms() - ms)),
        None => artifact.created,
    };
    let lines = [
        ("name", plain(&artifact.name)),
        ("path", plain(&artifact.path)),
        ("size", format!("{} ({} bytes)", HumanBytes(artifact.size), artifact.size)),
        ("type", artifact.mime),
        ("sha256", artifact.sha256.to_string()),
        ("created", created),
        ("session", artifact.session_id),
        ("exec", artifact.exec_id),
        ("link", link),
    ];
    let lines = lines.into_iter().map(|(name, value)| format!("{name:<10}  {value}\n"));
    format!("{:<10}  {}\n", "id", artifact.id) + &lines.collect::<String>()
}
