//! Datasets: input data for the code in sessions.
//!
//! ```text
//!   upload ──┐                                       ┌── guest makes a hidden file, we write
//!            ├──▶ Cache: by content, per tenant ──▶ stage ──▶ /session/data/<name>, at once
//!   source ──┘                                       └── a row: PENDING, LOADED or FAILED
//! ```
//!
//! Content is first stored in the cache, so that the next session gets it without a transfer. It becomes visible in
//! the session in one step, when it is complete. [`source`] fetches datasets from other servers;
//! [`describe`](describe()) detects format, columns and rows of a file.

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

/// A dataset as the API shows it.
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
    /// Whether its content came from the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<bool>,
}

/// The datasets of a session.
#[derive(Debug, Clone, Default)]
pub struct DatasetListing {
    pub datasets: Vec<DatasetInfo>,
    /// How many entries are not listed: files beyond the limit, and entries that are not regular files.
    pub more: u64,
}
