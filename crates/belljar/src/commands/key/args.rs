//! The command line of `belljar key`.

use clap::{Args, Subcommand};

use crate::cli::values::{parse_name, parse_size};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Keys are kept in the database of BELLJAR_STATE_DIR. No server needs to run; one that does notices
within a second.")]
pub(crate) enum KeyCommand {
    /// Make a key and print it; it is not shown again
    Create(KeyCreateArgs),
    /// Show all keys, without the secrets
    List(KeyListArgs),
    /// Make a key worthless
    Revoke(KeyRevokeArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
The key itself goes to standard output and everything else to standard error:
  BELLJAR_API_KEY=$(belljar key create --name ci)")]
pub(crate) struct KeyCreateArgs {
    /// What the key is called in lists
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub(crate) name: String,
    /// Whose sessions it reaches: keys of one tenant share them, and nobody else sees them
    #[arg(long, value_name = "TENANT", default_value = belljar_engine::DEFAULT_TENANT,
        value_parser = parse_name)]
    pub(crate) tenant: String,
    /// Requests per minute with this key [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) requests_per_minute: Option<u32>,
    /// Sessions of the tenant at the same time [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_sessions: Option<u64>,
    /// Sleeping sessions of the tenant [default: the limit on sessions, or BELLJAR_TENANT_SLEEPING]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_sleeping: Option<u64>,
    /// What the memory limits of the tenant's sessions may add up to [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_memory: Option<u64>,
    /// What the process limits of the tenant's sessions may add up to [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_pids: Option<u64>,
    /// A key for monitoring: it reads /metrics and all of /healthz, and has no sessions
    #[arg(long, conflicts_with_all = ["tenant", "max_sessions", "max_memory", "max_pids"])]
    pub(crate) operator: bool,
    /// Print the key and everything about it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct KeyListArgs {
    /// Print the keys as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
When no valid key is left, the server refuses everybody: revoking the last key must not open it. With
--allow-keyless it does, for a server that listens on loopback or a UNIX socket; all keys are then
removed from the list. A server on any other address goes on refusing until there is a key.")]
pub(crate) struct KeyRevokeArgs {
    /// The id of the key, such as key_5a1f0c77d2b94e60a3c81f5be2097d46
    #[arg(value_name = "ID", required_unless_present = "allow_keyless")]
    pub(crate) id: Option<String>,
    /// After the last valid key, let local users in without one again, as before the first key; without
    /// ID, where all keys are revoked already
    #[arg(long)]
    pub(crate) allow_keyless: bool,
    /// Print what is now known of the key as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
