//! What one can ask of a sandbox.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::volume::{VolumeMount, VolumePlace};

/// Places inside every sandbox.
pub mod paths {
    /// Working directory and home, writable.
    pub const SESSION: &str = "/session";
    pub use belljar_proto::exec::ARTIFACTS;
    /// The name of the artifact directory in an ephemeral run; `/work` is a link to `/session`.
    pub const RUN_ARTIFACTS: &str = "/work/artifacts";
    /// Staged datasets and what `save()` wrote.
    pub const SESSION_DATA: &str = "/session/data";
    /// Datasets of the host, read-only.
    pub const DATA: &str = "/data";
    /// A directory of the host that code may change, where there is one; else another name of `/session`.
    pub const WORKSPACE: &str = "/workspace";
    /// Where that is mounted: `/workspace` leads here, and a link cannot be mounted on.
    pub const WORKSPACE_MOUNT: &str = "/run/workspace";
    /// Volumes, each below its name.
    pub const VOLUMES: &str = "/volumes";
    /// Where the kernels' own scripts are mounted.
    pub const KERNELS: &str = "/opt/belljar/kernels";
    /// Where the image's Python environment is mounted.
    pub const PYTHON: &str = "/opt/belljar/python";
    /// Where the environment with browser-use is mounted, if there is one.
    pub const BROWSER_USE: &str = "/opt/belljar/browser-use";
    /// Where the interpreter behind it is mounted, unless it is part of `/usr`.
    pub const PYTHON_BASE: &str = "/opt/belljar/base";
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// What it is made from; none: what the runtime makes them from by default.
    pub image: Option<String>,
    pub limits: Limits,
    /// Added to the environment of everything inside.
    pub env: Vec<(String, String)>,
    /// A directory of the host to show at `/data`.
    pub data: Option<DataMount>,
    /// What is `/session`, where that is to outlive the sandbox. Nobody else may write there; its
    /// contents are given to the sandbox's user.
    pub session_files: Option<VolumePlace>,
    /// What to show below `/volumes`, with names that are plain.
    #[serde(default)]
    pub volumes: Vec<VolumeMount>,
    /// A directory of the host to be `/workspace`, writable: what code makes there belongs to whom the
    /// directory belongs to. Without links in its path.
    #[serde(default)]
    pub workspace: Option<PathBuf>,
    /// For how many seconds the sandbox goes on without anybody connected to it. An ephemeral run
    /// does not at all (0): it must end with the process that asked for it, however that ends.
    pub alone_for_s: u64,
    /// By which people find it, where what it is made of can carry labels.
    pub labels: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataMount {
    pub host_path: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory, swap included; files in a tmpfs count.
    pub memory: u64,
    /// Thousandths of a processor.
    pub millicpus: u32,
    /// Processes and threads, ours included.
    pub pids: u64,
    /// Bytes of files in `/session`, `/tmp` and `/dev/shm` together, where they are in memory.
    pub tmpfs: u64,
}

impl SandboxSpec {
    /// Where everything inside starts.
    #[must_use]
    pub fn working_directory(&self) -> &'static str {
        if self.workspace.is_some() { paths::WORKSPACE } else { paths::SESSION }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits { memory: 512 << 20, millicpus: 1000, pids: 256, tmpfs: 1024 << 20 }
    }
}

impl Limits {
    /// Below this not even an interpreter starts.
    pub const MIN_MEMORY: u64 = 16 << 20;

    /// Processors as thousandths, if that many can be asked for.
    #[must_use]
    pub fn millicpus_of(cpus: f64) -> Option<u32> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        (0.01..=1024.0).contains(&cpus).then(|| (cpus * 1000.0).round() as u32)
    }

    /// What the tmpfs may really hold. Its files are memory: a tmpfs as large as the memory limit
    /// would get code killed where it should see "no space left on device".
    #[must_use]
    pub fn effective_tmpfs(&self) -> u64 {
        self.tmpfs.min(self.memory / 4 * 3)
    }

    /// The least memory of a sandbox whose tmpfs really holds this much, in whole MiB.
    #[must_use]
    pub fn memory_for_tmpfs(tmpfs: u64) -> u64 {
        tmpfs.div_ceil(3).saturating_mul(4).checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX)
    }

    /// Why a tmpfs of this size cannot be had with this memory; nothing, if it can.
    #[must_use]
    pub fn why_no_tmpfs(tmpfs: u64, memory: u64) -> Option<String> {
        let needed = Limits::memory_for_tmpfs(tmpfs);
        (memory < needed).then(|| {
            format!(
                "{} MiB of files in RAM need {} MiB of memory, of which they may take three \
                 quarters; {} MiB were given",
                tmpfs.div_ceil(1 << 20),
                needed >> 20,
                memory >> 20
            )
        })
    }

    /// One inode for every 4 KiB and a floor that lets a small sandbox unpack a package. Inodes
    /// are kernel memory.
    #[must_use]
    pub fn tmpfs_inodes(&self) -> u64 {
        (self.effective_tmpfs() / 4096).max(16 * 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_a_tmpfs_is_enough_and_hardly_more() {
        for tmpfs in [1, 1 << 20, (384 << 20) - 1, 384 << 20, 1024 << 20, 5_000_000_001] {
            let memory = Limits::memory_for_tmpfs(tmpfs);
            let limits = Limits { memory, tmpfs, ..Limits::default() };
            assert_eq!(limits.effective_tmpfs(), tmpfs);
            assert_eq!(Limits::why_no_tmpfs(tmpfs, memory), None);
            assert!(Limits::why_no_tmpfs(tmpfs, memory - 1).is_some());
            assert!(memory - tmpfs.div_ceil(3) * 4 < 1 << 20, "{tmpfs}: {memory}");
        }
        assert_eq!(Limits::memory_for_tmpfs(u64::MAX), u64::MAX);
    }
}
