//! Snapshots of a session that has a sandbox: hibernate, fork, restore.
//!
//! ```text
//!   exclusive use ──▶ snapshot ──▶ row: hibernated ──▶ sandbox destroyed ──▶ sleep
//!     ▲                 │ refused, failed
//!   serve ◀─────────────┘
//! ```
//!
//! If the server is killed before the row says `hibernated`, the next server uses the sandbox. If it is killed after
//! that, the next server uses the snapshot, until the row says `ready` again (see [`wake`](super::wake)).

use std::sync::Arc;

use belljar_runtime::Sandbox;
use tokio::time::Instant;

use super::{Driver, SandboxLease};
use crate::admission::Quota;
use crate::error::{EngineError, in_full};
use crate::rules::{Happening, Phase};
use crate::session::{RETRY_PAUSE, STORE_RETRIES};
use crate::snapshots::{CaptureRequest, ForkSource, SessionSnapshots, SnapshotManifest, revive};
use crate::spec::Storage;
use crate::store::{Durability, StoreError};

impl Driver {
    /// Writes the session to files and ends its sandbox. Returns a description of what could not be kept.
    pub(super) async fn hibernate(
        &mut self,
        sandbox: SandboxLease,
        force: bool,
        quota: Option<Quota>,
    ) -> Result<Vec<String>, (Option<SandboxLease>, EngineError)> {
        let sleeping = match self.state.reserve_sleep(&self.session.tenant, quota).await {
            Ok(sleeping) => sleeping,
            Err(error) => return Err((Some(sandbox), error)),
        };
        let sandbox = self.exclusive(sandbox).await?;
        let manifest = match self.store_hibernated(&sandbox, force).await {
            Ok(manifest) => manifest,
            Err(error) => {
                if let EngineError::Store(StoreError::Unavailable(_)) = &error {
                    self.store_awake();
                }
                return Err((Some(self.end_exclusive(sandbox)), error));
            }
        };
        // From here on the session is its snapshot, not its sandbox.
        self.apply(Happening::SandboxAsleep);
        self.network = None;
        self.forgettable.clear();
        let (store, id) = (&self.state.store, self.session.id.clone());
        self.state.usage.close(&id, &self.session.tenant, &sandbox);
        sandbox.destroy().await;
        self.reservation = None;
        self.sleeping = Some(sleeping);
        // If this is not stored, the next server looks for the sandbox and finds none.
        let stored = store.set_sandbox(&id, Phase::Hibernated, None, Durability::Soon).await;
        let _ = self.session.noticed(stored);
        self.drop_earlier(&manifest).await;
        self.fall_asleep(&manifest);
        self.write_metadata();
        tracing::info!(session.id = id, bytes = manifest.bytes, "session {id} is hibernated");
        Ok(manifest.left_out())
    }

    /// The row may say `hibernated`, because the answer of the database was lost. It must not: the next server would use
    /// the snapshot.
    fn store_awake(&mut self) {
        let (state, session) = (Arc::clone(&self.state), Arc::clone(&self.session));
        self.chores.spawn(async move {
            for _ in 0..STORE_RETRIES {
                let id = &session.id;
                let stored = state.store.set_phase(id, Phase::Ready, None, Durability::Power).await;
                match session.noticed(stored) {
                    Err(StoreError::Unavailable(_)) => tokio::time::sleep(RETRY_PAUSE).await,
                    _ => break,
                }
            }
            None
        });
    }

    async fn store_hibernated(
        &mut self,
        sandbox: &Sandbox,
        force: bool,
    ) -> Result<SnapshotManifest, EngineError> {
        let places: &[&str] = match self.session.spec.storage {
            Storage::Tmpfs => &["session", "tmp", "shm"],
            // The files of the session are on disk already.
            Storage::Bind => &["tmp", "shm"],
        };
        let manifest = self.capture(sandbox, places, force, true).await?;
        let (store, id) = (&self.state.store, &self.session.id);
        let stored = store.set_phase(id, Phase::Hibernated, None, Durability::Power).await;
        self.session.noticed(stored)?;
        Ok(manifest)
    }

    /// The session wakes from this snapshot, which is uploaded.
    pub(super) fn fall_asleep(&mut self, manifest: &SnapshotManifest) {
        self.hibernated_as = Some(manifest.id);
        (self.files_only, self.release_again_at) = (None, None);
        self.asleep_since = Instant::now();
        self.upload(manifest);
    }

    /// Takes a snapshot of a session that goes on, for S3.
    pub(super) async fn renew_snapshot(&mut self, sandbox: &Sandbox) {
        self.snapshot_later();
        let used = self.used;
        match self.capture(sandbox, &["session", "tmp", "shm"], false, false).await {
            Ok(manifest) => {
                self.snapshot_of_use = Some(used);
                self.drop_earlier(&manifest).await;
                self.upload(&manifest);
            }
            Err(error) => {
                let why = in_full(&error);
                tracing::info!(session.id = self.session.id, "no periodic snapshot: {why}");
            }
        }
    }

