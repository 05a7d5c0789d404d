//! Datasets that were requested in sessions, and whether they arrived.

use async_trait::async_trait;
use serde::Serialize;

use crate::{Digest, StoreError};

/// The status of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum DatasetStatus {
    Pending,
    Loaded,
    Failed,
}

impl DatasetStatus {
    pub const ALL: [DatasetStatus; 3] =
        [DatasetStatus::Pending, DatasetStatus::Loaded, DatasetStatus::Failed];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DatasetStatus::Pending => "PENDING",
            DatasetStatus::Loaded => "LOADED",
            DatasetStatus::Failed => "FAILED",
        }
    }
}

/// A dataset that was requested in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRow {
    pub session: String,
    /// Below `/session/data`.
    pub name: String,
    pub status: DatasetStatus,
    /// Why it failed.
    pub reason: Option<String>,
    /// Its id at the source, if it comes from one.
    pub source: Option<String>,
    pub sha256: Option<Digest>,
    pub size: Option<u64>,
    /// When its status changed. For a loaded dataset, it is the modification time of its file, by
    /// which the file is recognised.
    pub updated_ms: i64,
}

#[async_trait]
pub trait DatasetRecords {
    /// Adds a dataset, or replaces the one with this name in the same session.
    async fn put_dataset(&self, row: DatasetRow) -> Result<(), StoreError>;

    /// The datasets of a session, by name.
    async fn datasets(&self, session: &str) -> Result<Vec<DatasetRow>, StoreError>;

    /// The dataset with this id at its source that was requested last in this session.
    async fn dataset_of_source(
        &self,
        session: &str,
        source: &str,
    ) -> Result<Option<DatasetRow>, StoreError>;

    async fn remove_dataset(&self, session: &str, name: &str) -> Result<(), StoreError>;

    /// Marks all pending datasets as failed: the server that was loading them has ended.
    async fn fail_pending_datasets(
        &self,
        reason: &'static str,
        now_ms: i64,
    ) -> Result<(), StoreError>;
}
