//! The command line of `belljar shell`.

use clap::Args;

use crate::cli::flags::ServerFlags;
use crate::cli::values::parse_env;

#[derive(Debug, Args)]
#[command(after_help = "\
Ctrl-] d leaves: the shell goes on, and --terminal comes back to it with what it printed meanwhile;
Ctrl-] Ctrl-] types one Ctrl-]. Everything else goes inside, Ctrl-C too. The exit status is the
shell's own; 125 when something else failed. A server that goes away is waited for.

With --stdio there is no terminal: a shell reads our standard input, and writes to our standard output
and error. It ends with us, however we end.

Examples:
  belljar shell demo
  belljar shell demo --create
  belljar shell demo -- python3 -q
  echo 'cd /tmp; pwd' | belljar shell --stdio demo")]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    /// The id of a session, or its key [default: a new session, which ends with the shell]
    #[arg(value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Make a session with this key, if there is none
    #[arg(long, requires = "session")]
    pub(crate) create: bool,
    /// Come back to this terminal of the session, instead of opening a new one
    #[arg(long, value_name = "ID", requires = "session", conflicts_with_all = ["command", "stdio"])]
    pub(crate) terminal: Option<String>,
    /// No terminal: a shell at the end of our own pipes
    #[arg(long)]
    pub(crate) stdio: bool,
    /// A variable for its environment; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_env, requires = "stdio")]
    pub(crate) env: Vec<(String, String)>,
    /// More of them, as a JSON object in this variable of our own: lists of processes do not show it
    #[arg(long, value_name = "VARIABLE", requires = "stdio")]
    pub(crate) env_json: Option<String>,
    /// Interrupt this execution of the session when standard input ends
    #[arg(long, value_name = "EXEC", hide = true, requires = "session")]
    pub(crate) guard: Option<String>,
    /// What to run instead of a shell: a program with its arguments, or one text for a shell
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}
