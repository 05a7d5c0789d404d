//! Artifacts of the sessions and runs of a tenant.

use super::{Engine, Principal};
use crate::artifacts::{ArtifactFilter, ArtifactRow};
use crate::audit::AuditEntry;
use crate::error::EngineError;
use crate::store::Page;

impl Engine {
    /// Artifacts of this tenant, the newest first.
    pub async fn artifacts(
        &self,
        who: &Principal,
        filter: ArtifactFilter,
    ) -> Result<Page<ArtifactRow>, EngineError> {
        self.state
            .artifact_store
            .list(ArtifactFilter { tenant: who.tenant.clone(), ..filter })
            .await
    }

    pub async fn artifact(&self, who: &Principal, id: &str) -> Result<ArtifactRow, EngineError> {
        let found = self.state.artifact_store.find(id).await?;
        found
            .filter(|row| row.tenant == who.tenant)
            .ok_or_else(|| EngineError::NoArtifact(id.to_owned()))
    }

    /// Removes an artifact. Its content is deleted when no other artifact of the tenant has the
    /// same content.
    pub async fn remove_artifact(&self, who: &Principal, id: &str) -> Result<(), EngineError> {
        let removed = self.state.artifact_store.remove(&who.tenant, id).await?;
        let outcome = if removed { "removed" } else { "not found" };
        let entry = AuditEntry {
            action: "artifact.remove",
            outcome,
            detail: Some(id),
            ..AuditEntry::default()
        };
        self.audit.note(who, &entry);
        if removed { Ok(()) } else { Err(EngineError::NoArtifact(id.to_owned())) }
    }
}
