//! Makes sandboxes and talks to their guests.
//!
//! [`native`] builds them from namespaces on this machine; a [`Sandbox`] is what one gets,
//! [`link`] the conversation with the guest inside. There is one backend so far; the trait that
//! several share comes with the second one.

#![forbid(unsafe_code)]

mod error;
mod files;
pub mod kernels;
pub mod link;
pub mod native;
mod relay;
mod sandbox;
mod spec;

pub use error::RuntimeError;
pub use files::{OpenedFile, Removed, Temporary};
pub use relay::{Relay, RelayStream};
pub use sandbox::{Handle, KernelStart, Sandbox};
pub use spec::{DataMount, Limits, SandboxSpec, USER_ID, paths};