    pub(super) fn snapshot_later(&mut self) {
        let every = self.state.config.snapshot_every;
        self.snapshot_again_at = every.map(|every| Instant::now() + every);
    }

    /// Takes a snapshot of the present state.
    async fn capture(
        &mut self,
        sandbox: &Sandbox,
        places: &[&str],
        force: bool,
        sync: bool,
    ) -> Result<SnapshotManifest, EngineError> {
        let limits = &self.session.spec.limits;
        let request = CaptureRequest {
            session: &self.session.id,
            tenant: &self.session.tenant,
            places,
            // Memory, and the same again for files on disk.
            room: limits.memory.saturating_add(limits.tmpfs).saturating_mul(2),
            force,
            sync,
            exec: None,
            before: self.base,
            same_files_as: None,
        };
        let taken = crate::snapshots::capture(&self.state.snapshot_store, sandbox, request).await?;
        self.base = Some(taken.id);
        Ok(taken)
    }

    pub(super) fn snapshots(&self) -> SessionSnapshots {
        self.state.snapshot_store.of_session(&self.session.id)
    }

    /// Removes earlier snapshots that are not checkpoints: only the newest is needed.
    pub(super) async fn drop_earlier(&self, newest: &SnapshotManifest) {
        let newest = newest.id;
        let dropped = self.snapshots().run(move |files| files.forget_before(newest)).await;
        if let Err(error) = dropped {
            let id = &self.session.id;
            tracing::warn!(session.id = id, "failed to remove an old snapshot: {error}");
        }
        self.state.snapshot_store.count(&self.session.id, &self.session.tenant).await;
    }

    /// A snapshot of the present state, from which other sessions begin.
    pub(super) async fn fork_now(
        &mut self,
        sandbox: &Sandbox,
        force: bool,
    ) -> Result<ForkSource, EngineError> {
        let manifest = self.capture(sandbox, &["session", "tmp", "shm"], force, false).await?;
        self.drop_earlier(&manifest).await;
        self.fork_source(&manifest).await
    }

    pub(super) async fn fork_checkpoint(&self, exec: &str) -> Result<ForkSource, EngineError> {
        let manifest = self.checkpoint(exec).await?;
        self.fork_source(&manifest).await
    }

    pub(super) async fn fork_source(
        &self,
        manifest: &SnapshotManifest,
    ) -> Result<ForkSource, EngineError> {
        let store = &self.state.snapshot_store;
        store.fork_source(&self.snapshots(), manifest).await.map_err(EngineError::KeepSnapshot)
    }

    pub(super) async fn checkpoint(&self, exec: &str) -> Result<SnapshotManifest, EngineError> {
        let found = match self.snapshots().checkpoint(exec).await {
            Some(found) => Some(found),
            None => self.fetch_checkpoint(exec).await?,
        };
        found.ok_or_else(|| EngineError::NoCheckpoint(exec.to_owned()))
    }

    /// Restores a checkpoint into a fresh sandbox, which replaces the present one.
    pub(super) async fn restore(
        &mut self,
        sandbox: SandboxLease,
        exec: &str,
    ) -> (Option<SandboxLease>, Result<(), EngineError>) {
        let manifest = match self.checkpoint(exec).await {
            Ok(manifest) => manifest,
            Err(error) => return (Some(sandbox), Err(error)),
        };
        let present = match self.exclusive(sandbox).await {
            Ok(present) => present,
            Err((sandbox, error)) => return (sandbox, Err(error)),
        };
        let fresh = match self.restored_sandbox(&manifest).await {
            Ok(fresh) => fresh,
            Err(error) => return (Some(self.end_exclusive(present)), Err(error)),
        };
        self.network = None;
        self.base = Some(manifest.id);
        self.forgettable.clear();
        self.state.usage.close(&self.session.id, &self.session.tenant, &present);
        present.destroy().await;
        // The row has the fresh sandbox already. If it gets no network, the session continues with a warning.
        let _ = self.attach_network(&fresh, true).await;
        self.is_at(exec);
        self.touch(self.session.spec.ttl_s);
        self.upload(&manifest);
        (Some(self.end_exclusive(fresh)), Ok(()))
    }

    /// A fresh sandbox into which this snapshot is restored; its handle is stored.
    async fn restored_sandbox(&self, manifest: &SnapshotManifest) -> Result<Sandbox, EngineError> {
        let fresh = self.fresh_sandbox().await?;
        let restored = match revive(&fresh, &self.snapshots(), manifest, true).await {
            Ok(()) => {
                let handle = Some(fresh.handle().clone());
                let (store, id) = (&self.state.store, &self.session.id);
                let stored = store.set_sandbox(id, Phase::Ready, handle, Durability::Process).await;
                self.session.noticed(stored).map_err(EngineError::Store)
            }
            Err(error) => Err(error),
        };
        match restored {
            Ok(()) => Ok(fresh),
            Err(error) => {
                fresh.destroy().await;
                Err(error)
            }
        }
    }
}
