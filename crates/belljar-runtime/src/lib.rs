//! Makes sandboxes and talks to their guests.
//!
//! A [`Runtime`] makes sandboxes: [`native`] from namespaces on this machine, [`docker`] by a container engine. The trait knows
//! neither; the caller chooses. Both make a [`Sandbox`]; [`link`] is the connection to the guest inside.

#![forbid(unsafe_code)]

mod data;
pub mod docker;
mod error;
mod files;
mod guest_pipe;
mod host_files;
#[cfg(test)]
mod hostile;
mod jobs;
pub mod kernels;
pub mod languages;
pub mod link;
pub mod native;
mod orphans;
mod private;
mod quiescence;
mod relay;
#[cfg(test)]
mod relay_fuzz;
mod remote_file;
mod runtime;
mod sandbox;
pub mod selftest;
mod snapshot;
mod spec;
mod stream;
mod stream_thread;
mod terminal;
mod user;
mod volume;

pub use belljar_sys::untrusted::UntrustedFile;
pub use error::{ContainerEngineError, RuntimeError};
pub use files::{Behind, FileChanges, OpenedFile, Removed, Temporary, Wanted};
pub use guest_pipe::GuestPipe;
pub use jobs::Job;
pub use relay::{Relay, RelayStream};
pub use runtime::{Runtime, ZygoteState};
pub use sandbox::{Handle, KernelStart, Sandbox};
pub use snapshot::{
    Fixed, FreezeReport, FreezeRequest, MemoryLayer, MemorySnapshot, Meter, ThawReport,
    common_layer,
};
pub use spec::{DataMount, Limits, SandboxSpec, paths};
pub use terminal::TerminalOutput;
pub use user::USER_ID;
pub use volume::{
    MAX_SIZE as MAX_VOLUME_SIZE, MIN_SIZE as MIN_VOLUME_SIZE, VolumeKind, VolumeMount, VolumePlace,
    VolumeUsage,
};

/// Locks a mutex whose critical sections cannot panic: they only move values.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Tests measure how much memory parsers of hostile input take.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: belljar_fuzz::Counting = belljar_fuzz::Counting;
