//! `belljar volume show`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use indicatif::HumanBytes;

use super::{Volume, explain, path_of};
use crate::client::Client;
use crate::commands::output::{self, print_json};

#[derive(Debug, Args)]
pub(crate) struct VolumeShowArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) async fn show(client: &Client, args: &VolumeShowArgs) -> Result<ExitCode> {
    let found = client.get(&path_of(&args.name)).await.map_err(explain)?;
    if args.json {
        print_json(&found)?;
    } else {
        output::print(&describe(&Volume::from(&found)?))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(volume: &Volume) -> String {
    let bytes = |bytes: u64| format!("{} ({bytes} bytes)", HumanBytes(bytes));
    let more = if volume.partial { "more than " } else { "" };
    let used_by = match &volume.used_by[..] {
        [] => "no session".to_owned(),
        users => {
            let users = users.iter().map(|user| format!("{} ({})", user.id, user.mode));
            users.collect::<Vec<_>>().join(", ")
        }
    };
    let lines = [
        ("name", Some(volume.name.clone())),
        ("size", Some(format!("{}, {}", bytes(volume.size), volume.quota()))),
        ("used", volume.used.map(|used| format!("{more}{}", bytes(used)))),
        ("files", volume.files.map(|files| format!("{more}{files}"))),
        ("storage", Some(volume.storage.clone())),
        ("used by", Some(used_by)),
        ("created", Some(volume.created.clone())),
    ];
    let lines = lines.into_iter();
    lines.filter_map(|(name, value)| Some(format!("{name:<10}  {}\n", value?))).collect()
}
