//! Between the guest and a kernel: a conversation over a private socket, so that nothing user code
//! prints can be taken for a message.
//!
//! User code shares the process with the kernel and can, if it tries, write to that socket. All it
//! gains is to lie about its own results, so the guest treats every message as untrusted.

use serde::{Deserialize, Serialize};

/// The generation of the guest/kernel protocol. A guest brings its own kernels, so it has never
/// had to grow.
pub const PROTOCOL: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum ToKernel {
    /// Run the code in the body.
    Exec {
        exec_id: String,
        echo: bool,
        /// We answer displays that ask for it with [`ToKernel::Seen`].
        #[serde(default)]
        acknowledges: bool,
        /// Somebody answers when the code asks for input.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stdin: bool,
        /// Which of its languages the code is in, for a kernel that has several and if it is not
        /// the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        variant: Option<String>,
        #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
        env: serde_json::Map<String, serde_json::Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        script: Option<crate::exec::Script>,
    },
    /// A line of input, or a piece of any length if the kernel asked for a stream, in the body. An empty one is
    /// the end of the input.
    Input {
        exec_id: String,
    },
    /// Stop waiting for what this execution waits for, if it only waits. Said to kernels that can be
    /// hit by a signal at a bad moment, and a while before the signal.
    Interrupt {
        exec_id: String,
    },
    /// What are your variables? Only asked while no cell runs.
    State,
    /// Move large values to disk, unless somebody wants something else meanwhile. Only asked while no
    /// cell runs.
    Spill(crate::guest::SpillAsk),
    /// Take a line to the host: say when you are ready for a byte with a descriptor. Only asked while no cell
    /// runs.
    Line,
    /// Are you listening? Answered at once if no cell runs.
    Ping {
        token: u64,
    },
    /// The display was put in its place among the output; what is printed from now on comes after.
    Seen,
    Shutdown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum FromKernel {
    /// The first message of a kernel that is sealed and ready.
    Hello {
        protocol: u32,
        language: String,
        language_version: String,
        pid: u32,
    },
    /// The kernel could not start; the body is JSON `{"message"}`.
    Fatal,
    /// Body: a [`crate::exec::MimeBundle`].
    Display {
        kind: DisplayKind,
        /// The kernel goes on when it hears [`ToKernel::Seen`]: what it prints next travels another
        /// way and could overtake this.
        #[serde(default)]
        wait: bool,
    },
    /// Body: a [`crate::exec::ErrorReport`].
    Error,
    /// The code waits for a line of input; body: a [`crate::exec::InputRequest`].
    Input {
        /// Any bytes will do, not only a whole line. The host hears only of the first such request.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stream: bool,
    },
    /// Body: a [`crate::guest::KernelVariables`], or empty if it could not be made in time.
    State,
    /// Body: a [`crate::guest::SpillReport`].
    Spilled,
    /// Ready for a descriptor; nothing else may be sent before it.
    Line,
    Pong {
        token: u64,
    },
    /// Nobody has asked for anything for long, and nothing would be lost: the kernel wants to go. It
    /// goes on if a cell is on its way to it already.
    Leave,
    /// The code was read as a whole and begins to run. Said by shells, which can only be
    /// interrupted from then on.
    Begun {
        exec_id: String,
    },
    Done {
        exec_id: String,
        status: CellStatus,
        exit_code: i32,
        execution_count: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisplayKind {
    Display,
    Result,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellStatus {
    Ok,
    Error,
    Interrupted,
    /// The code left with `sys.exit`; the kernel lives on.
    Exit,
}
