//! `belljar image`: what sandboxes are made from.

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
use indicatif::HumanBytes;

pub(super) use build::build_step;

use super::output;
use crate::cli::ImageCommand;
use crate::settings::Settings;

pub(super) fn image(command: ImageCommand, settings: &Settings) -> Result<ExitCode> {
    match command {
        ImageCommand::Build(args) => build::build(&args, settings),
        ImageCommand::Import(args) => import::import(&args, settings),
        ImageCommand::Pull(args) => pull::pull(args, settings),
        ImageCommand::List(args) => list::list(&args, settings),
        ImageCommand::Show(args) => show::show(&args, settings),
        ImageCommand::Remove(args) => remove::remove(&args, settings),
    }
}

/// What an image came to, in one line; its name goes to standard output.
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
        output::say(&format!("{skipped} device(s) or pipe(s) of it were left out"));
    }
    output::print(&format!("{}\n", image.name))
}
