//! `belljar image list`

use std::process::ExitCode;

use anyhow::Result;
use belljar_engine::clock;
use belljar_image::Image;
use clap::Args;
use indicatif::HumanBytes;
use serde_json::json;

use crate::commands::output;
use crate::home;
use crate::settings::Settings;
use crate::table;

#[derive(Debug, Args)]
pub(crate) struct ImageListArgs {
    /// Print them as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn list(args: &ImageListArgs, settings: &Settings) -> Result<ExitCode> {
    let images = home::images(settings).list()?;
    if args.json {
        let text = serde_json::to_string_pretty(&json!({ "images": images }))?;
        output::print(&(text + "\n"))?;
    } else if images.is_empty() {
        eprintln!("There are no images; `belljar image build`, `pull` and `import` add some.");
    } else {
        let header = ["name", "digest", "added", "packed", "unpacked", "python"];
        let rows: Vec<Vec<String>> = images.iter().map(cells).collect();
        output::print(&table::render(&header, &rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn cells(image: &Image) -> Vec<String> {
    vec![
        image.name.to_string(),
        image.manifest.hex()[..12].to_owned(),
        clock::rfc3339(i64::try_from(image.added_ms).unwrap_or(0)),
        HumanBytes(image.packed_bytes()).to_string(),
        HumanBytes(image.unpacked.bytes).to_string(),
        image.python.clone().unwrap_or_else(|| "-".into()),
    ]
}
