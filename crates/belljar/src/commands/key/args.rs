//! The command line of `belljar key`.

use clap::{Args, Subcommand};

use crate::flags::values::{parse_name, parse_size};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Keys are stored in the database in BELLJAR_STATE_DIR. No server needs to run; a running server uses a
change within a second.")]
pub(crate) enum KeyCommand {
    /// Create a key and print it; it is not shown again
    Create(KeyCreateArgs),
    /// List all keys, without the secrets
    List(KeyListArgs),
    /// Revoke a key
    Revoke(KeyRevokeArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
The key itself goes to standard output and everything else to standard error:
  BELLJAR_API_KEY=$(belljar key create --name ci)")]
pub(crate) struct KeyCreateArgs {
    /// The name of the key in lists
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub(crate) name: String,
    /// The tenant of the key: all keys of a tenant share its sessions, other tenants do not see them
    #[arg(long, value_name = "TENANT", default_value = belljar_engine::DEFAULT_TENANT,
        value_parser = parse_name)]
    pub(crate) tenant: String,
    /// Requests per minute with this key [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) requests_per_minute: Option<u32>,
    /// Sessions of the tenant at the same time [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_sessions: Option<u64>,
    /// Hibernated sessions of the tenant [default: the limit on sessions, or BELLJAR_TENANT_SLEEPING]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_sleeping: Option<u64>,
    /// The sum of the memory limits of the tenant's sessions [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_memory: Option<u64>,
    /// The sum of the process limits of the tenant's sessions [default: no limit]
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
When no valid key is left, the server refuses all requests: revoking the last key must not open it. With
--allow-keyless it accepts requests without a key again, if it listens on loopback or a UNIX socket; all
keys are then removed from the list. A server on any other address refuses requests until there is a key.")]
pub(crate) struct KeyRevokeArgs {
    /// The id of the key, such as key_5a1f0c77d2b94e60a3c81f5be2097d46
    #[arg(value_name = "ID", required_unless_present = "allow_keyless")]
    pub(crate) id: Option<String>,
    /// If no valid key is left, accept local requests without a key again, as before the first key; without
    /// ID if all keys are revoked already
    #[arg(long)]
    pub(crate) allow_keyless: bool,
    /// Print the key's record as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
