//! `belljar artifacts`: what sessions have left, as a client of the server; and `verify`, which looks
//! at the server's files itself. One file per verb.

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
use crate::cli::flags::ServerFlags;
use crate::client::{Client, ClientError, escape};
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "\
Files that code leaves in /session/artifacts become artifacts when it ends. BELLJAR_API_KEY is shown
to servers that want a key.

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
    /// Artifacts, the newest first
    List(ArtifactsListArgs),
    /// Everything about an artifact
    Show(ArtifactsShowArgs),
    /// Download an artifact, and print where it is
    Get(ArtifactsGetArgs),
    /// Print a fresh link that anybody can use, for a while
    Url(ArtifactsUrlArgs),
    /// Forget artifacts; content goes when no other artifact has the same
    Remove(ArtifactsRemoveArgs),
    /// Read the content of all artifacts on this machine and compare it with its hash
    Verify(ArtifactsVerifyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ArtifactsRemoveArgs {
    /// Ids of artifacts
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// Print the ids of those that were removed as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn artifacts(command: ArtifactsCommand, settings: &Settings) -> Result<ExitCode> {
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

/// An artifact as the server tells of it. Its name and path are what code in a sandbox chose.
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
    /// On the server's machine; older servers do not tell.
    host_path: Option<String>,
}

impl Artifact {
    fn from(value: &Value) -> Result<Artifact> {
        Artifact::deserialize(value).context("the server describes an artifact in an unknown way")
    }
}

/// Where an artifact is asked for.
fn path_of(id: &str) -> String {
    format!("/v1/artifacts/{}", escape(id))
}

async fn find(client: &Client, id: &str) -> Result<Value> {
    client.get(&path_of(id)).await.map_err(explain)
}

/// What the server says, and how to find those that are there.
fn explain(error: ClientError) -> anyhow::Error {
    let unknown = error.is("artifact_not_found");
    let error = anyhow::Error::from(error);
    if unknown { anyhow::anyhow!("{error}; `belljar artifacts list` shows all") } else { error }
}

/// A link to an artifact: complete where the server has an address, else the file itself, as a server
/// behind a socket is on this machine.
fn shown_link(client: &Client, artifact: &Artifact) -> String {
    let path = || artifact.host_path.as_deref().map(plain);
    let get = || format!("`belljar artifacts get {}`", artifact.id);
    client.complete(&artifact.url).or_else(path).unwrap_or_else(get)
}
