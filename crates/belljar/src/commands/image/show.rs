//! `belljar image show`

use std::process::ExitCode;

use anyhow::Result;
use belljar_engine::clock;
use clap::Args;
use indicatif::HumanBytes;

use crate::commands::output;
use crate::home;
use crate::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct ImageShowArgs {
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn show(args: &ImageShowArgs, settings: &Settings) -> Result<ExitCode> {
    let image = home::images(settings).find(&args.name.parse()?)?;
    if args.json {
        output::print(&(serde_json::to_string_pretty(&image)? + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let unpacked = &image.unpacked;
    let preload = image
        .preload
        .as_ref()
        .map_or("as set by BELLJAR_PRELOAD".into(), |modules| modules.join(" "));
    let mut lines = vec![
        ("name", image.name.to_string()),
        ("digest", image.manifest.to_string()),
        ("from", image.source.clone()),
        ("added", clock::rfc3339(i64::try_from(image.added_ms).unwrap_or(0))),
        ("platform", format!("linux/{}", image.architecture)),
        ("python", image.python.clone().unwrap_or_else(|| "none".into())),
        ("preload", preload),
        (
            "unpacked",
            format!(
                "{} in {} entries, {} left out",
                HumanBytes(unpacked.bytes),
                unpacked.entries,
                unpacked.skipped
            ),
        ),
    ];
    lines.extend(image.layer_digests().into_iter().map(|layer| ("layer", layer.to_string())));
    lines.extend(image.env.iter().map(|(key, value)| ("env", format!("{key}={value}"))));
    let lines: String =
        lines.iter().map(|(name, value)| format!("{name:<10}  {value}\n")).collect();
    output::print(&lines)?;
    Ok(ExitCode::SUCCESS)
}
