//! Work with files that takes a while: the guest has it done by a copy of itself, so that neither
//! time nor memory are the guest's own.

use serde::{Deserialize, Serialize};

/// Jobs of one sandbox, those included that have ended and were not asked about.
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

/// What came of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReport {
    /// Files, directories and links that were made or packed.
    pub entries: u64,
    /// Bytes of the files among them.
    pub bytes: u64,
    /// Pipes, sockets and devices, which are left out.
    pub skipped: u64,
}
