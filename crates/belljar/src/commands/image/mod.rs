//! `belljar image`: the images of sandboxes. One file per subcommand.

mod build;
mod import;
mod list;
mod progress;
mod pull;
mod remove;
mod show;

use std::process::ExitCode;

use anyhow::Result;
use belljar_image::Image;
use clap::{Args, Subcommand};
use indicatif::HumanBytes;

pub(crate) use build::build_step;

use self::build::ImageBuildArgs;
use self::import::ImageImportArgs;
use self::list::ImageListArgs;
use self::pull::ImagePullArgs;
use self::remove::ImageRemoveArgs;
use self::show::ImageShowArgs;
use super::output;
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "\
An image is used with `belljar run --image NAME`, by sessions that request it, and with
SANDBOX_IMAGE=NAME for all sandboxes. `host`, the default, is this machine itself.

Examples:
  belljar image build
  belljar image build -f lab.toml --name lab:1.0
  belljar image pull python:3.12-slim
  docker save team/lab | belljar image import - --name team/lab
  belljar image list")]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build an image from a spec: a base, and packages
    Build(ImageBuildArgs),
    /// Import an image from a file: an OCI layout, `docker save`, or a plain root file system
    Import(ImageImportArgs),
    /// Pull an image from a registry
    Pull(ImagePullArgs),
    /// List images by name
    List(ImageListArgs),
    /// Show everything about an image
    Show(ImageShowArgs),
    /// Remove images; files that sandboxes use are removed after those have ended
    Remove(ImageRemoveArgs),
}

pub(crate) fn image(command: ImageCommand, settings: &Settings) -> Result<ExitCode> {
    match command {
        ImageCommand::Build(args) => build::build(&args, settings),
        ImageCommand::Import(args) => import::import(&args, settings),
        ImageCommand::Pull(args) => pull::pull(args, settings),
        ImageCommand::List(args) => list::list(&args, settings),
        ImageCommand::Show(args) => show::show(&args, settings),
        ImageCommand::Remove(args) => remove::remove(&args, settings),
    }
}

/// Describes a new image in one line; its name goes to standard output.
fn announce(image: &Image) -> Result<()> {
    let python = image
        .python
        .as_deref()
        .map_or("without Python".to_owned(), |python| format!("with {python}"));
    output::say(&format!(
        "{} is ready: {} in {} entries, {python}",
        image.name,
        HumanBytes(image.unpacked.bytes),
        image.unpacked.entries
    ));
    if image.unpacked.skipped > 0 {
        let skipped = image.unpacked.skipped;
        output::say(&format!("{skipped} device(s) or pipe(s) in it were left out"));
    }
    output::print(&format!("{}\n", image.name))
}
