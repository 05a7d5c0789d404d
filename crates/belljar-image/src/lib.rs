//! Images of sandboxes: stores, unpacks, imports, pulls and builds them.
//!
//! ```text
//!   pull (registry) ──┐
//!   import (archive) ─┼─▶ blobs, by digest ─▶ unpack ─▶ root file system, by its layers ─▶ sandboxes
//!   build (spec) ─────┘         └─▶ the same layers as a Docker image
//! ```
//!
//! [`ImageStore`] keeps images below one directory and survives a crash at any point. [`unpack`]
//! trusts no archive.

#![forbid(unsafe_code)]

mod archive;
mod build;
mod digest;
mod error;
mod import;
mod layer;
mod limits;
mod name;
mod oci;
mod pack;
mod progress;
mod pull;
mod skeleton;
mod store;
mod unpack;

pub use build::{
    BuildOptions, DEFAULT_SPEC, Loaded, Spec, StepOrder, build, load_into_docker, perform_step,
};
pub use digest::OciDigest;
pub use error::ImageError;
pub use import::import;
pub use limits::UnpackLimits;
pub use name::{BadName, HOST, Name};
pub use oci::{LABEL_IMAGE, LABEL_PRELOAD};
pub use progress::{Progress, Silent};
pub use pull::{Login, PullOptions, pull};
pub use skeleton::ETC_FILES;
pub use store::{Image, ImageStore, InUse, Writer};
pub use unpack::Unpacked;

/// Tests measure how much memory the parsers of untrusted input use.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: belljar_fuzz::Counting = belljar_fuzz::Counting;
