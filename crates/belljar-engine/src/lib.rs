//! What sandboxes are used for: [`session`]s that remember and survive the server, ephemeral
//! [`run`]s, a [`pool`] of warm ones, and what must not be lost of all that, in the [`store`].
//! Serves no HTTP but to sandboxes, whose way out is the [`network`] proxy, and knows nothing of
//! Linux; it asks others by HTTP to fetch [`datasets`].

#![forbid(unsafe_code)]

pub mod admission;
pub mod artifacts;
pub mod audit;
mod blocking_writer;
mod checks;
pub mod clock;
pub mod datasets;
mod engine;
mod error;
pub mod exec;
pub mod keys;
mod metrics;
pub mod network;
pub mod pool;
mod record;
pub mod run;
pub mod session;
pub mod shares;
pub mod size;
mod snapshots;
pub mod spec;
pub mod text;
pub mod tickets;
mod uploads;
mod usage;
pub mod volumes;
pub mod workspaces;

pub use belljar_network::Dns;
pub use belljar_store as store;
pub use engine::{
    Accepted, ArchiveDownload, ArchiveUpload, Attached, Beyond, CheckedRun, Checkpoint, Created,
    DEFAULT_TENANT, Engine, EngineConfig, ExecInfo, FileUpload, How, MAX_FORKS, Principal, RunAsk,
    SessionInfo, Shown, SpillPolicy, TerminalAsk, TerminalControl, Upload, Watching,
};
pub use error::{EngineError, in_full};
pub use record::DiskConfig;
pub use snapshots::SnapshotConfig;

/// Locks what can be used again after a panic: nothing here panics half-way through a change.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// An id that nobody has had, and nobody guesses: `prefix_` and 128 random bits.
#[must_use]
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", belljar_sys::process::random_name())
}

/// Tests measure how much memory parsers of hostile input take.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: belljar_fuzz::Counting = belljar_fuzz::Counting;
