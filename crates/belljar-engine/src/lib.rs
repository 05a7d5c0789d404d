//! What sandboxes are used for: ephemeral [`run`]s, a [`pool`] of warm ones, the [`artifacts`] code
//! leaves behind. Knows nothing of HTTP and nothing of Linux.

#![forbid(unsafe_code)]

pub mod artifacts;
mod error;
pub mod pool;
pub mod result;
pub mod run;

pub use error::EngineError;
