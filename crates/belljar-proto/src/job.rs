//! Copies and archives. The guest makes them in a fork of itself, so that they use neither its time nor its
//! memory.

use serde::{Deserialize, Serialize};

/// Jobs of one sandbox, including those that have ended and whose result was not fetched.
pub const MAX_JOBS: usize = 16;

/// How deep a tree is copied, packed or unpacked.
pub const MAX_JOB_DEPTH: u32 = 128;

/// Entries of one copy or archive.
pub const MAX_JOB_ENTRIES: u64 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArchiveFormat {
    Tar,
    TarGz,
    Zip,
}

/// The result of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReport {
    /// Files, directories and links that were made or packed.
    pub entries: u64,
    /// Bytes of the files among them.
    pub bytes: u64,
    /// Pipes, sockets and devices, which are left out.
    pub skipped: u64,
}
