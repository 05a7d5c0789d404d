//! Copies snapshots to S3 and stores the pointer to the newest one, from which the session goes on if this node is lost.
//!
//! ```text
//!   hibernated, checkpoint, periodic ──▶ wanted ──▶ task: upload ─▶ row: pointer ──▶ done
//!                                          ▲           │ failed
//!                                          └── pause ◀─┘
//! ```
//!
//! The stored pointer says that the session may have changed since; only [`release`](super::release) says that it has
//! not. So an upload may be cancelled at any time, also while the row gets the pointer.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::Driver;
use crate::error::{EngineError, in_full};
use crate::snapshots::{Resume, SnapshotManifest, SnapshotPointer};
use crate::spec::Checkpoints;
use crate::state::EngineState;

/// The pause after a failed upload; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The begin of the warning while uploads fail.
const NOT_UPLOADED: &str = "its snapshot could not be copied to S3, so it is only on this node";

pub(super) struct SnapshotUploads {
    /// At most one task.
    pub(super) running: JoinSet<Uploaded>,
    /// The snapshot that is to be uploaded next.
    wanted: Option<(SnapshotManifest, Resume)>,
    /// The newest snapshot in S3, by its id here.
    done: Option<(u64, SnapshotPointer)>,
    /// The number of the last upload, see [`SnapshotPointer::number`]; `None` until the row was read.
    pub(super) number: Option<i64>,
    failures: u32,
    retry_at: Option<Instant>,
}

pub(super) struct Uploaded {
    manifest: SnapshotManifest,
    resume: Resume,
    pointer: Result<SnapshotPointer, EngineError>,
}

impl SnapshotUploads {
    pub(super) fn new() -> SnapshotUploads {
        SnapshotUploads {
            running: JoinSet::new(),
            wanted: None,
            done: None,
            number: None,
            failures: 0,
            retry_at: None,
        }
    }

    /// When the next upload is to begin.
    pub(super) fn due(&self) -> Option<Instant> {
        let ready = self.wanted.is_some() && self.running.is_empty();
        ready.then(|| self.retry_at.unwrap_or_else(Instant::now))
    }

    /// The pointer to this snapshot, if it is in S3 and the row has the pointer.
    pub(super) fn pointer_to(&self, snapshot: u64) -> Option<&SnapshotPointer> {
        self.done.as_ref().filter(|(id, _)| *id == snapshot).map(|(_, pointer)| pointer)
    }

    /// The row has this pointer.
    pub(super) fn stored(&mut self, snapshot: u64, pointer: SnapshotPointer) {
        self.number = self.number.max(Some(pointer.number()));
        self.done = Some((snapshot, pointer));
    }

    /// The row may have another pointer than the last one that was stored.
    pub(super) fn forget_stored(&mut self) {
        self.done = None;
    }

    /// The pointer that the row has, if that is known.
    pub(super) fn newest(&self) -> Option<&SnapshotPointer> {
        self.done.as_ref().map(|(_, pointer)| pointer)
    }

    /// Nothing is uploaded any more, because the session is about to change or to end.
    pub(super) async fn cancel(&mut self) {
        self.wanted = None;
        self.running.shutdown().await;
    }
}

impl Driver {
    /// Whether another node can have this session.
    pub(super) fn can_move(&self) -> bool {
        self.state.cluster().is_some()
            && self.state.snapshot_store.remote().is_some()
            && self.session.pinned_by().is_none()
    }

    /// SnapshotUploads a snapshot of the session.
    pub(super) fn upload(&mut self, manifest: &SnapshotManifest) {
        if !self.can_move() {
            return;
        }
        let resume = Resume {
            clean: false,
            execs: self.next_number - 1,
            taken_ms: manifest.made_ms,
            notes: manifest.lost.clone(),
        };
        self.uploads.wanted = Some((manifest.clone(), resume));
        if self.uploads.retry_at.is_none() {
            self.next_upload();
        }
    }

