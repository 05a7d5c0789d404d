//! Checkpoints move with their session: each new pointer to the snapshot in S3 has them, and a node fetches one when the
//! session is restored to it.

use super::Driver;
use crate::error::EngineError;
use crate::snapshots::SnapshotManifest;

impl Driver {
    /// Fetches a checkpoint that another node took. `None` if there is none in S3.
    pub(super) async fn fetch_checkpoint(
        &self,
        exec: &str,
    ) -> Result<Option<SnapshotManifest>, EngineError> {
        let store = &self.state.snapshot_store;
        let (Some(remote), Some((cluster, _))) = (store.remote(), self.state.cluster()) else {
            return Ok(None);
        };
        let id = &self.session.id;
        let Some(pointer) = cluster.snapshot_of(id).await? else { return Ok(None) };
        let fetched = remote.fetch_checkpoint(&pointer, exec, &self.snapshots()).await?;
        store.count(id, &self.session.tenant).await;
        Ok(fetched)
    }
}
