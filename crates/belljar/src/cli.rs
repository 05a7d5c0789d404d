//! The command line. Each command has its flags beside its code, in [`crate::commands`].

use belljar_bench::BenchArgs;
use clap::{Parser, Subcommand};

use crate::commands::artifacts::ArtifactsArgs;
use crate::commands::cluster_ca::ClusterCommand;
use crate::commands::completions::CompletionsArgs;
use crate::commands::completions::ManArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::gateway::GatewayArgs;
use crate::commands::guest::GuestArgs;
use crate::commands::image::ImageArgs;
use crate::commands::init::InitArgs;
use crate::commands::key::KeyCommand;
use crate::commands::migrate::MigrateArgs;
use crate::commands::node::{LeaseWatchdogArgs, NodeArgs};
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
    /// Run code once in a new sandbox, which is removed afterwards
    Run(RunArgs),
    /// Run the server: sessions over HTTP
    Serve(ServeArgs),
    /// Run a node of a cluster: sessions that gateways send to this machine
    Node(NodeArgs),
    /// Run a gateway of a cluster: it forwards the requests of clients to nodes
    Gateway(GatewayArgs),
    /// Clusters: make the authority for TLS between nodes and gateways
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// PID 1 of a container or pod: start the server, and start it again when it dies
    Init(InitArgs),
    /// Sessions of a server: create, list, use and stop them
    Session(SessionArgs),
    /// Show whether a server runs, its sessions and their use, and the directories
    Status(StatusArgs),
    /// Open a terminal in a session, or a shell on standard input and output
    Shell(ShellArgs),
    /// Artifacts of sessions: list, download, link, remove and verify them
    Artifacts(ArtifactsArgs),
    /// Volumes, whose files outlive sessions: create, list and remove them
    Volume(VolumeArgs),
    /// API keys and their limits: create, list and revoke them
    #[command(subcommand)]
    Key(KeyCommand),
    /// Show the usage of tenants per day
    Usage(UsageArgs),
    /// Images of sandboxes: build, pull, import, list and remove them
    Image(ImageArgs),
    /// Show the executions, variables and artifacts of a session on disk, also while it runs
    View(ViewArgs),
    /// Prepare this machine: the Python environment of sandboxes, and a commented .env
    Setup(SetupArgs),
    /// Check what this machine can enforce, and what to do where it cannot
    Doctor(DoctorArgs),
    /// Measure latency, memory and density, compared with docker and python3
    Bench(BenchArgs),
    /// Print completions of commands and flags for your shell
    Completions(CompletionsArgs),
    /// Move the records of this machine from SQLite files to a Postgres database
    Migrate(MigrateArgs),
    /// Remove everything that Belljar stores on this machine
    Uninstall(UninstallArgs),
    /// Write the manual pages, for `make install`
    #[command(hide = true)]
    Man(ManArgs),
    /// Run one step of `image build`
    #[command(hide = true)]
    BuildStep,
    /// Freeze the sandboxes of the node that starts it when its lease ends
    #[command(hide = true)]
    LeaseWatchdog(LeaseWatchdogArgs),
    /// Make sandboxes for the server that starts it
    #[command(hide = true)]
    Spawner {
        /// Already inside the user namespace
        #[arg(long)]
        inside: bool,
        /// Log in JSON, as the server does
        #[arg(long)]
        json_logs: bool,
    },
    /// PID 1 of a container, started by its engine
    #[command(hide = true)]
    Guest(GuestArgs),
}

impl Command {
    /// The values of flags that correspond to settings, with the names of the settings.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        match self {
            Command::Serve(args) => args.settings(),
            Command::Node(args) => args.settings(),
            Command::Gateway(args) => args.settings(),
            Command::Session(args) => args.server.settings(),
            Command::Status(args) => args.server.settings(),
            Command::Shell(args) => args.server.settings(),
            Command::Artifacts(args) => args.server.settings(),
            Command::Volume(args) => args.server.settings(),
            _ => Vec::new(),
        }
    }

    /// Whether its standard error contains only log lines.
    pub(crate) fn is_server(&self) -> bool {
        matches!(
            self,
            Command::Serve(_) | Command::Node(_) | Command::Gateway(_) | Command::Init(_)
        )
    }

    /// The default of BELLJAR_LOG.
    pub(crate) fn default_log(&self) -> &'static str {
        match self {
            Command::Serve(_) | Command::Node(_) | Command::Gateway(_) => "info",
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
