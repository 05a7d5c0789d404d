//! The command line of `belljar run`.

use std::path::PathBuf;

use belljar_engine::network::Policy;
use belljar_proto::exec::Language;
use clap::Args;

use crate::flags::LimitFlags;
use crate::flags::values::{parse_env, parse_language, parse_seconds, parse_size};

#[derive(Debug, Args)]
#[command(after_help = "\
The exit status is that of the code; 123 if the code succeeded but some of its artifacts could not be
kept, 124 after a timeout, 137 if memory ran out, 125 if the sandbox itself failed.

Files in /work/artifacts and figures that were shown are copied to OUTPUTS/<run id>/. All other files
are removed with the sandbox.

A Python script runs in /session with its arguments and standard input, together with a copy of the
Python modules in its directory. The cells of a notebook run in order, each within --timeout, until one
fails; a copy with their outputs is written to OUTPUTS/<run id>/, or to --save-as FILE.

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
    /// The code itself; the value of its last expression is printed
    #[arg(short = 'c', long = "code", value_name = "CODE", allow_hyphen_values = true)]
    pub(crate) code: Option<String>,
    /// Language of the code: python, bash, javascript, typescript or r [default: by the file's name,
    /// else python]
    #[arg(long, value_name = "LANG", value_parser = parse_language)]
    pub(crate) lang: Option<Language>,
    /// Seconds the code may run, including the time it waits for input
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = parse_seconds)]
    pub(crate) timeout: u64,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    /// The image of the sandbox, or host [default: SANDBOX_IMAGE, else host]
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// A directory to mount read-only at /data
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// A variable for the code's environment; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// Network policy: none, open, hosts such as example.org,*.example.com:443, or JSON [default:
    /// BELLJAR_NETWORK, else none]
    #[arg(long, value_name = "POLICY", value_parser = Policy::parse)]
    pub(crate) network: Option<Policy>,
    /// How much of stdout, and of stderr, to keep
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_output: Option<u64>,
    /// Directory for artifacts [default: BELLJAR_OUTPUTS_DIR, else outputs]
    #[arg(long, value_name = "DIR")]
    pub(crate) outputs: Option<PathBuf>,
    /// Do not copy the Python modules in FILE's directory into the sandbox
    #[arg(long)]
    pub(crate) no_modules: bool,
    /// For a notebook: go on after a cell that failed
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// For a notebook: write the copy with outputs to FILE, which is replaced if it exists
    #[arg(long, value_name = "FILE")]
    pub(crate) save_as: Option<PathBuf>,
    /// Print the whole result as JSON at the end, instead of the output while it runs
    #[arg(long)]
    pub(crate) json: bool,
    /// Arguments for the code: sys.argv in Python, $1 and so on in bash
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,
}
