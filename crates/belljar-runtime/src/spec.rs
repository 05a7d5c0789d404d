//! The specification of a sandbox.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::volume::{VolumeMount, VolumePlace};

/// Paths inside every sandbox.
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
    /// A directory of the host that code may change, if the sandbox has one; otherwise another name of `/session`.
    pub const WORKSPACE: &str = "/workspace";
    /// Where it is mounted: `/workspace` is a link to this path, because a link cannot be a mount point.
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
    /// Its image; none: the default of the backend.
    pub image: Option<String>,
    pub limits: Limits,
    /// Added to the environment of everything inside.
    pub env: Vec<(String, String)>,
    /// A directory of the host to mount at `/data`, read-only.
    pub data: Option<DataMount>,
    /// The files of `/session`, if they outlive the sandbox. No other process may write there; the sandbox's user becomes the
    /// owner of the files.
    pub session_files: Option<VolumePlace>,
    /// Volumes to mount below `/volumes`. Their names are plain.
    #[serde(default)]
    pub volumes: Vec<VolumeMount>,
    /// A directory of the host to mount at `/workspace`, writable. New files belong to the owner of the directory. Its path has
    /// no links.
    #[serde(default)]
    pub workspace: Option<PathBuf>,
    /// For how many seconds the sandbox lives without a connected server. 0 for ephemeral runs, which must end with the process
    /// that started them.
    pub alone_for_s: u64,
    /// Labels for people, if the backend supports labels.
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
    /// The working directory of everything inside.
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
    /// With less, not even an interpreter starts.
    pub const MIN_MEMORY: u64 = 16 << 20;

    /// Thousandths of a processor; `None` if the number is not allowed.
    #[must_use]
    pub fn millicpus_of(cpus: f64) -> Option<u32> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        (0.01..=1024.0).contains(&cpus).then(|| (cpus * 1000.0).round() as u32)
    }

    /// The size of the tmpfs. Its files are memory: with a tmpfs as large as the memory limit, code would be killed instead of
    /// seeing "no space left on device".
    #[must_use]
    pub fn effective_tmpfs(&self) -> u64 {
        self.tmpfs.min(self.memory / 4 * 3)
    }

    /// The least memory for a tmpfs of this size, in whole MiB.
    #[must_use]
    pub fn memory_for_tmpfs(tmpfs: u64) -> u64 {
        tmpfs.div_ceil(3).saturating_mul(4).checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX)
    }

    /// Why a tmpfs of this size is not possible with this memory; `None` if it is.
    #[must_use]
    pub fn why_no_tmpfs(tmpfs: u64, memory: u64) -> Option<String> {
        let needed = Limits::memory_for_tmpfs(tmpfs);
        (memory < needed).then(|| {
            format!(
                "{} MiB of files in RAM need {} MiB of memory, because files may use at most three \
                 quarters of it; the limit is {} MiB",
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
