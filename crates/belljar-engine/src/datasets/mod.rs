//! Datasets: what code in a session works on.
//!
//! ```text
//!   upload ──┐                                       ┌── guest makes a hidden file, we write
//!            ├──▶ Cache: by content, per tenant ──▶ stage ──▶ /session/data/<name>, at once
//!   source ──┘                                       └── a row: PENDING, LOADED or FAILED
//! ```
//!
//! Content arrives in the cache first, so that the next session has it without a transfer. It
//! becomes visible inside in one step, when all of it is there. [`source`] is where the server
//! itself fetches from; [`describe`](describe()) tells what a file is.

mod cache;
mod describe;
mod name;
pub mod source;

use serde::Serialize;

pub(crate) use cache::{Arriving, Cache, Content, Known};
pub use describe::{Description, describe};
pub use name::{BadName, DatasetName};

pub use crate::artifacts::{Exported, Exports};
use crate::store::Digest;
pub use crate::store::{DatasetRow, DatasetStatus};

/// A dataset, as it is told of.
#[derive(Debug, Clone, Serialize)]
pub struct DatasetInfo {
    pub name: String,
    /// In the sandbox.
    pub path: String,
    pub status: DatasetStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub description: Option<Description>,
    /// Whether its content was there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<bool>,
}

/// What there is in a session.
#[derive(Debug, Clone, Default)]
pub struct DatasetListing {
    pub datasets: Vec<DatasetInfo>,
    /// How many more things are there that are not listed: files beyond the bound, and what is no
    /// plain file.
    pub more: u64,
}
