//! The command line of `belljar session`.

use clap::{Args, Subcommand};

use super::cp::SessionCpArgs;
use super::create::SessionCreateArgs;
use super::datasets::SessionDatasetsArgs;
use super::exec::SessionExecArgs;
use super::export::SessionExportArgs;
use super::fork::SessionForkArgs;
use super::hibernate::SessionHibernateArgs;
use super::list::SessionListArgs;
use super::network::SessionNetworkArgs;
use super::remove::SessionRemoveArgs;
use super::restore::SessionRestoreArgs;
use super::show::SessionShowArgs;
use super::stage::SessionStageArgs;
use super::stop::SessionStopArgs;
use super::upload::SessionUploadArgs;
use crate::flags::ServerFlags;

#[derive(Debug, Args)]
#[command(after_help = "\
A session is named by its id, or by its key. For servers that need an API key, set BELLJAR_API_KEY.

Examples:
  belljar session create --key demo --memory 1G
  belljar session exec demo -c 'x = 6 * 7'
  belljar session exec demo -c 'x'
  belljar session list --state ready
  belljar session upload demo sales.csv
  belljar session stop demo")]
pub(crate) struct SessionArgs {
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    #[command(subcommand)]
    pub(crate) command: SessionCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// Create a session, or find the one with this key, and print its id
    Create(SessionCreateArgs),
    /// List sessions, the newest first, including those that have ended
    List(SessionListArgs),
    /// Show everything about a session
    Show(SessionShowArgs),
    /// Execute code in a session, which keeps variables and files
    Exec(SessionExecArgs),
    /// Copy files or directories into a session or out of it
    Cp(SessionCpArgs),
    /// Stop sessions and everything that runs in them
    Stop(SessionStopArgs),
    /// Remove sessions with their files, including those that have ended
    Remove(SessionRemoveArgs),
    /// Store a session with its variables in files until it is used again
    Hibernate(SessionHibernateArgs),
    /// Create copies of a session and print their ids
    Fork(SessionForkArgs),
    /// Restore a session to its state after an execution
    Restore(SessionRestoreArgs),
    /// List a session's connections, and why some were refused
    Network(SessionNetworkArgs),
    /// List the datasets of a session
    Datasets(SessionDatasetsArgs),
    /// Upload a file into a session, as a dataset in /session/data
    Upload(SessionUploadArgs),
    /// Let the server fetch a dataset from one of its sources
    Stage(SessionStageArgs),
    /// Copy files from /session/data to the server's exports and make them artifacts
    Export(SessionExportArgs),
}
