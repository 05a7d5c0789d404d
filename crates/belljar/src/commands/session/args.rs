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
use crate::cli::flags::ServerFlags;

#[derive(Debug, Args)]
#[command(after_help = "\
A session is called by its id, or by the key it was made with. BELLJAR_API_KEY is shown to servers
that want a key.

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
    /// Make a session, or find the one with this key, and print its id
    Create(SessionCreateArgs),
    /// Sessions, the newest first; also those that have ended
    List(SessionListArgs),
    /// Everything about a session
    Show(SessionShowArgs),
    /// Execute code in a session, which remembers what it leaves behind
    Exec(SessionExecArgs),
    /// Copy files or directories into a session, or out of it
    Cp(SessionCpArgs),
    /// Stop sessions, and whatever runs in them
    Stop(SessionStopArgs),
    /// Forget sessions with their files, also those that have ended
    Remove(SessionRemoveArgs),
    /// Make files of a session until it is used again, with its variables
    Hibernate(SessionHibernateArgs),
    /// Make sessions that are what this one is, and print their ids
    Fork(SessionForkArgs),
    /// Take a session back to what it was after an execution
    Restore(SessionRestoreArgs),
    /// Where a session's code connected to, and where it was refused and why
    Network(SessionNetworkArgs),
    /// What datasets a session has
    Datasets(SessionDatasetsArgs),
    /// Bring a file into a session, as a dataset in /session/data
    Upload(SessionUploadArgs),
    /// Have the server fetch a dataset from one of its sources
    Stage(SessionStageArgs),
    /// Copy files from /session/data to the server's exports, and make artifacts of them
    Export(SessionExportArgs),
}
