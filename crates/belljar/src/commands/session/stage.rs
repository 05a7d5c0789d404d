//! `belljar session stage`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::datasets::{Dataset, path_in};
use super::{find_id, print_json};
use crate::client::Client;
use crate::commands::output;
use crate::commands::progress::while_waiting;
use crate::flags::SessionArg;

#[derive(Debug, Args)]
#[command(after_help = "\
The operator of the server sets its sources in BELLJAR_DATASET_SOURCES.")]
pub(crate) struct SessionStageArgs {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// The name of the dataset in the server's sources
    #[arg(value_name = "DATASET")]
    pub(crate) dataset: String,
    /// Fetch it from the source again, even if the server has it
    #[arg(long)]
    pub(crate) refresh: bool,
    /// Print the server's response as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) async fn stage(client: &Client, args: &SessionStageArgs) -> Result<ExitCode> {
    let id = find_id(client, &args.session).await?;
    let ask = json!({ "dataset": args.dataset, "refresh": args.refresh });
    let path = path_in(&id);
    let staged = while_waiting("the server fetches it", client.post_work(&path, &ask)).await?;
    if args.json {
        return print_json(&staged).map(|()| ExitCode::SUCCESS);
    }
    let dataset = Dataset::from(&staged)?;
    output::print(&(dataset.describe() + "\n"))?;
    if dataset.was_there() {
        output::say("the server has it already; --refresh asks the source again");
    }
    Ok(ExitCode::SUCCESS)
}
