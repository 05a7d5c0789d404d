//! `belljar artifacts`: a client of a server's artifacts; `verify` reads the server's files itself. One file per
//! subcommand.

mod download;
mod get;
mod list;
mod show;
mod url;
mod verify;

use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::artifacts::Digest;
use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::Value;

use self::get::ArtifactsGetArgs;
use self::list::ArtifactsListArgs;
use self::show::ArtifactsShowArgs;
use self::url::ArtifactsUrlArgs;
use self::verify::ArtifactsVerifyArgs;
use super::as_client;
use super::output::plain;
use super::remove::remove_each;
use crate::client::{Client, ClientError, escape};
use crate::flags::ServerFlags;
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "\
Files in /session/artifacts become artifacts when the execution that wrote them ends. For servers that
need an API key, set BELLJAR_API_KEY.

Examples:
  belljar artifacts list --session demo
  belljar artifacts get art_7d0c... -o plots/
  belljar artifacts get art_7d0c... -o - | head
  belljar artifacts verify")]
pub(crate) struct ArtifactsArgs {
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    #[command(subcommand)]
    pub(crate) command: ArtifactsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ArtifactsCommand {
    /// List artifacts, the newest first
    List(ArtifactsListArgs),
    /// Show everything about an artifact
    Show(ArtifactsShowArgs),
    /// Download an artifact and print the path of the file
    Get(ArtifactsGetArgs),
    /// Print a new link that works without a key for a limited time
    Url(ArtifactsUrlArgs),
    /// Remove artifacts; their content is removed if no other artifact has the same
    Remove(ArtifactsRemoveArgs),
    /// Read the content of all artifacts on this machine and compare it with its hash
    Verify(ArtifactsVerifyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ArtifactsRemoveArgs {
    /// Ids of artifacts
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// Print the ids of the removed artifacts as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn artifacts(command: ArtifactsCommand, settings: &Settings) -> Result<ExitCode> {
    use ArtifactsCommand::{Get, List, Remove, Show, Url, Verify};
    match command {
        List(args) => as_client(settings, async |client| list::list(client, &args).await),
        Show(args) => as_client(settings, async |client| show::show(client, &args).await),
        Get(args) => as_client(settings, async |client| get::get(client, &args).await),
        Url(args) => as_client(settings, async |client| url::url(client, &args).await),
        Remove(args) => as_client(settings, async |client| {
            let remove = async |id: &str| {
                client.delete(&path_of(id)).await.map_err(explain)?;
                Ok(id.to_owned())
            };
            remove_each(&args.ids, args.json, remove).await
        }),
        Verify(args) => verify::verify(&args, settings),
    }
}

/// An artifact, as the server describes it. Code in a sandbox chose its name and path.
#[derive(Debug, Deserialize)]
struct Artifact {
    id: String,
    name: String,
    path: String,
    size: u64,
    mime: String,
    sha256: Digest,
    created: String,
    session_id: String,
    exec_id: String,
    url: String,
    /// The path on the server's machine; older servers do not send it.
    host_path: Option<String>,
}

impl Artifact {
    fn from(value: &Value) -> Result<Artifact> {
        Artifact::deserialize(value)
            .context("the server's description of an artifact cannot be read")
    }
}

/// The path of an artifact on the server.
fn path_of(id: &str) -> String {
    format!("/v1/artifacts/{}", escape(id))
}

async fn find(client: &Client, id: &str) -> Result<Value> {
    client.get(&path_of(id)).await.map_err(explain)
}

/// Adds to the error about an unknown artifact how to list artifacts.
fn explain(error: ClientError) -> anyhow::Error {
    let unknown = error.is("artifact_not_found");
    let error = anyhow::Error::from(error);
    if unknown { anyhow::anyhow!("{error}; `belljar artifacts list` shows all") } else { error }
}

/// A link to an artifact. For a server behind a socket, which is on this machine: the path of the file.
fn shown_link(client: &Client, artifact: &Artifact) -> String {
    let path = || artifact.host_path.as_deref().map(plain);
    let get = || format!("`belljar artifacts get {}`", artifact.id);
    client.complete(&artifact.url).or_else(path).unwrap_or_else(get)
}
