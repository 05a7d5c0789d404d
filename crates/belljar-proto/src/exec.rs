//! An execution: its specification, its events and its outcome.

use serde::{Deserialize, Serialize};

pub use crate::language::Language;

/// How much of a stream is kept and delivered, unless the caller asks otherwise.
pub const DEFAULT_OUTPUT_LIMIT: u64 = 1024 * 1024;

/// Files that code leaves below this directory are artifacts.
pub const ARTIFACTS: &str = "/session/artifacts";

/// The last words of the reason, if processes of the execution were killed for memory.
pub const KILLED_FOR_MEMORY: &str = "killed for memory";

/// How long code may run, unless the caller asks otherwise.
pub const DEFAULT_TIMEOUT_MS: u64 = 60_000;

/// How long an interrupted kernel may go on before it is killed.
pub const DEFAULT_GRACE_MS: u64 = 2_000;

/// The request for one execution. Code is in the body of the frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    pub exec_id: String,
    pub what: What,
    /// Added to the environment: in a kernel for this and all later cells, in a command for its one process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    pub timeout_ms: u64,
    pub grace_ms: u64,
    /// Bytes of stdout and of stderr that are kept, each; the rest is dropped and counted.
    pub output_limit: u64,
    /// Standard input stays open for [`crate::guest::Call::Stdin`]. Otherwise a command gets the body as its
    /// input, and a cell none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin: bool,
    /// The cell is a whole program, not one of many cells of a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
    /// Only for cells in bash: stderr goes into the pipe of stdout, so that both keep the order in which they
    /// were written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merge_output: bool,
}

/// A cell that runs like a script: with arguments, standard input as one stream of bytes, and exit handlers.
/// Only the Python kernel supports scripts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// The file in the sandbox that has the code; none for code without a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `sys.argv`, the script's own name included.
    pub argv: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum What {
    /// A cell in the language's kernel; the body is the code.
    Cell {
        language: Language,
        /// Publish the value of a last expression, as a notebook does and a script does not.
        echo: bool,
    },
    /// One command in a fresh process; the body is its standard input.
    Command { argv: Vec<String>, cwd: String },
}

/// One thing that happened during an execution. Its payload is the body of the frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Bytes written to standard output.
    Stdout,
    /// Bytes written to standard error.
    Stderr,
    /// A value that the code displayed: a JSON [`MimeBundle`].
    Display,
    /// The value of the last expression: a JSON [`MimeBundle`].
    Result,
    /// The exception that ended the code: a JSON [`ErrorReport`].
    Error,
    /// The code waits for a line of input: a JSON [`InputRequest`].
    Input,
    /// The artifacts that the code left, as the host stored them: JSON made by the host, which no guest sends.
    Artifacts,
    /// The end; nothing follows.
    Done(Outcome),
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub status: Status,
    pub exit_code: i32,
    /// For a crash, what is known about its cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub kernel_state: KernelState,
    pub execution_count: u64,
    pub duration_us: u64,
    pub dropped: Dropped,
    /// A fingerprint of all files below [`ARTIFACTS`]; absent if there are none. If it is unchanged there is
    /// nothing new to fetch. Guests before [`crate::PROTOCOL_WITH_FILES`] never send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<u64>,
    /// Bytes of memory charged to the sandbox at that moment. Set by the host; no guest sends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Whether a checkpoint of this moment exists, if one was requested; and if not, why. Set by the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_checkpoint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It ran to its end, or called `sys.exit`; see the exit code.
    Ok,
    /// An exception reached the top, or a command ended with a non-zero status.
    Error,
    Timeout,
    Interrupted,
    /// The process died: a signal, `os._exit`, a fault.
    Crashed,
    /// Linux killed it because the memory limit was reached.
    Oom,
}

/// Whether the variables of earlier executions still exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelState {
    Kept,
    Lost,
}

/// Output that was produced but exceeded its bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Displays and results beyond what one execution may publish.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub results: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// One value in every form it can be shown in, keyed by MIME type; binary forms are base64.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MimeBundle {
    pub data: serde_json::Map<String, serde_json::Value>,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Whether it was displayed or is a result, in lists that have both. Kernels do not set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<BundleKind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BundleKind {
    /// Displayed by the code.
    Display,
    /// The value of the last expression.
    Result,
}

impl MimeBundle {
    /// The plain-text form, which every kernel provides.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.data.get("text/plain")?.as_str()
    }
}

/// A request of the code for input; the answer is a [`crate::guest::Call::Stdin`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRequest {
    pub prompt: String,
    /// The answer should not be shown while it is typed.
    pub password: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReport {
    pub name: String,
    pub value: String,
    pub traceback: String,
}
