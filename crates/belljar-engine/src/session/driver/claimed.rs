//! Begins with a session that goes on from a snapshot in S3: this node claimed it, or lost its sandbox.

use std::sync::Arc;

use belljar_proto::exec::Language;
use belljar_sys::wake_class;

use super::Driver;
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::rules::{Happening, Phase};
use crate::snapshots::{SnapshotFiles, SnapshotManifest, SnapshotPointer};
use crate::store::{Claim, Durability, StoreError};

impl Driver {
    /// Begins with a session that this node has just claimed. Its snapshot is fetched when it wakes.
    pub(super) async fn begin_claimed(&mut self) {
        self.sleeping = Some(self.state.admission.admit_sleep(&self.session.tenant));
        self.state.snapshot_store.take_from_cache(&self.session.id);
        self.must_read_pointer = true;
        if let Err(error) = self.read_pointer().await {
            // It is tried again when the session wakes.
            let why = in_full(&error);
            tracing::warn!(session.id = self.session.id, "failed to find its snapshot: {why}");
        }
        self.apply(Happening::SandboxAsleep);
    }

    /// Begins with a session of this node whose sandbox is gone, if S3 has a snapshot of it. False if there is none.
    pub(super) async fn begin_without_sandbox(&mut self, why: &str) -> bool {
        let Some((cluster, _)) = self.state.cluster() else { return false };
        match cluster.snapshot_of(&self.session.id).await {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(error) => {
                tracing::warn!(session.id = self.session.id, "{}", in_full(&error));
                return false;
            }
        }
        let id = self.session.id.clone();
        tracing::warn!(session.id = id, "session {id} goes on from its snapshot: {why}");
        let written = self.state.store.set_sandbox(&id, Phase::Hibernated, None, Durability::Power);
        if self.session.noticed(written.await).is_err() {
            return false;
        }
        self.reservation = None;
        self.begin_claimed().await;
        true
    }

    /// Reads which snapshot the session goes on from, and says what is lost.
    async fn read_pointer(&mut self) -> Result<(), EngineError> {
        if !self.must_read_pointer {
            return Ok(());
        }
        let state = Arc::clone(&self.state);
        let Some((cluster, _)) = state.cluster() else { return Ok(()) };
        let stored = cluster.snapshot_of(&self.session.id).await?;
        self.must_read_pointer = false;
        let Some(pointer) = stored.map(SnapshotPointer::stored) else { return Ok(()) };
        self.uploads.number = Some(pointer.number());
        let resume = pointer.resume();
        for note in resume.notes {
            self.warn(format!("not kept when it was put to sleep: {note}"));
        }
        if !resume.clean {
            let (taken, number) = (clock::rfc3339(resume.taken_ms), resume.execs);
            let from = format!("the snapshot of {taken}, after execution {number}");
            self.warn(format!("its node was lost: it goes on from {from}; later changes are lost"));
            let because = format!("its node was lost, and the session goes on from {from}");
            self.end_unfinished_execs(&because).await;
            self.went_back = Some(format!("went back to {from}, because its node was lost"));
        }
        self.unfetched = Some(pointer);
        Ok(())
    }

    /// Fetches the snapshot that the session goes on from, unless its files are here.
    pub(super) async fn fetch_snapshot(&mut self) -> Result<(), EngineError> {
        self.read_pointer().await?;
        let Some(pointer) = self.unfetched.clone() else { return Ok(()) };
        let Some(remote) = self.state.snapshot_store.remote() else {
            return Err(EngineError::Internal("its snapshot is in S3, which is not set up".into()));
        };
        let manifest = remote.fetch(pointer.value(), &self.snapshots()).await?;
        let fresh = self.state.snapshot_store.next_id();
        let publish = move |files: &SnapshotFiles| make_newest(files, manifest, fresh);
        let newest = self.snapshots().run(publish).await.map_err(EngineError::KeepSnapshot)?;
        self.drop_earlier(&newest).await;
        let own = self.state.config.node.as_ref().map_or("", |node| node.class.as_str());
        let wakes = wake_class::can_wake_on(pointer.class().unwrap_or_default(), own);
        if let (Some(_), Err(why)) = (&newest.layers, wakes) {
            self.files_only = Some(format!("could not be woken: {why}"));
        }
        self.hibernated_as = Some(newest.id);
        self.uploads.stored(newest.id, pointer);
        self.unfetched = None;
        Ok(())
    }

    /// The snapshot as it can be restored here.
    pub(super) fn without_foreign_memory(&self, manifest: SnapshotManifest) -> SnapshotManifest {
        let Some(reason) = &self.files_only else { return manifest };
        let mut gone = manifest.gone.clone();
        gone.push((Language::Python, reason.clone()));
        SnapshotManifest { layers: None, gone, ..manifest }
    }

    /// From now on the session changes, so its snapshot in S3 is an earlier state of it. The row says so before the first
    /// change.
    pub(super) async fn begin_changes(&mut self) -> Result<(), EngineError> {
        self.uploads.cancel().await;
        let state = Arc::clone(&self.state);
        let Some((cluster, _)) = state.cluster() else { return Ok(()) };
        self.claim_again().await?;
        let stored = match self.uploads.newest() {
            Some(pointer) => Some(pointer.clone()),
            None => cluster.snapshot_of(&self.session.id).await?.map(SnapshotPointer::stored),
        };
        match stored {
            Some(pointer) if pointer.resume().clean => {
                let (number, unclean) = (pointer.number(), pointer.unclean());
                let value = unclean.value().clone();
                let written = cluster.set_snapshot(&self.session.id, number, value).await;
                self.session.noticed(written)?;
                self.uploads.stored(self.hibernated_as.unwrap_or(0), unclean);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Claims the session again if a release was not answered. The database then refuses the release if it comes late.
    pub(super) async fn claim_again(&mut self) -> Result<(), EngineError> {
        let state = Arc::clone(&self.state);
        let Some((cluster, _)) = state.cluster().filter(|_| self.release_unanswered) else {
            return Ok(());
        };
        match cluster.claim_session(&self.session.id).await? {
            Claim::Claimed(_) => {
                self.release_unanswered = false;
                self.uploads.forget_stored();
                Ok(())
            }
            Claim::OwnedBy { .. } | Claim::NotClaimable => {
                let session = self.session.id.clone();
                self.session.noticed(Err(StoreError::Fenced { session }))?;
                Ok(())
            }
        }
    }
}

/// Makes a fetched snapshot the one that the session wakes from. The directory may have others, because this node had
/// the session before.
fn make_newest(
    files: &SnapshotFiles,
    fetched: SnapshotManifest,
    id: u64,
) -> std::io::Result<SnapshotManifest> {
    let is_newest = files.list().last().is_some_and(|newest| newest.id == fetched.id);
    match fetched.exec.is_none() && is_newest {
        true => Ok(fetched),
        false => files.repeat(&fetched, id),
    }
}
