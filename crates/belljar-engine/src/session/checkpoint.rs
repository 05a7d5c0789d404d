//! A checkpoint: a snapshot of the session after an execution, to which it can be restored.

use std::io;
use std::sync::Arc;

use super::{SandboxLease, Session};
use crate::error::{EngineError, in_full};
use crate::exec::Exec;
use crate::snapshots::{CaptureRequest, SnapshotFiles, SnapshotManifest, capture};
use crate::spec::Checkpoints;
use crate::state::EngineState;

/// Whether there is a checkpoint, or the reason why not; `None` if the session has no checkpoints.
pub(super) type CheckpointOutcome = Option<Result<(), String>>;

/// Takes a checkpoint before clients see the end of the execution, so that they can restore it at once.
pub(super) struct CheckpointTask {
    pub(super) state: Arc<EngineState>,
    pub(super) session: Arc<Session>,
    pub(super) sandbox: SandboxLease,
    pub(super) exec: Arc<Exec>,
    pub(super) bounds: Checkpoints,
    /// An earlier server started the execution.
    pub(super) joined: bool,
    /// No execution was accepted after this one.
    pub(super) is_newest: bool,
    /// Another execution that is running.
    pub(super) running: Option<String>,
    /// The last snapshot of the kernel.
    pub(super) base: Option<u64>,
}

/// The result of a [`CheckpointTask`].
pub(super) struct CheckpointDone {
    /// The last snapshot of the kernel.
    pub(super) base: Option<u64>,
    /// Whether there is a checkpoint, or the reason why not.
    pub(super) outcome: Result<(), String>,
    /// The checkpoint, if a new one was taken.
    pub(super) taken: Option<SnapshotManifest>,
}

impl CheckpointTask {
    pub(super) async fn run(self) -> CheckpointDone {
        let not_taken = |base, outcome| CheckpointDone { base, outcome, taken: None };
        let snapshots = self.state.snapshot_store.of_session(&self.session.id);
        if self.joined && snapshots.checkpoint(&self.exec.id).await.is_some() {
            // An earlier server took the checkpoint before it was killed. By now the session may have changed.
            return not_taken(self.base, Ok(()));
        }
        if self.joined && !self.is_newest {
            return not_taken(self.base, Err("the server ended before one could be taken".into()));
        }
        match self.take().await {
            Ok(taken) => {
                CheckpointDone { base: Some(taken.id), outcome: Ok(()), taken: Some(taken) }
            }
            Err((base, EngineError::NotAtRest { reasons, .. })) => {
                not_taken(base, Err(reasons.join("; ")))
            }
            Err((base, error)) => not_taken(base, Err(in_full(&error))),
        }
    }

    async fn take(&self) -> Result<SnapshotManifest, (Option<u64>, EngineError)> {
        let captured = self.capture().await.map_err(|error| (self.base, error))?;
        let (bounds, snapshots) =
            (self.bounds, self.state.snapshot_store.of_session(&self.session.id));
        let trimmed = snapshots.run(move |files| drop_oldest(files, bounds)).await;
        let trimmed = trimmed.map_err(EngineError::KeepSnapshot);
        trimmed.map_err(|error| (Some(captured.id), error))?;
        self.state.snapshot_store.count(&self.session.id, &self.session.tenant).await;
        Ok(captured)
    }

    async fn capture(&self) -> Result<SnapshotManifest, EngineError> {
        let session = &self.session;
        if let Some(other) = &self.running {
            let reasons = vec![format!("execution `{other}` runs")];
            return Err(EngineError::NotAtRest { session: session.id.clone(), reasons });
        }
        let snapshots = self.state.snapshot_store.of_session(&session.id);
        let measure = |files: &SnapshotFiles| {
            let earlier = checkpoints(files);
            Ok((files.bytes_of(&earlier), earlier))
        };
        let (bytes, earlier) = snapshots.run(measure).await.map_err(EngineError::KeepSnapshot)?;
        let request = CaptureRequest {
            session: &session.id,
            tenant: &session.tenant,
            places: &["session", "tmp", "shm"],
            room: self.bounds.max_bytes,
            force: false,
            sync: false,
            exec: Some(&self.exec.id),
            // If the earlier checkpoints exceed their limit, they are removed, so this one must not refer to them.
            before: self.base.filter(|_| bytes <= self.bounds.max_bytes),
            same_files_as: earlier.last(),
        };
        capture(&self.state.snapshot_store, &self.sandbox, request).await
    }
}

fn checkpoints(files: &SnapshotFiles) -> Vec<SnapshotManifest> {
    files.list().into_iter().filter(|snapshot| snapshot.exec.is_some()).collect()
}

/// Removes the oldest checkpoints until the others are within bounds; the newest is always kept.
fn drop_oldest(files: &SnapshotFiles, bounds: Checkpoints) -> io::Result<()> {
    let mut kept = checkpoints(files);
    while kept.len() > 1
        && (kept.len() as u64 > bounds.max || files.bytes_of(&kept) > bounds.max_bytes)
    {
        files.forget(&[kept.remove(0).id])?;
    }
    Ok(())
}
