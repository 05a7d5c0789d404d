//! Makes sandboxes and talks to their guests.
//!
//! A [`Runtime`] makes them: [`native`] from namespaces on this machine. A [`Sandbox`] is what one
//! gets from any of them, [`link`] the conversation with the guest inside.

#![forbid(unsafe_code)]

pub mod docker;
mod error;
mod files;
mod held;
mod jobs;
pub mod kernels;
pub mod languages;
pub mod link;
pub mod native;
mod relay;
mod runtime;
mod sandbox;
pub mod selftest;
mod spec;
mod stream;
mod terminal;

pub use error::RuntimeError;
pub use files::{FileChanges, OpenedFile, Removed, Temporary, Wanted};
pub use jobs::Job;
pub use relay::{Relay, RelayStream};
pub use runtime::Runtime;
pub use sandbox::{Handle, KernelStart, Sandbox};
pub use spec::{DataMount, Limits, SandboxSpec, USER_ID, paths};
pub use terminal::TerminalOutput;
