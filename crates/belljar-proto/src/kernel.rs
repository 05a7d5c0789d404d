//! Messages between the guest and a kernel. They use a private socket, so that output of user code cannot
//! be taken for a message.
//!
//! User code shares the process with the kernel and can write to that socket if it tries. It can only
//! forge its own results; the guest treats every message as untrusted.

use serde::{Deserialize, Serialize};

/// The generation of the guest/kernel protocol. Guest and kernels come from the same build, so it has
/// never changed.
pub const PROTOCOL: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum ToKernel {
    /// Run the code in the body.
    Exec {
        exec_id: String,
        echo: bool,
        /// The guest answers displays that ask for it with [`ToKernel::Seen`].
        #[serde(default)]
        acknowledges: bool,
        /// Requests for input will be answered.
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
    /// Interrupt this execution if it only waits. Sent, some time before the signal, to kernels that a signal
    /// could end at a bad moment.
    Interrupt {
        exec_id: String,
    },
    /// List the variables. Only while no cell runs.
    State,
    /// Move large values to disk, until another request arrives. Only while no cell runs.
    Spill(crate::guest::SpillAsk),
    /// Prepare to receive a socket to the host ([`crate::snapshot`]): reply with
    /// [`FromKernel::SnapshotSocket`]; then one byte with the descriptor follows. Only while no cell runs.
    #[serde(rename = "line")]
    SnapshotSocket,
    /// Answered with a pong; at once if no cell runs.
    Ping {
        token: u64,
    },
    /// The display has its position in the output; what is printed from now on comes after it.
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
        /// The kernel waits for [`ToKernel::Seen`]: what it prints next travels through a pipe and could
        /// overtake the display.
        #[serde(default)]
        wait: bool,
    },
    /// Body: a [`crate::exec::ErrorReport`].
    Error,
    /// The code waits for a line of input; body: a [`crate::exec::InputRequest`].
    Input {
        /// Any bytes are enough, not only a whole line. The host gets only the first such request.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stream: bool,
    },
    /// Body: a [`crate::guest::KernelVariables`], or empty if it could not be made in time.
    State,
    /// Body: a [`crate::guest::SpillReport`].
    Spilled,
    /// Ready for the descriptor; nothing else may be sent before it.
    #[serde(rename = "line")]
    SnapshotSocket,
    Pong {
        token: u64,
    },
    /// The kernel was idle for long, would lose nothing, and wants to end. It stays if a cell has been sent
    /// to it already.
    Leave,
    /// The code was read completely and begins to run. Sent by shells, which can only be interrupted from
    /// then on.
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
    /// The code called `sys.exit`; the kernel goes on.
    Exit,
}
