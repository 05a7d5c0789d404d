//! Between the host and a kernel: a kernel is written into files, or made of them.
//!
//! One JSON object in each packet of a [`crate::guest::Answer::Line`], with the files beside it. The kernel is the
//! user's, and so is everything that it says.

use serde::{Deserialize, Serialize};

use crate::zygote::Warm;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum ToLine {
    /// Write yourself down, into the pipe that comes with it. After it come, all for reading, the file that pages are
    /// put into (with `share`), the earlier index if there is one (`before`), and the files of `layers`, in their order.
    Freeze {
        layer: u64,
        /// Large pieces are to be mapped from the new layer when [`ToLine::Kept`] has come.
        share: bool,
        before: bool,
        layers: Vec<u64>,
        /// What cannot be kept is left out.
        force: bool,
    },
    /// Everything that came through the pipe is in the files. It stands in a packet of its own and is not answered.
    Kept,
    /// Become what was written. With it come the index and the files of `layers`. The answer is that
    /// of the kernel which was made, or of the one which could not.
    Thaw { layers: Vec<u64> },
    /// To a preloaded interpreter: import these modules, then write yourself down for other kernels to begin with.
    /// With it comes the pipe to write into.
    Preload { layer: u64, modules: Vec<String> },
    /// To a kernel that begins with such memory: its own environment and working directory.
    Begin { env: serde_json::Map<String, serde_json::Value>, cwd: String },
}

/// The packet for the loader, which reads no JSON: the numbers of the layers. With it come the index and the layers.
#[must_use]
pub fn loader_packet(layers: &[u64]) -> Vec<u8> {
    layers.iter().flat_map(|id| id.to_ne_bytes()).collect()
}

/// What came of it, as the kernel tells: bounded in number and length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineReport {
    /// Why it was not done: what could not be kept. Empty if it was.
    #[serde(default)]
    pub refused: Vec<String>,
    /// What was refused is the kernel as a whole, and not parts of it that could be left out: with `force` its
    /// variables would be lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub entirely: bool,
    /// What was left out because it was told to go on without.
    #[serde(default)]
    pub lost: Vec<String>,
    /// Bytes of pages in the new layer.
    #[serde(default)]
    pub bytes: u64,
    /// The layers that the index speaks of.
    #[serde(default)]
    pub layers: Vec<u64>,
    /// Said by a kernel that was made of files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub thawed: bool,
    /// Said by a preloaded interpreter: what it has loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<Warm>,
}
