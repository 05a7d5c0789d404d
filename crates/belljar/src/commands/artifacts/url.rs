//! `belljar artifacts url`

use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::clock;
use clap::Args;
use serde_json::json;

use super::{explain, path_of};
use crate::client::Client;
use crate::commands::output::{self, print_json};
use crate::commands::session::spoken;

#[derive(Debug, Args)]
pub(crate) struct ArtifactsUrlArgs {
    /// The id of the artifact
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// A link for HEAD requests only: they show size and type, but no content
    #[arg(long)]
    pub(crate) head: bool,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) async fn url(client: &Client, args: &ArtifactsUrlArgs) -> Result<ExitCode> {
    let method = if args.head { "HEAD" } else { "GET" };
    let (path, ask) = (format!("{}/url", path_of(&args.id)), json!({ "method": method }));
    let mut link = client.post(&path, &ask).await.map_err(explain)?;
    let url = link["url"].as_str().context("the server's link cannot be read")?;
    let (url, complete) = (url.to_owned(), client.complete(url));
    if args.json {
        if let Some(complete) = complete {
            link["url"] = complete.into();
        }
        return print_json(&link).map(|()| ExitCode::SUCCESS);
    }
    output::print(&format!("{}\n", complete.as_ref().unwrap_or(&url)))?;
    let expires = link["expires"].as_str().unwrap_or_default();
    if let Some(ms) = clock::parse_rfc3339(expires) {
        let only = if args.head { ", and for HEAD only" } else { "" };
        output::say(&format!("valid until {expires}, for {}{only}", spoken(ms - clock::now_ms())));
    }
    if complete.is_none() {
        output::say(&format!(
            "this is a path on {}: the server has no address until BELLJAR_PUBLIC_URL says one; \
             `belljar artifacts get {}` downloads it",
            client.url(),
            args.id
        ));
    }
    Ok(ExitCode::SUCCESS)
}
