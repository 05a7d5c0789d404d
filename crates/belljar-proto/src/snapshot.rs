//! Messages between the host and a kernel that saves its memory as a snapshot, or restores one.
//!
//! Each packet of the socket ([`crate::guest::Answer::SnapshotSocket`]) is one JSON object, with descriptors. User
//! code controls the kernel, so its messages are not trusted.

use serde::{Deserialize, Serialize};

use crate::zygote::Warm;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum SnapshotCall {
    /// Write the snapshot into the pipe that comes with this. Further descriptors, all for reading: the file that the
    /// host puts pages into (with `share`), the index of an earlier snapshot (with `before`), and the files of `layers`,
    /// in their order.
    Freeze {
        layer: u64,
        /// Map large pieces from the new layer after [`SnapshotCall::Kept`].
        share: bool,
        before: bool,
        layers: Vec<u64>,
        /// Leave out what cannot be saved.
        force: bool,
    },
    /// The host has written everything from the pipe to the files. A packet without an answer.
    Kept,
    /// Become the kernel of a snapshot. With it come the index and the files of `layers`. The restored kernel answers;
    /// if restoring fails, the present kernel does.
    Thaw { layers: Vec<u64> },
    /// To an interpreter that becomes a zygote: import these modules, then write a snapshot that other kernels begin
    /// with into the pipe that comes with this.
    Preload { layer: u64, modules: Vec<String> },
    /// To a kernel that began with a zygote's memory: its environment and working directory.
    Begin { env: serde_json::Map<String, serde_json::Value>, cwd: String },
}

/// The packet for the loader, which reads no JSON: the numbers of the layers. With it come the files of the index and
/// the layers.
#[must_use]
pub fn loader_packet(layers: &[u64]) -> Vec<u8> {
    layers.iter().flat_map(|id| id.to_ne_bytes()).collect()
}

/// The kernel's answer: bounded in number and length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReply {
    /// Why it was refused: what could not be saved. Empty on success.
    #[serde(default)]
    pub refused: Vec<String>,
    /// The kernel as a whole cannot be saved, not only parts that could be left out: with `force` its variables would
    /// be lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub entirely: bool,
    /// What was left out because of `force`.
    #[serde(default)]
    pub lost: Vec<String>,
    /// Bytes of pages in the new layer.
    #[serde(default)]
    pub bytes: u64,
    /// The layers that the index refers to.
    #[serde(default)]
    pub layers: Vec<u64>,
    /// The answer comes from a restored kernel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub thawed: bool,
    /// From an interpreter that became a zygote: what it has loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<Warm>,
}
