//! `belljar session export`

use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::artifacts::{Artifact, RefusedArtifact};
use clap::Args;
use indicatif::HumanBytes;
use serde::Deserialize;
use serde_json::json;

use super::datasets::path_in;
use super::{find_id, print_json};
use crate::client::Client;
use crate::commands::EXIT_FAILED;
use crate::commands::output::{self, plain};
use crate::commands::progress::while_waiting;
use crate::flags::SessionArg;

#[derive(Debug, Args)]
#[command(after_help = "\
No file is overwritten: the names of exports contain the time.")]
pub(crate) struct SessionExportArgs {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Names below /session/data [default: all files there]
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Print the server's response as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Deserialize)]
struct Exports {
    exports: Vec<Exported>,
    refused: Vec<RefusedArtifact>,
}

#[derive(Debug, Deserialize)]
struct Exported {
    dataset: String,
    #[serde(flatten)]
    artifact: Artifact,
}

pub(super) async fn export(client: &Client, args: &SessionExportArgs) -> Result<ExitCode> {
    let id = find_id(client, &args.session).await?;
    let ask = match &args.names[..] {
        [] => json!({}),
        names => json!({ "datasets": names }),
    };
    let path = format!("{}/export", path_in(&id));
    let answer = while_waiting("the server copies them", client.post_work(&path, &ask)).await?;
    let exports =
        Exports::deserialize(&answer).context("the server's list of exports cannot be read")?;
    if args.json {
        print_json(&answer)?;
    } else {
        for exported in &exports.exports {
            output::print(&describe(client, exported))?;
        }
        if exports.exports.is_empty() && exports.refused.is_empty() {
            output::say("there is nothing in /session/data");
        }
    }
    output::report_refused("exported", &exports.refused);
    let well = exports.refused.is_empty();
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

/// The path on the server's machine, and how to get the file on another machine.
fn describe(client: &Client, exported: &Exported) -> String {
    let artifact = &exported.artifact;
    let link = artifact.url.as_deref().and_then(|url| client.complete(url));
    let how = link.or_else(|| Some(format!("`belljar artifacts get {}`", artifact.id.as_ref()?)));
    let how = how.map(|how| format!("  {how}\n")).unwrap_or_default();
    let (name, size) = (plain(&exported.dataset), HumanBytes(artifact.size));
    format!("{name} ({size}) -> {}\n{how}", plain(&artifact.host_path.display().to_string()))
}
