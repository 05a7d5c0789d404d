//! The command line. Each command has its flags beside its code, in [`crate::commands`].

pub(crate) mod flags;
pub(crate) mod values;

use belljar_bench::BenchArgs;
use clap::{Parser, Subcommand};

use crate::commands::artifacts::ArtifactsArgs;
use crate::commands::completions::CompletionsArgs;
use crate::commands::completions::ManArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::guest::GuestArgs;
use crate::commands::image::ImageArgs;
use crate::commands::key::KeyCommand;
use crate::commands::run::RunArgs;
use crate::commands::serve::ServeArgs;
use crate::commands::session::SessionArgs;
use crate::commands::setup::SetupArgs;
use crate::commands::shell::ShellArgs;
use crate::commands::status::StatusArgs;
use crate::commands::uninstall::UninstallArgs;
use crate::commands::usage::UsageArgs;
use crate::commands::view::ViewArgs;
use crate::commands::volume::VolumeArgs;

/// Sealed computers for AI agents, on your own machine.
#[derive(Debug, Parser)]
#[command(name = "belljar", version, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run code once in a fresh sandbox, and throw the sandbox away
    Run(RunArgs),
    /// The server: sessions that remember, over HTTP
    Serve(ServeArgs),
    /// Sessions of a server: make, list, use and stop them
    Session(SessionArgs),
    /// Whether a server runs, its sessions and what they use, and where everything is
    Status(StatusArgs),
    /// A terminal in a session, or a shell at the end of our own pipes
    Shell(ShellArgs),
    /// Files that sessions have left: list, download, link, remove and check them
    Artifacts(ArtifactsArgs),
    /// Files that outlive sessions and are shared by them: make, list and remove volumes
    Volume(VolumeArgs),
    /// API keys: who may use the server, and how much of it
    #[command(subcommand)]
    Key(KeyCommand),
    /// What tenants have used, per day
    Usage(UsageArgs),
    /// Images that sandboxes are made from: build, pull, import, list and remove them
    Image(ImageArgs),
    /// What a session on disk has done: executions, variables, artifacts; also while it runs
    View(ViewArgs),
    /// Prepare this machine: the Python environment of sandboxes, and a commented .env here
    Setup(SetupArgs),
    /// What this machine can enforce, what not, and what to do about it
    Doctor(DoctorArgs),
    /// Latency, memory and density on this machine, beside docker and plain python3
    Bench(BenchArgs),
    /// Completions of commands and flags for your shell
    Completions(CompletionsArgs),
    /// Remove from this machine everything that Belljar keeps on it
    Uninstall(UninstallArgs),
    /// Writes the manual pages, for `make install`
    #[command(hide = true)]
    Man(ManArgs),
    /// Carries out one step of `image build`
    #[command(hide = true)]
    BuildStep,
    /// Makes sandboxes on behalf of the server that starts it
    #[command(hide = true)]
    Spawner {
        /// Already inside the user namespace
        #[arg(long)]
        inside: bool,
        /// Log as the server does that logs in JSON
        #[arg(long)]
        json_logs: bool,
    },
    /// PID 1 of a container, started by its engine
    #[command(hide = true)]
    Guest(GuestArgs),
}

impl Command {
    /// Flags that stand for settings, by the names of those.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        match self {
            Command::Serve(args) => args.settings(),
            Command::Session(args) => args.server.settings(),
            Command::Status(args) => args.server.settings(),
            Command::Shell(args) => args.server.settings(),
            Command::Artifacts(args) => args.server.settings(),
            Command::Volume(args) => args.server.settings(),
            _ => Vec::new(),
        }
    }

    /// Whether all that it says on standard error is a log.
    pub(crate) fn is_server(&self) -> bool {
        matches!(self, Command::Serve(_))
    }

    /// What is logged unless the settings say.
    pub(crate) fn default_log(&self) -> &'static str {
        match self {
            Command::Serve(_) => "info",
            _ => "warn",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
