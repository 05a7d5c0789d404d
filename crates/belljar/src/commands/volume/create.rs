//! `belljar volume create`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::Volume;
use crate::client::Client;
use crate::commands::output::{self, print_json};
use crate::flags::values::parse_size;

#[derive(Debug, Args)]
#[command(after_help = "\
Sessions see it at /volumes/NAME:
  belljar volume create models --size 2G
  belljar session create --volume models:ro")]
pub(crate) struct VolumeCreateArgs {
    /// Letters, digits, `.`, `_` and `-`
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Its size: a number of bytes, or with K, M, G [default: the server's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    /// Print everything about it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) async fn create(client: &Client, args: &VolumeCreateArgs) -> Result<ExitCode> {
    let mut ask = json!({ "name": args.name });
    if let Some(size) = args.size {
        ask["size"] = size.into();
    }
    let made = client.post("/v1/volumes", &ask).await?;
    let volume = Volume::from(&made)?;
    if args.json {
        print_json(&made)?;
    } else {
        output::print(&format!("{}\n", volume.name))?;
    }
    if !volume.enforced {
        output::say("its size is not enforced; `belljar doctor` says why");
    }
    Ok(ExitCode::SUCCESS)
}
