//! `belljar volume`: a client of a server's volumes. One file per subcommand.

mod create;
mod list;
mod show;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::Value;

use self::create::VolumeCreateArgs;
use self::list::VolumeListArgs;
use self::show::VolumeShowArgs;
use super::as_client;
use super::remove::remove_each;
use crate::client::{ClientError, escape};
use crate::flags::ServerFlags;
use crate::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct VolumeArgs {
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    #[command(subcommand)]
    pub(crate) command: VolumeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume
    Create(VolumeCreateArgs),
    /// List volumes by name
    List(VolumeListArgs),
    /// Show how full a volume is, and which sessions use it
    Show(VolumeShowArgs),
    /// Remove unused volumes with everything in them
    Remove(VolumeRemoveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct VolumeRemoveArgs {
    /// Their names
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// Print the names of the removed volumes as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn volume(command: VolumeCommand, settings: &Settings) -> Result<ExitCode> {
    as_client(settings, async |client| match command {
        VolumeCommand::Create(args) => create::create(client, &args).await,
        VolumeCommand::List(args) => list::list(client, &args).await,
        VolumeCommand::Show(args) => show::show(client, &args).await,
        VolumeCommand::Remove(args) => {
            let remove = async |name: &str| {
                client.delete(&path_of(name)).await.map_err(explain)?;
                Ok(name.to_owned())
            };
            remove_each(&args.names, args.json, remove).await
        }
    })
}

/// A volume, as the server describes it.
#[derive(Debug, Deserialize)]
struct Volume {
    name: String,
    size: u64,
    storage: String,
    enforced: bool,
    created: String,
    used_by: Vec<User>,
    used: Option<u64>,
    files: Option<u64>,
    #[serde(default)]
    partial: bool,
}

#[derive(Debug, Deserialize)]
struct User {
    id: String,
    mode: String,
}

impl Volume {
    fn from(value: &Value) -> Result<Volume> {
        Volume::deserialize(value).context("the server's description of a volume cannot be read")
    }

    /// Whether its size is enforced, in words.
    fn quota(&self) -> &'static str {
        if self.enforced { "enforced" } else { "not enforced" }
    }
}

fn path_of(name: &str) -> String {
    format!("/v1/volumes/{}", escape(name))
}

/// Adds to the error about an unknown volume how to list volumes.
fn explain(error: ClientError) -> anyhow::Error {
    let unknown = error.is("volume_not_found");
    let error = anyhow::Error::from(error);
    if unknown { anyhow::anyhow!("{error}; `belljar volume list` shows all") } else { error }
}
