//! The command line, as the user writes it.

mod operate;
mod volume;

use std::path::PathBuf;

use belljar_bench::BenchArgs;
use belljar_engine::exec::timeout_ms;
use belljar_engine::network::Policy;
use belljar_proto::exec::Language;
use belljar_runtime::{Limits, languages};
use clap::{Args, Parser, Subcommand};

pub(crate) use operate::{CompletionsArgs, ManArgs, StatusArgs, UninstallArgs};
pub(crate) use volume::{
    VolumeArgs, VolumeCommand, VolumeCreateArgs, VolumeListArgs, VolumeShowArgs,
};

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

#[derive(Debug, Args)]
pub(crate) struct GuestArgs {
    /// Meet the host at this socket; without one, on standard input and output
    #[arg(long, value_name = "SOCKET")]
    pub(crate) dial: Option<PathBuf>,
    /// Seconds to go on while no host is there
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    pub(crate) alone_for: u64,
}

impl Command {
    /// Flags that stand for settings, by the names of those.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        match self {
            Command::Serve(args) => args.settings(),
            Command::Session(args) => args.settings(),
            Command::Status(args) => args.settings(),
            Command::Shell(args) => args.settings(),
            Command::Artifacts(args) => args.settings(),
            Command::Volume(args) => args.settings(),
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

#[derive(Debug, Args)]
#[command(after_help = "\
The exit status is the code's own; 123 when the code succeeded but files it left could not be
kept, 124 after a timeout, 137 when memory ran out, 125 when the sandbox itself failed.

Files written to /work/artifacts and figures that were shown are copied to OUTPUTS/<run id>/. All
other files are gone with the sandbox.

A Python script runs in /session with its arguments and standard input, beside a copy of the Python
modules that lie beside it here. A notebook's cells run in order, each within --timeout, until one
fails; a copy with their outputs goes to OUTPUTS/<run id>/, or to --save-as FILE.

Examples:
  belljar run -c 'import pandas as pd; pd.DataFrame({\"x\": [1, 2]}).describe()'
  belljar run analysis.py --data ./datasets --memory 2G --timeout 300
  belljar run convert.py -- --format csv < table.json
  belljar run report.ipynb --save-as report-done.ipynb
  echo 'print(6 * 7)' | belljar run -")]
pub(crate) struct RunArgs {
    /// A file with code, a notebook (.ipynb), or - for code on standard input
    #[arg(value_name = "FILE", required_unless_present = "code", conflicts_with = "code")]
    pub(crate) file: Option<PathBuf>,
    /// Code given here; the value of a last expression is printed
    #[arg(short = 'c', long = "code", value_name = "CODE", allow_hyphen_values = true)]
    pub(crate) code: Option<String>,
    /// Language of the code: python, bash, javascript, typescript or r [default: by the file's name,
    /// else python]
    #[arg(long, value_name = "LANG", value_parser = parse_language)]
    pub(crate) lang: Option<Language>,
    /// Seconds the code may run, waiting for input included
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = parse_seconds)]
    pub(crate) timeout: u64,
    /// Memory, files in RAM included: a number of bytes, or with K, M, G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Processors, such as 0.5 or 2
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    pub(crate) cpus: Option<u32>,
    /// Processes and threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(4..=100_000))]
    pub(crate) pids: Option<u64>,
    /// What the sandbox is made from: an image, or host [default: SANDBOX_IMAGE, else host]
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// A directory to show read-only at /data
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// A variable for the code's environment; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// Where the code may go: none, open, hosts such as example.org,*.example.com:443, or JSON [default:
    /// BELLJAR_NETWORK, else none]
    #[arg(long, value_name = "POLICY", value_parser = Policy::parse)]
    pub(crate) network: Option<Policy>,
    /// Bytes of stdout and of stderr to keep, each
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_output: Option<u64>,
    /// Where artifacts go [default: BELLJAR_OUTPUTS_DIR, else outputs]
    #[arg(long, value_name = "DIR")]
    pub(crate) outputs: Option<PathBuf>,
    /// Do not copy the Python modules beside FILE into the sandbox
    #[arg(long)]
    pub(crate) no_modules: bool,
    /// For a notebook: run the cells after one that failed, too
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// For a notebook: where the copy with outputs goes; a file there is replaced
    #[arg(long, value_name = "FILE")]
    pub(crate) save_as: Option<PathBuf>,
    /// Print the whole result as JSON at the end, instead of output as it comes
    #[arg(long)]
    pub(crate) json: bool,
    /// Arguments for the code: sys.argv of Python, $1 and so on of bash
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Sessions survive the server: stop or kill it, start it again, and they are there, with their
variables and whatever runs in them. Everything else is set by environment or .env; see
docs/settings.md.")]
pub(crate) struct ServeArgs {
    /// Where to listen [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "unix")]
    listen: Option<String>,
    /// Listen on a UNIX socket instead, which only you can use
    #[arg(long, value_name = "PATH")]
    unix: Option<String>,
    /// Certificate chain, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,
    /// Private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,
    /// Stop all sessions when the server is stopped, instead of leaving them to the next one
    #[arg(long)]
    pub(crate) stop_sessions: bool,
    /// End when nobody has asked for anything for this long and no session is alive
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) idle_exit: Option<u64>,
}

