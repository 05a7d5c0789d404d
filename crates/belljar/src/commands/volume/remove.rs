//! `belljar volume remove`

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use super::{explain, path_of};
use crate::cli::VolumeRemoveArgs;
use crate::client::Client;
use crate::commands::output::print_json;
use crate::commands::{EXIT_TROUBLE, output};

/// Removes one after another; one that is used does not save the others.
pub(super) async fn remove(client: &Client, args: &VolumeRemoveArgs) -> Result<ExitCode> {
    let mut removed = Vec::new();
    let mut failed = false;
    for name in &args.names {
        match client.delete(&path_of(name)).await {
            Ok(_) => {
                if !args.json {
                    output::print(&format!("{name} removed\n"))?;
                }
                removed.push(name);
            }
            Err(error) => {
                output::say(&format!("{:#}", explain(error)));
                failed = true;
            }
        }
    }
    if args.json {
        print_json(&json!({ "removed": removed }))?;
    }
    Ok(if failed { ExitCode::from(EXIT_TROUBLE) } else { ExitCode::SUCCESS })
}
