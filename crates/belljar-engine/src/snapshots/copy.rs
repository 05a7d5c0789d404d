//! Copies snapshots of a server that does not run to S3, for the move of a server to several machines.

use std::collections::HashSet;

use serde_json::Value;

use super::{RemoteSnapshots, Resume, SnapshotConfig, SnapshotPointer, SnapshotStore};
use crate::error::EngineError;
use crate::spec::Checkpoints;

/// The snapshots of a server that does not run, and S3.
#[derive(Debug)]
pub struct SnapshotCopier {
    store: SnapshotStore,
    remote: RemoteSnapshots,
    /// Objects that were read back already. Sessions share some.
    intact: HashSet<String>,
}

/// A snapshot that S3 has.
#[derive(Debug, Clone, PartialEq)]
pub struct CopiedSnapshot {
    /// For the row of the session.
    pub pointer: Value,
    pub files: u64,
    pub bytes: u64,
}

impl SnapshotCopier {
    /// Opens the snapshots of the server with this name. The configuration must have a `remote`, with the class of
    /// nodes that can restore the memory of this machine's snapshots.
    pub fn open(config: SnapshotConfig, server: &str) -> Result<SnapshotCopier, EngineError> {
        let directory = config.directory.join(server);
        let config = SnapshotConfig { directory: directory.clone(), ..config };
        let store = SnapshotStore::open(config)
            .map_err(|cause| EngineError::Directory { path: directory, cause })?;
        let remote = store.remote().cloned();
        let remote = remote.ok_or_else(|| EngineError::Internal("there is no S3".into()))?;
        Ok(SnapshotCopier { store, remote, intact: HashSet::new() })
    }

    /// Sends the snapshot and the checkpoints of a sleeping session, reads them back and compares the hashes. Returns `None` if the session has
    /// no snapshot. `execs` is the number of its last execution.
    pub async fn copy(
        &mut self,
        session: &str,
        execs: u64,
    ) -> Result<Option<CopiedSnapshot>, EngineError> {
        const FIRST: i64 = 1;
        let snapshots = self.store.of_session(session);
        let Some(manifest) = snapshots.last().await else { return Ok(None) };
        let sent = self.remote.upload(session, FIRST, &snapshots, &manifest).await?;
        let all = Checkpoints { max: u64::MAX, max_bytes: u64::MAX };
        let sent = self.remote.add_checkpoints(&sent, None, &snapshots, all).await?;
        let (files, bytes) = self.remote.read_back(&sent, &mut self.intact).await?;
        let resume =
            Resume { clean: true, execs, taken_ms: manifest.made_ms, notes: manifest.lost.clone() };
        Ok(Some(CopiedSnapshot {
            pointer: SnapshotPointer::new(sent, &resume).value().clone(),
            files,
            bytes,
        }))
    }

    /// Removes what earlier attempts left in S3. Call it when the row of the session has the pointer.
    pub async fn remove_earlier(&self, copied: &CopiedSnapshot) -> Result<(), EngineError> {
        self.remote.prune(&copied.pointer).await
    }
}
