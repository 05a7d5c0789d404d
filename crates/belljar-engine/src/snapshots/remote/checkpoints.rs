//! Checkpoints in S3: they move with their session. A node fetches one when the session is restored to it.

use std::io;

use belljar_proto::exec::Language;
use belljar_sys::wake_class::can_wake_on;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Pointer, RemoteFile, RemoteSnapshots, read};
use crate::error::EngineError;
use crate::snapshots::files::{SnapshotFiles, SnapshotManifest};
use crate::snapshots::session_snapshots::SessionSnapshots;
use crate::spec::Checkpoints;

/// A checkpoint whose files are among those of the pointer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RemoteCheckpoint {
    /// The class of the node that made it. Nodes that cannot wake this class restore only its files.
    class: String,
    pub(super) manifest: SnapshotManifest,
}

/// The checkpoints of a session in S3, the oldest first.
pub(crate) fn checkpoints_of(pointer: &Value) -> Vec<SnapshotManifest> {
    let checkpoints = read(pointer).map(|pointer| pointer.checkpoints).unwrap_or_default();
    checkpoints.into_iter().map(|checkpoint| checkpoint.manifest).collect()
}

impl RemoteSnapshots {
    /// Adds the checkpoints of a session to its new pointer: those of `earlier`, which the row has, and those that only
    /// this node has, which are sent. The oldest are left out if they exceed the bounds.
    pub(crate) async fn add_checkpoints(
        &self,
        pointer: &Value,
        earlier: Option<&Value>,
        snapshots: &SessionSnapshots,
        bounds: Checkpoints,
    ) -> Result<Value, EngineError> {
        let mut pointer = read(pointer).map_err(EngineError::KeepSnapshot)?;
        let earlier = earlier.and_then(|earlier| read(earlier).ok());
        let known = earlier.as_ref().map(|earlier| earlier.checkpoints.clone());
        let mut checkpoints = known.unwrap_or_default();
        for manifest in snapshots.list().await {
            let is_new = !checkpoints.iter().any(|known| known.manifest.id == manifest.id);
            if manifest.exec.is_some() && is_new {
                checkpoints.push(RemoteCheckpoint { class: self.0.class.clone(), manifest });
            }
        }
        let earlier = earlier.map(|earlier| earlier.files).unwrap_or_default();
        for checkpoint in newest(checkpoints, bounds) {
            if self.add_files(&mut pointer, &earlier, snapshots, &checkpoint.manifest).await? {
                pointer.checkpoints.push(checkpoint);
            }
        }
        self.remember(&pointer.session, &pointer.files);
        serde_json::to_value(pointer).map_err(|error| EngineError::KeepSnapshot(error.into()))
    }

    /// Adds the files of a checkpoint to a pointer. False if the checkpoint was removed meanwhile.
    async fn add_files(
        &self,
        pointer: &mut Pointer,
        earlier: &[RemoteFile],
        snapshots: &SessionSnapshots,
        manifest: &SnapshotManifest,
    ) -> Result<bool, EngineError> {
        let is_in = |files: &[RemoteFile], id: u64, kind: &str| {
            files.iter().any(|file| file.id == id && file.kind.name() == kind)
        };
        let mut added: Vec<RemoteFile> = Vec::new();
        for (id, kind) in manifest.parts().filter(|(id, kind)| !is_in(&pointer.files, *id, kind)) {
            let found = earlier.iter().find(|file| file.id == id && file.kind.name() == kind);
            added.extend(found.cloned());
        }
        let is_known = |id, kind: &str| is_in(&pointer.files, id, kind) || is_in(&added, id, kind);
        if !manifest.parts().all(|(id, kind)| is_known(id, kind)) {
            let local = match self.open_files(snapshots, manifest).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                local => local.map_err(EngineError::KeepSnapshot)?,
            };
            let (session, number) = (&pointer.session, pointer.number);
            let random = belljar_sys::process::random_name();
            let directory = format!("snapshots/{session}/{number}-{random}");
            let missing: Vec<_> =
                local.into_iter().filter(|file| !is_known(file.id, file.kind.name())).collect();
            for file in missing {
                added.push(self.send(file, &directory, earlier).await.map_err(super::failed)?);
            }
        }
        pointer.files.extend(added);
        Ok(true)
    }

    /// Fetches the checkpoint of an execution and makes it visible in `into`. `None` if S3 has no such checkpoint.
    pub(crate) async fn fetch_checkpoint(
        &self,
        pointer: &Value,
        exec: &str,
        into: &SessionSnapshots,
    ) -> Result<Option<SnapshotManifest>, EngineError> {
        let pointer = read(pointer).map_err(EngineError::KeepSnapshot)?;
        let is_it = |known: &RemoteCheckpoint| known.manifest.exec.as_deref() == Some(exec);
        let Some(checkpoint) = pointer.checkpoints.into_iter().rfind(is_it) else {
            return Ok(None);
        };
        let manifest = self.restorable(checkpoint);
        into.run(SnapshotFiles::make).await.map_err(EngineError::KeepSnapshot)?;
        for (id, kind) in manifest.parts() {
            let wanted = |file: &&RemoteFile| file.id == id && file.kind.name() == kind;
            let Some(file) = pointer.files.iter().find(wanted) else {
                let missing = format!("S3 does not have the file {id}.{kind} of the checkpoint");
                return Err(EngineError::KeepSnapshot(io::Error::other(missing)));
            };
            self.receive(file.clone(), into).await.map_err(EngineError::KeepSnapshot)?;
        }
        let fetched = manifest.clone();
        let added = into.run(move |files| files.add_checkpoint(&fetched)).await;
        added.map_err(EngineError::KeepSnapshot)?;
        Ok(Some(manifest))
    }

    /// The checkpoint as this node can restore it: memory of another class cannot be.
    fn restorable(&self, checkpoint: RemoteCheckpoint) -> SnapshotManifest {
        let RemoteCheckpoint { class, mut manifest } = checkpoint;
        if let (Some(_), Err(why)) = (&manifest.layers, can_wake_on(&class, &self.0.class)) {
            manifest.gone.push((Language::Python, format!("could not be restored: {why}")));
            manifest.layers = None;
        }
        manifest
    }
}

/// The newest checkpoints within bounds, the oldest first; the newest one is always among them.
fn newest(mut checkpoints: Vec<RemoteCheckpoint>, bounds: Checkpoints) -> Vec<RemoteCheckpoint> {
    checkpoints.sort_by_key(|checkpoint| checkpoint.manifest.id);
    let bytes = |checkpoints: &[RemoteCheckpoint]| -> u64 {
        checkpoints.iter().map(|checkpoint| checkpoint.manifest.bytes).sum()
    };
    while checkpoints.len() > 1
        && (checkpoints.len() as u64 > bounds.max || bytes(&checkpoints) > bounds.max_bytes)
    {
        checkpoints.remove(0);
    }
    checkpoints
}
