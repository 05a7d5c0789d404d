//! `belljar volume create`

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use super::Volume;
use crate::cli::VolumeCreateArgs;
use crate::client::Client;
use crate::commands::output::{self, print_json};

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
