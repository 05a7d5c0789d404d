//! `belljar completions` and `belljar man`: generated from the definition of the command line.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar completions bash > ~/.local/share/bash-completion/completions/belljar
  belljar completions zsh > ~/.zfunc/_belljar
  belljar completions fish > ~/.config/fish/completions/belljar.fish")]
pub(crate) struct CompletionsArgs {
    /// Your shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages, created if needed
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs, mut program: clap::Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "belljar", &mut script);
    output::print(&String::from_utf8(script).context("the completions are not text")?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for the program and one for each command.
pub(crate) fn man(args: &ManArgs, program: clap::Command) -> Result<ExitCode> {
    let directory = &args.directory;
    let failed = || format!("failed to write manual pages to `{}`", directory.display());
    fs::create_dir_all(directory).with_context(failed)?;
    clap_mangen::generate_to(program, directory).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}
