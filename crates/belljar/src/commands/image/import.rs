//! `belljar image import`

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use belljar_image::Name;
use clap::Args;

use super::announce;
use super::progress::Watched;
use crate::commands::output;
use crate::home;
use crate::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct ImageImportArgs {
    /// An archive, a directory, or - for standard input
    #[arg(value_name = "FILE|DIR")]
    pub(crate) from: PathBuf,
    /// The name of the image [default: the name in the archive, else that of the file]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

pub(super) fn import(args: &ImageImportArgs, settings: &Settings) -> Result<ExitCode> {
    let name: Option<Name> = args.name.as_deref().map(str::parse).transpose()?;
    let store = home::images(settings);
    let writer = store.writer(output::say)?;
    let progress = Watched::new();
    let image = if args.from == Path::new("-") {
        // Archives are read more than once, so standard input is stored in a file.
        if name.is_none() {
            bail!("an image from standard input needs a --name");
        }
        let place = writer.scratch()?.join("input");
        let mut file = File::create_new(&place).context("failed to store standard input")?;
        io::copy(&mut io::stdin().lock(), &mut file).context("failed to read standard input")?;
        belljar_image::import(&writer, &place, name, &progress)
    } else {
        belljar_image::import(&writer, &args.from, name, &progress)
    };
    drop(progress);
    let image = image.with_context(|| format!("failed to import `{}`", args.from.display()))?;
    announce(&image)?;
    Ok(ExitCode::SUCCESS)
}