impl ServeArgs {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings: Vec<(&'static str, String)> = [
            ("BELLJAR_LISTEN", &self.listen),
            ("BELLJAR_UNIX", &self.unix),
            ("BELLJAR_TLS_CERT", &self.tls_cert),
            ("BELLJAR_TLS_KEY", &self.tls_key),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.clone()?)))
        .collect();
        if self.listen.is_some() {
            // An address given here wins over a socket in the environment.
            settings.push(("BELLJAR_UNIX", String::new()));
        }
        settings
    }
}

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
    /// Where the server is [default: BELLJAR_URL, else the local server of Python programs, else
    /// http://127.0.0.1:8000]
    #[arg(long, value_name = "URL", global = true)]
    url: Option<String>,
    #[command(subcommand)]
    pub(crate) command: SessionCommand,
}

impl SessionArgs {
    fn settings(&self) -> Vec<(&'static str, String)> {
        self.url.iter().map(|url| ("BELLJAR_URL", url.clone())).collect()
    }
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

#[derive(Debug, Args)]
#[command(after_help = "\
The id goes to standard output and everything else to standard error:
  id=$(belljar session create --ttl 600)
  belljar session create --key thread-42 --storage BIND --env TOKEN=abc")]
pub(crate) struct SessionCreateArgs {
    /// Your own name for it; the same key finds the same session
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// What it is made from: an image that the server has and allows [default: the server's]
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// Where its files are: TMPFS (in memory) or BIND (on disk) [default: the server's]
    #[arg(long, value_name = "STORAGE", ignore_case = true, value_parser = ["TMPFS", "BIND"])]
    pub(crate) storage: Option<String>,
    /// Which datasets it sees: NONE, LOCAL_RO (at /data) or API [default: the server's]
    #[arg(long, value_name = "DATASETS", ignore_case = true,
        value_parser = ["NONE", "LOCAL_RO", "API"])]
    pub(crate) datasets: Option<String>,
    /// Memory, files in RAM included: a number of bytes, or with K, M, G [default: the server's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Processors, such as 0.5 or 2 [default: the server's]
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    pub(crate) cpus: Option<u32>,
    /// Processes and threads [default: the server's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(4..=100_000))]
    pub(crate) pids: Option<u64>,
    /// Seconds it lives on after its last use [default: the server's]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ttl: Option<u64>,
    /// A variable for everything that runs in it; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// Where its code may go: none, open, hosts such as example.org,*.example.com:443, or JSON [default: the
    /// server's]
    #[arg(long, value_name = "POLICY", value_parser = Policy::parse)]
    pub(crate) network: Option<Policy>,
    /// A volume to show at /volumes/NAME, to read only with :ro; may be repeated
    #[arg(long = "volume", value_name = "NAME[:ro]", value_parser = volume::parse_volume)]
    pub(crate) volumes: Vec<(String, String)>,
    /// A directory of the server's machine to have at /workspace, to read and to write, if the server allows it
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Leave a point to go back to after every execution
    #[arg(long)]
    pub(crate) checkpoints: bool,
    /// Print everything about it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionHibernateArgs {
    /// The id of the session, or its key
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// Lose what cannot be kept, and list it: threads, connections, processes, kernels other than Python's
    #[arg(long)]
    pub(crate) force: bool,
    /// Print everything about it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionForkArgs {
    /// The id of the session, or its key
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// How many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
    pub(crate) count: usize,
    /// What it was after this execution, which must have left a checkpoint
    #[arg(long, value_name = "EXEC")]
    pub(crate) from: Option<String>,
    /// Without what cannot be copied, which is listed: threads, connections, processes, kernels other than Python's
    #[arg(long)]
    pub(crate) force: bool,
    /// Print everything about them as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionRestoreArgs {
    /// The id of the session, or its key
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// The execution to go back to; without it, those that can be gone back to are shown
    #[arg(value_name = "EXEC")]
    pub(crate) exec: Option<String>,
    /// Print what the server says as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionListArgs {
    /// Only those in this state: creating, ready, busy, stopping, stopped, failed, ...
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<String>,
    /// Only those with this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Print them as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionShowArgs {
    /// The id of the session, or its key
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The exit status is the code's own; 124 after a timeout, 130 when it was interrupted, 137 when memory
ran out, 125 when something else failed. Ctrl-C interrupts the code; pressed again it leaves the code
running. A server that goes away is waited for, and nothing is lost when it comes back.

