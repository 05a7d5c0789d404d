//! The engine: [`session`]s that keep their state and survive the server, ephemeral [`run`]s, and a [`pool`] of warm
//! sandboxes. Records are in the [`store`]. This crate serves no HTTP API and makes no system calls of its own.

#![forbid(unsafe_code)]

pub mod admission;
pub mod artifacts;
pub mod audit;
mod blocking_writer;
mod checks;
pub mod clock;
mod config;
pub mod datasets;
mod engine;
mod error;
pub mod exec;
pub mod keys;
mod metrics;
pub mod network;
pub mod objects;
pub mod pool;
mod principal;
pub mod rules;
pub mod run;
pub mod session;
mod session_directory;
pub mod shared_secrets;
pub mod shares;
pub mod size;
mod snapshots;
pub mod spec;
mod state;
mod tenant_dir;
pub mod text;
pub mod tickets;
mod uploads;
mod usage;
pub mod volumes;
pub mod workspaces;

pub use belljar_network::Dns;
pub use belljar_store as store;
pub use config::{EngineConfig, NodeConfig, SpillPolicy};
pub use engine::{
    Accepted, ArchiveDownload, ArchiveUpload, AttachedTerminal, Beyond, CheckedRun, Checkpoint,
    Created, CreatedHow, Drained, Engine, ExecInfo, FileUpload, MAX_FORKS, RunAsk, SessionInfo,
    TerminalAsk, TerminalControl, TerminalUpdate, Upload, Watching,
};
pub use error::{EngineError, in_full};
pub use principal::{DEFAULT_TENANT, Principal};
pub use session_directory::DiskConfig;
pub use snapshots::{CopiedSnapshot, RemoteSnapshotConfig, SnapshotConfig, SnapshotCopier};

/// Locks a mutex, also after a panic: no code here panics in the middle of a change.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A new id that cannot be guessed: `prefix_` and 128 random bits.
#[must_use]
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", belljar_sys::process::random_name())
}

/// Tests measure how much memory parsers of hostile input take.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: belljar_fuzz::Counting = belljar_fuzz::Counting;
