//! Artifacts: which files were taken from sandboxes, and the totals for quotas.

use std::collections::HashMap;
use std::fmt::Debug;
use std::ops::Add;

use async_trait::async_trait;

use crate::{Digest, Page, StoreError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactRow {
    pub id: String,
    pub tenant: String,
    /// The id of the session, or of the run.
    pub session: String,
    pub exec: String,
    pub name: String,
    /// In the sandbox.
    pub path: String,
    pub size: u64,
    pub mime: String,
    pub sha256: Digest,
    pub created_ms: i64,
}

/// Which artifacts to list, the newest first.
#[derive(Debug, Clone, Default)]
pub struct ArtifactFilter {
    pub tenant: String,
    pub session: Option<String>,
    pub exec: Option<String>,
    /// Only those taken before this one.
    pub before: Option<String>,
    pub limit: u32,
}

/// The number of artifacts, and their total size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArtifactTotal {
    pub count: u64,
    pub bytes: u64,
}

impl Add for ArtifactTotal {
    type Output = ArtifactTotal;

    fn add(self, more: ArtifactTotal) -> ArtifactTotal {
        ArtifactTotal {
            count: self.count.saturating_add(more.count),
            bytes: self.bytes.saturating_add(more.bytes),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArtifactQuotas {
    /// The most bytes of one artifact.
    pub file_bytes: u64,
    pub session: ArtifactQuota,
    pub tenant: ArtifactQuota,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArtifactQuota {
    pub count: u64,
    pub bytes: u64,
}

impl ArtifactQuota {
    /// The reason if an artifact of this size may not be added to `there`; otherwise `None`.
    #[must_use]
    pub fn refuses(self, whose: &str, there: ArtifactTotal, size: u64) -> Option<String> {
        if there.count >= self.count {
            return Some(format!("this {whose} has {} artifacts, which is the most", self.count));
        }
        (there.bytes.saturating_add(size) > self.bytes)
            .then(|| format!("the artifacts of this {whose} would exceed {} bytes", self.bytes))
    }
}

/// The list of all artifacts. Their content is stored elsewhere, before they are added here.
#[async_trait]
pub trait ArtifactCatalog: Debug + Send + Sync {
    /// Adds artifacts as far as the quotas allow, and returns for each one the reason if it was not
    /// added. An artifact that exists already is not changed. Survives a power cut.
    ///
    /// Quotas are exact only here, because several sessions of a tenant may add artifacts at once.
    async fn add(
        &self,
        rows: Vec<ArtifactRow>,
        quotas: ArtifactQuotas,
    ) -> Result<Vec<Option<String>>, StoreError>;

    /// The totals of the tenant, and of this session.
    async fn totals(
        &self,
        tenant: &str,
        session: &str,
    ) -> Result<(ArtifactTotal, ArtifactTotal), StoreError>;

    /// The artifacts of an execution, in the order of their paths.
    async fn of_exec(&self, session: &str, exec: &str) -> Result<Vec<ArtifactRow>, StoreError>;

    /// The newest content at each path of a session.
    async fn latest(&self, session: &str) -> Result<HashMap<String, Digest>, StoreError>;

    /// For each of these removed artifacts, whether another one of the same session has the same
    /// path and content.
    async fn have_twins(&self, rows: Vec<ArtifactRow>) -> Result<Vec<bool>, StoreError>;

    async fn list(&self, filter: ArtifactFilter) -> Result<Page<ArtifactRow>, StoreError>;

    async fn find(&self, id: &str) -> Result<Option<ArtifactRow>, StoreError>;

    /// Removes and returns an artifact of this tenant. Survives a power cut.
    async fn remove(&self, tenant: &str, id: &str) -> Result<Option<ArtifactRow>, StoreError>;

    /// Removes and returns the oldest that were taken before this time, at most `limit`.
    async fn remove_before(
        &self,
        created_ms: i64,
        limit: u32,
    ) -> Result<Vec<ArtifactRow>, StoreError>;

    /// All artifacts of all tenants, the oldest first.
    async fn all(&self) -> Result<Vec<ArtifactRow>, StoreError>;

    /// The tenants that have artifacts.
    async fn tenants(&self) -> Result<Vec<String>, StoreError>;

    /// For each of these contents, whether an artifact of the tenant has it.
    async fn referenced(&self, tenant: &str, contents: &[Digest]) -> Result<Vec<bool>, StoreError>;

    /// Completes waiting writes and closes the catalog.
    async fn close(&self);
}