Examples:
  belljar session exec demo -c 'import pandas as pd; df = pd.read_csv(\"/data/a.csv\")'
  belljar session exec demo analysis.py --timeout 600
  belljar session exec demo --lang bash -c 'cd /tmp; export A=1'
  belljar session exec demo --background --command python3 -m http.server
  echo 'df.describe()' | belljar session exec demo -")]
pub(crate) struct SessionExecArgs {
    /// The id of the session, or its key
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// A file with code, or - for standard input
    #[arg(value_name = "FILE", required_unless_present_any = ["code", "command", "join"],
        conflicts_with_all = ["code", "command", "join"])]
    pub(crate) file: Option<PathBuf>,
    /// Code given here; the value of a last expression is printed
    #[arg(short = 'c', long = "code", value_name = "CODE", allow_hyphen_values = true,
        conflicts_with_all = ["command", "join"])]
    pub(crate) code: Option<String>,
    /// Language of the code: python, bash, javascript, typescript or r [default: by the file's name,
    /// else python]
    #[arg(long, value_name = "LANG", value_parser = parse_language,
        conflicts_with_all = ["command", "join"])]
    pub(crate) lang: Option<Language>,
    /// Seconds the code may run [default: 60, and a year in the background]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "join")]
    pub(crate) timeout: Option<u64>,
    /// A variable for its environment; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_env, conflicts_with = "join")]
    pub(crate) env: Vec<(String, String)>,
    /// Bytes of stdout and of stderr to keep, each
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "join")]
    pub(crate) max_output: Option<u64>,
    /// Do not wait: it runs beside everything else, in a process of its own
    #[arg(long, conflicts_with = "join")]
    pub(crate) background: bool,
    /// Show what an execution has said so far and go on with it, instead of starting one
    #[arg(long, value_name = "EXEC", conflicts_with = "command")]
    pub(crate) join: Option<String>,
    /// Print the whole result as JSON at the end, instead of output as it comes
    #[arg(long)]
    pub(crate) json: bool,
    /// Instead of code, one command in a process of its own, up to the end of the line: a program
    /// with its arguments, or one text for a shell
    #[arg(long, value_name = "WORD", num_args = 1.., allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
An image is used by `belljar run --image NAME`, by sessions that ask for it, and for all sandboxes
by SANDBOX_IMAGE=NAME. `host`, the default, is this machine itself.

