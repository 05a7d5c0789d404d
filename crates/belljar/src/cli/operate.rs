//! Commands for those who run a server, as the user writes them.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
The exit status is 0 if a server answers, 1 if none does.")]
pub(crate) struct StatusArgs {
    /// Where the server is [default: BELLJAR_URL, else the local server of Python programs, else
    /// http://127.0.0.1:8000]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl StatusArgs {
    pub(super) fn settings(&self) -> Vec<(&'static str, String)> {
        self.url.iter().map(|url| ("BELLJAR_URL", url.clone())).collect()
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar completions bash > ~/.local/share/bash-completion/completions/belljar
  belljar completions zsh > ~/.zfunc/_belljar
  belljar completions fish > ~/.config/fish/completions/belljar.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell to complete commands in
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where the pages go; made if it is not there
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Removes what Belljar keeps on this machine: sandboxes that still run, their control groups, sockets and mounts,
the Python environments, images, sessions, artifacts, volumes, keys and the database. Files that you had
written elsewhere (outputs, exports, .env) and directories that settings name outside of BELLJAR_HOME are
listed and left. The program itself goes with `make uninstall`, or `pip uninstall belljar`.")]
pub(crate) struct UninstallArgs {
    /// Do not ask
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    /// Only list what would be removed
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
}
