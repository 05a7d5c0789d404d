//! Terminals: programs on pseudo-terminals that the guest owns.
//!
//! A terminal goes on while no client is attached, and while there is no server. Positions in its output
//! are counted in bytes from the beginning. The guest keeps the last [`SCROLL_BACK`] bytes; a client that
//! connects again asks for output from its last position on.
//!
//! The program waits for slow readers, as at a real terminal, but not for one that has stopped reading:
//! that reader gets the number of bytes it missed ([`TerminalEvent::Skipped`]).

use serde::{Deserialize, Serialize};

/// Bytes of output that are kept of each terminal.
pub const SCROLL_BACK: usize = 256 * 1024;

/// Terminals of one sandbox, including those whose program has ended and that are still kept.
pub const MAX_TERMINALS: usize = 16;

/// The most that one [`crate::guest::Call::TerminalInput`] may carry.
pub const MAX_TERMINAL_INPUT: usize = 64 * 1024;

/// What runs in a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSpec {
    /// Chosen by the host.
    pub terminal: String,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: String,
    pub size: TerminalSize,
}

/// In characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        TerminalSize { rows: 24, cols: 80 }
    }
}

/// The state of a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalInfo {
    pub terminal: String,
    pub argv: Vec<String>,
    pub size: TerminalSize,
    /// How many connections follow it.
    pub attached: u32,
    /// The positions between which output is available.
    pub oldest: u64,
    pub newest: u64,
    /// How its program ended, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<TerminalEnd>,
}

/// How the program of a terminal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalEnd {
    /// As a shell would report it.
    pub exit_code: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// Something that happened at a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TerminalEvent {
    /// The body was printed, beginning at position `at`.
    Output { at: u64 },
    /// So many bytes were printed and are not kept any more.
    Skipped { bytes: u64 },
    /// The program has ended; nothing follows.
    Ended(TerminalEnd),
}