Examples:
  belljar image build
  belljar image build -f lab.toml --name lab:1.0
  belljar image pull python:3.12-slim
  docker save team/lab | belljar image import - --name team/lab
  belljar image list")]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Make an image from a spec: a base, and packages on it
    Build(ImageBuildArgs),
    /// Take an image from a file: an OCI layout, `docker save`, or a plain root file system
    Import(ImageImportArgs),
    /// Take an image from a registry
    Pull(ImagePullArgs),
    /// Images, by name
    List(ImageListArgs),
    /// Everything about an image
    Show(ImageShowArgs),
    /// Remove images; what sandboxes still use goes when they have ended
    Remove(ImageRemoveArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
The image can be used by native sandboxes and, if a container engine answers, by Docker. What it is
built on stays, so that the next build is quicker. The spec itself is shown by --print-spec.")]
pub(crate) struct ImageBuildArgs {
    /// What to build [default: Python with the usual packages]
    #[arg(short = 'f', long = "file", value_name = "SPEC")]
    pub(crate) file: Option<PathBuf>,
    /// What to call it
    #[arg(long, value_name = "NAME", default_value = "belljar/sandbox")]
    pub(crate) name: String,
    /// Build on this instead of what the spec says
    #[arg(long, value_name = "BASE")]
    pub(crate) base: Option<String>,
    /// With Chromium and fonts, whatever the spec says
    #[arg(long)]
    pub(crate) browser: bool,
    /// Certificates to be trusted while building [default: SSL_CERT_FILE, REQUESTS_CA_BUNDLE, ...]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_bundle: Option<PathBuf>,
    /// Fail if no container engine takes the image [default: load it if one answers]
    #[arg(long, conflicts_with = "no_docker")]
    pub(crate) docker: bool,
    /// Give the image to no container engine
    #[arg(long)]
    pub(crate) no_docker: bool,
    /// Print the spec and build nothing
    #[arg(long)]
    pub(crate) print_spec: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageImportArgs {
    /// An archive, a directory, or - for standard input
    #[arg(value_name = "FILE|DIR")]
    pub(crate) from: PathBuf,
    /// What to call it [default: the name it has for itself, else that of the file]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --username, BELLJAR_REGISTRY_USER and BELLJAR_REGISTRY_PASSWORD are used, or else what
`docker login` left. What was pulled once is not pulled again, and what was cut off is gone on with.")]
pub(crate) struct ImagePullArgs {
    /// Such as python:3.12-slim, registry.example/team/lab:1.0 or NAME@sha256:...
    #[arg(value_name = "REF")]
    pub(crate) reference: String,
    /// What to call it [default: as it is asked for]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Who you are there
    #[arg(long, value_name = "USER", requires = "password_stdin")]
    pub(crate) username: Option<String>,
    /// The password is on standard input
    #[arg(long, requires = "username")]
    pub(crate) password_stdin: bool,
    /// Without TLS; for a registry on this machine that is so anyway
    #[arg(long)]
    pub(crate) plain_http: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageListArgs {
    /// Print them as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageShowArgs {
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageRemoveArgs {
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
One side is in a session: its id or key, a colon and a path, which is relative to /session unless it
begins with a slash. Directories are copied with all that is in them. What is copied to a directory
goes into it under its own name; what is there is replaced.
  belljar session cp notes.txt thread-42:
  belljar session cp thread-42:results ./results
  belljar session cp thread-42:/tmp/log -
  make data | belljar session cp - thread-42:data.csv
With - for standard output, a directory is a tar archive.")]
pub(crate) struct SessionCpArgs {
    /// What to copy: PATH, SESSION:PATH, or - for standard input
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// Where to: PATH, SESSION:PATH, or - for standard output
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
}

#[derive(Debug, Args)]
pub(crate) struct SessionStopArgs {
    /// Ids of sessions, or their keys
    #[arg(value_name = "ID", required_unless_present = "all")]
    pub(crate) sessions: Vec<String>,
    /// All sessions that you have, also those that sleep
    #[arg(long, conflicts_with = "sessions")]
    pub(crate) all: bool,
    /// Print what is left of them as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The newest connections come first, 256 at most. A refusal names its reason: the session's policy, the
server's (BELLJAR_MAX_NETWORK), a private address, or the limit of bytes. See docs/network.md.")]
pub(crate) struct SessionNetworkArgs {
    /// The id of the session, or its key
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// Show only what was refused or failed
    #[arg(long)]
    pub(crate) refused: bool,
    /// Print everything as JSON
    #[arg(long, conflicts_with = "refused")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
What is removed cannot be had back: the files of the session (also with storage BIND), its
snapshots, its executions and its log. One that is alive is stopped first. Artifacts stay; see
`belljar artifacts`.

  belljar session remove demo")]
pub(crate) struct SessionRemoveArgs {
    /// Ids of sessions, or their keys
    #[arg(value_name = "ID", required = true)]
    pub(crate) sessions: Vec<String>,
    /// Print what was removed as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionDatasetsArgs {
    /// The id of the session, or its key
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// Print them as JSON, with the names of their columns
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The file appears when all of it has come, and replaces one of the same name. A file of up to 1 GiB
that the server has already, from any of your sessions, is not sent again.

Examples:
  belljar session create --key demo --datasets API
  belljar session upload demo sales.csv
  belljar session upload demo export.parquet --name 2024/q1.parquet")]
pub(crate) struct SessionUploadArgs {
    /// The id of the session, or its key
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// The file to bring into it
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Its name below /session/data, with or without folders [default: the file's own]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print what the server says of it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The server's operator names its sources in BELLJAR_DATASET_SOURCES.")]
pub(crate) struct SessionStageArgs {
    /// The id of the session, or its key
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// The dataset, as the server's sources know it
    #[arg(value_name = "DATASET")]
    pub(crate) dataset: String,
    /// Ask the source again, even if the dataset is there
    #[arg(long)]
    pub(crate) refresh: bool,
    /// Print what the server says of it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is ever overwritten: exports have the time in their names.")]
pub(crate) struct SessionExportArgs {
    /// The id of the session, or its key
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// Names below /session/data [default: all files there]
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Print what the server says as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

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
    /// Where the server is [default: BELLJAR_URL, else the local server of Python programs, else
    /// http://127.0.0.1:8000]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
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

impl ShellArgs {
    fn settings(&self) -> Vec<(&'static str, String)> {
        self.url.iter().map(|url| ("BELLJAR_URL", url.clone())).collect()
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Files that code leaves in /session/artifacts become artifacts when it ends. BELLJAR_API_KEY is shown
to servers that want a key.

Examples:
  belljar artifacts list --session demo
  belljar artifacts get art_7d0c... -o plots/
  belljar artifacts get art_7d0c... -o - | head
  belljar artifacts verify")]
pub(crate) struct ArtifactsArgs {
    /// Where the server is [default: BELLJAR_URL, else the local server of Python programs, else
    /// http://127.0.0.1:8000]
    #[arg(long, value_name = "URL", global = true)]
    url: Option<String>,
    #[command(subcommand)]
    pub(crate) command: ArtifactsCommand,
}

impl ArtifactsArgs {
    fn settings(&self) -> Vec<(&'static str, String)> {
        self.url.iter().map(|url| ("BELLJAR_URL", url.clone())).collect()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ArtifactsCommand {
    /// Artifacts, the newest first
    List(ArtifactsListArgs),
    /// Everything about an artifact
    Show(ArtifactsShowArgs),
    /// Download an artifact, and print where it is
    Get(ArtifactsGetArgs),
    /// Print a fresh link that anybody can use, for a while
    Url(ArtifactsUrlArgs),
    /// Forget artifacts; content goes when no other artifact has the same
    Remove(ArtifactsRemoveArgs),
    /// Read the content of all artifacts on this machine and compare it with its hash
    Verify(ArtifactsVerifyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ArtifactsListArgs {
    /// Only those of this session, by its id or key, or of a run, by its id
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Only those that this execution left
    #[arg(long, value_name = "EXEC")]
    pub(crate) exec: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Print them as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ArtifactsShowArgs {
    /// The id of the artifact
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A server that goes away is waited for, and the download goes on where it was. Until all of it is
there and matches its hash, what has come is in ID.part beside the file; the same command goes on
with a part that was left.")]
pub(crate) struct ArtifactsGetArgs {
    /// The id of the artifact
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Where it goes: a file, a directory, or - for standard output [default: its own name, here]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite a file that is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Print what was downloaded, and where it is, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ArtifactsUrlArgs {
    /// The id of the artifact
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// A link that is good for HEAD only: it tells size and type, and opens nothing
    #[arg(long)]
    pub(crate) head: bool,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ArtifactsRemoveArgs {
    /// Ids of artifacts
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// Print the ids of those that were removed as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads BLOBSTORE_DIR and ARTIFACTS_DB directly and changes nothing: no server needs to run, and one
that does is not disturbed. The exit status is 0 if all is well, 1 if something is lost, 125 when
that could not be found out.")]
pub(crate) struct ArtifactsVerifyArgs {
    /// Print what was found as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

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

#[derive(Debug, Args)]
#[command(after_help = "\
Read from the database of BELLJAR_STATE_DIR, to which a running server adds every ten seconds.
Days are those of UTC.")]
pub(crate) struct UsageArgs {
    /// The first day [default: 30 days ago]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = parse_day)]
    pub(crate) since: Option<String>,
    /// One tenant only
    #[arg(long, value_name = "TENANT")]
    pub(crate) tenant: Option<String>,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Sessions with storage BIND have a directory each, below SESSIONS_ROOT; `belljar session show` names
it. Colours only on a terminal, and none if NO_COLOR is set.

Examples:
  belljar view /var/lib/belljar/sessions/ses_5a1f...
  belljar view . --follow --no-state")]
pub(crate) struct ViewArgs {
    /// The directory of a session
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Executions to show, the last ones; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,
    /// Leave the variables out
    #[arg(long)]
    pub(crate) no_state: bool,
    /// Leave the artifacts out
    #[arg(long)]
    pub(crate) no_artifacts: bool,
    /// Show executions as they end, until the session has
    #[arg(long)]
    pub(crate) follow: bool,
    /// Print JSON; with --follow, one execution per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// The interpreter to build on [default: python3 on the PATH]
    #[arg(long, value_name = "PYTHON")]
    pub(crate) python: Option<PathBuf>,
    /// A package to install besides the usual ones; may be repeated
    #[arg(long = "with", value_name = "PACKAGE")]
    pub(crate) with: Vec<String>,
    /// Install rdkit, for chemistry, besides the usual packages
    #[arg(long)]
    pub(crate) chem: bool,
    /// Make an environment with browser-use as well, for browser tasks in natural language
    #[arg(long)]
    pub(crate) browser: bool,
    /// Build the environment anew even if it is complete
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_language(text: &str) -> Result<Language, String> {
    languages::find(text).ok_or_else(|| format!("expected {}", languages::names()))
}

fn parse_seconds(text: &str) -> Result<u64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    timeout_ms(seconds).ok_or_else(|| "expected more than 0 seconds and at most a year".into())
}

pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let expected = || format!("expected a size such as 512M or 2G, not `{text}`");
    let trimmed = text.trim().trim_end_matches(['i', 'B', 'b']);
    let (digits, unit) = match trimmed.char_indices().last() {
        Some((at, unit)) if unit.is_ascii_alphabetic() => (&trimmed[..at], unit),
        _ => (trimmed, 'b'),
    };
    let shift = match unit.to_ascii_lowercase() {
        'b' => 0,
        'k' => 10,
        'm' => 20,
        'g' => 30,
        't' => 40,
        _ => return Err(expected()),
    };
    let number: u64 = digits.trim().parse().map_err(|_| expected())?;
    number.checked_mul(1 << shift).ok_or_else(expected)
}

pub(crate) fn parse_cpus(text: &str) -> Result<u32, String> {
    let cpus: f64 = text.parse().map_err(|_| "expected a number of processors".to_owned())?;
    let millicpus = Limits::millicpus_of(cpus);
    millicpus.ok_or_else(|| "expected between 0.01 and 1024 processors".into())
}

fn parse_env(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !text.contains('\0') => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("expected KEY=VALUE".into()),
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    const MOST: usize = 100;
    let name = text.trim();
    match name.chars().count() {
        0 => Err("expected a name that is not empty".into()),
        1..=MOST if !name.contains(char::is_control) => Ok(name.to_owned()),
        _ => Err(format!("expected at most {MOST} printable characters")),
    }
}

fn parse_day(text: &str) -> Result<String, String> {
    let is_day = belljar_engine::clock::is_day(text);
    is_day.then(|| text.to_owned()).ok_or_else(|| "expected a day such as 2026-01-31".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood_in_every_common_form() {
        for (text, bytes) in
            [("512M", 512 << 20), ("1g", 1 << 30), ("2GiB", 2 << 30), ("64kb", 64 << 10), ("7", 7)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "1.5G", "12X", "99999999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["0", "-3", "inf", "NaN", "1e30", ""] {
            assert!(parse_seconds(text).is_err(), "{text}");
            assert!(parse_cpus(text).is_err(), "{text}");
        }
        assert_eq!(parse_seconds("0.5"), Ok(500));
        assert_eq!(parse_cpus("1.5"), Ok(1500));
        assert!(parse_env("=x").is_err() && parse_env("x").is_err());
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for day in ["2026-11-15", "2024-02-29", "2000-02-29", "1999-12-31"] {
            assert_eq!(parse_day(day).as_deref(), Ok(day));
        }
        for day in [
            "",
            "today",
            "2026-1-1",
            "2026-13-01",
            "2026-00-10",
            "2026-02-29",
            "1900-02-29",
            "2026-04-31",
            "2026-01-00",
            "2026-01-01T00",
            "20260101",
            "２026-01-01",
        ] {
            assert!(parse_day(day).is_err(), "{day}");
        }
    }

    #[test]
    fn names_are_short_and_printable() {
        assert_eq!(parse_name(" ci of team ä ").as_deref(), Ok("ci of team ä"));
        for name in ["", "  ", "a\nb", "\u{1b}[31m", &"x".repeat(101)] {
            assert!(parse_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
