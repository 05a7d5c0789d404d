//! What a sandbox is doing while nothing is asked of it, and which of its files are kept when it
//! goes to sleep or branches.

use serde::{Deserialize, Serialize};

use crate::exec::Language;

/// Where the files of a sandbox lie that are its own, with their names in an archive of them.
pub const PLACES: [(&str, &str); 3] =
    [("session", "/session"), ("tmp", "/tmp"), ("shm", "/dev/shm")];

/// Processes that a [`QuiescenceReport`] names.
pub const MAX_NAMED: usize = 20;

/// What goes on in a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuiescenceReport {
    /// Kernels that are alive.
    pub kernels: Vec<Language>,
    /// What goes on besides: processes that code has left behind, terminals, copies. For people;
    /// at most [`MAX_NAMED`].
    pub busy: Vec<String>,
    /// Kernels that died and whose owner has not been told yet, with what became of each: whoever puts the sandbox aside
    /// has to tell it afterwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<(Language, String)>,
    /// One number for all files in [`PLACES`]; none if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
}
