//! `belljar completions` and `belljar man`: for shells and for `man`, made from the command line's own description.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;

use super::output;
use crate::cli::{Cli, CompletionsArgs, ManArgs};

pub(super) fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "belljar", &mut script);
    output::print(&String::from_utf8(script).context("the completions are not text")?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for the program and one for each command.
pub(super) fn man(args: &ManArgs) -> Result<ExitCode> {
    let directory = &args.directory;
    let failed = || format!("failed to write manual pages to `{}`", directory.display());
    fs::create_dir_all(directory).with_context(failed)?;
    clap_mangen::generate_to(Cli::command(), directory).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}
