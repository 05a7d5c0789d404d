//! The command line of `belljar shell`.

use clap::Args;

use crate::flags::ServerFlags;
use crate::flags::values::parse_env;

#[derive(Debug, Args)]
#[command(after_help = "\
Ctrl-] d detaches: the shell goes on, and --terminal attaches to it again and shows what it printed
meanwhile. Ctrl-] Ctrl-] sends one Ctrl-]. All other keys go to the session, including Ctrl-C. The exit
status is that of the shell; 125 if something else failed. If the server is lost, the command waits for
it.

With --stdio there is no terminal: the shell reads standard input and writes to standard output and
error. It ends with this command, however that ends.

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
    /// Create a session with this key if there is none
    #[arg(long, requires = "session")]
    pub(crate) create: bool,
    /// Attach to this terminal of the session again, instead of opening a new one
    #[arg(long, value_name = "ID", requires = "session", conflicts_with_all = ["command", "stdio"])]
    pub(crate) terminal: Option<String>,
    /// No terminal: a shell on standard input and output
    #[arg(long)]
    pub(crate) stdio: bool,
    /// A variable for its environment; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_env, requires = "stdio")]
    pub(crate) env: Vec<(String, String)>,
    /// More variables, as a JSON object in this variable of the environment, which lists of processes do
    /// not show
    #[arg(long, value_name = "VARIABLE", requires = "stdio")]
    pub(crate) env_json: Option<String>,
    /// Interrupt this execution of the session when standard input ends
    #[arg(long, value_name = "EXEC", hide = true, requires = "session")]
    pub(crate) guard: Option<String>,
    /// Run this instead of a shell: a program with its arguments, or one text for a shell
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}