    pub(super) fn next_upload(&mut self) {
        if !self.uploads.running.is_empty() {
            return;
        }
        let Some((manifest, resume)) = self.uploads.wanted.take() else { return };
        self.uploads.retry_at = None;
        let (state, session) = (Arc::clone(&self.state), self.session.id.clone());
        // Also an upload that fails or is cancelled uses up its number.
        let number = self.uploads.number.map(|last| last + 1);
        self.uploads.number = number;
        let checkpoints = self.session.spec.checkpoints;
        self.uploads.running.spawn(async move {
            let uploading = upload(&state, &session, number, checkpoints, &manifest, &resume);
            let pointer = uploading.await;
            Uploaded { manifest, resume, pointer }
        });
    }

    pub(super) fn uploaded(&mut self, uploaded: Result<Uploaded, JoinError>) {
        let Uploaded { manifest, resume, pointer } = match uploaded {
            Ok(uploaded) => uploaded,
            Err(error) => {
                tracing::error!(session.id = self.session.id, "failed to upload: {error}");
                return;
            }
        };
        match pointer {
            Ok(pointer) => {
                self.uploads.stored(manifest.id, pointer);
                (self.uploads.failures, self.uploads.retry_at) = (0, None);
                self.unwarn(NOT_UPLOADED);
                self.next_upload();
            }
            Err(error) => {
                let why = in_full(&error);
                if let EngineError::Store(error) = error {
                    // Another node may own the session.
                    let _ = self.session.noticed(Err::<(), _>(error));
                }
                self.upload_later(manifest, resume, &why);
            }
        }
    }

    fn upload_later(&mut self, manifest: SnapshotManifest, resume: Resume, why: &str) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.uploads.failures.min(10));
        self.uploads.failures += 1;
        self.uploads.retry_at = Some(Instant::now() + pause.min(LONGEST_PAUSE));
        // A newer snapshot may wait already.
        self.uploads.wanted.get_or_insert((manifest, resume));
        tracing::warn!(session.id = self.session.id, "failed to upload the snapshot: {why}");
        self.warn(format!("{NOT_UPLOADED}: {why}"));
    }

    /// When to renew the snapshot in S3 of an awake session.
    pub(super) fn snapshot_at(&self) -> Option<Instant> {
        let is_current = self.snapshot_of_use == Some(self.used);
        self.snapshot_again_at.filter(|_| self.can_move() && !is_current)
    }
}

async fn upload(
    state: &EngineState,
    session: &str,
    number: Option<i64>,
    checkpoints: Option<Checkpoints>,
    manifest: &SnapshotManifest,
    resume: &Resume,
) -> Result<SnapshotPointer, EngineError> {
    let (Some(remote), Some((cluster, _))) = (state.snapshot_store.remote(), state.cluster())
    else {
        return Err(EngineError::Internal("this server has no S3".into()));
    };
    let stored = match (number, checkpoints) {
        (Some(_), None) => None,
        _ => cluster.snapshot_of(session).await?.map(SnapshotPointer::stored),
    };
    let number = number.unwrap_or_else(|| stored.as_ref().map_or(0, SnapshotPointer::number) + 1);
    let snapshots = state.snapshot_store.of_session(session);
    let uploaded = remote.upload(session, number, &snapshots, manifest).await?;
    let uploaded = match checkpoints {
        Some(bounds) => {
            let earlier = stored.as_ref().map(SnapshotPointer::value);
            remote.add_checkpoints(&uploaded, earlier, &snapshots, bounds).await?
        }
        None => uploaded,
    };
    let pointer = SnapshotPointer::new(uploaded, resume);
    cluster.set_snapshot(session, number, pointer.value().clone()).await?;
    if let Err(error) = remote.prune(pointer.value()).await {
        let why = in_full(&error);
        tracing::warn!(session.id = session, "failed to remove old snapshots in S3: {why}");
    }
    Ok(pointer)
}
