//! What runs in a sandbox without a request of the host, and which directories a snapshot keeps.

use serde::{Deserialize, Serialize};

use crate::exec::Language;

/// The directories with a sandbox's own files, each with its name in the archive of a snapshot.
pub const KEPT_DIRECTORIES: [(&str, &str); 3] =
    [("session", "/session"), ("tmp", "/tmp"), ("shm", "/dev/shm")];

/// Processes that a [`QuiescenceReport`] names.
pub const MAX_NAMED: usize = 20;

/// What is alive in a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuiescenceReport {
    /// Kernels that are alive.
    pub kernels: Vec<Language>,
    /// What else is alive: processes that code left behind, terminals, jobs. Text for people; at most
    /// [`MAX_NAMED`].
    pub busy: Vec<String>,
    /// Kernels whose death no result has reported yet, each with the reason. A host that hibernates the session must
    /// report them after it wakes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<(Language, String)>,
    /// A fingerprint of all files in [`KEPT_DIRECTORIES`]; none if there are no files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
}
