//! Wakes a hibernated session: restores the files and the kernel of its snapshot into a fresh sandbox.
//!
//! ```text
//!   sleep ── a command, if there is room ──▶ sandbox ──▶ row: waking ──▶ files, kernel ──▶ row: ready ──▶ serve
//!     ▲                                                                  │ failed
//!     └──────────────────────────────────────────────────────────────────┘
//! ```

use std::sync::Arc;

use belljar_proto::exec::Language;
use belljar_runtime::{Handle, Sandbox};
use tokio::time::Instant;

use super::{Driver, SandboxLease};
use crate::admission::{Quota, Reservation};
use crate::error::{EngineError, in_full};
use crate::rules::{Happening, Phase};
use crate::snapshots::{SnapshotManifest, revive};
use crate::store::{Durability, ExecFilter, ExecRow};

/// How many recent executions to search for the last one of a kind.
pub(super) const RECENT: u32 = 20;

impl Driver {
    /// Restores the session from its snapshot. If that fails, the session stays hibernated.
    pub(super) async fn wake(&mut self, quota: Quota) -> Result<SandboxLease, EngineError> {
        let begun = Instant::now();
        if self.can_move() {
            self.state.availability.must_not_drain()?;
        }
        let reservation = match self.reservation.take() {
            Some(reservation) => reservation,
            None => self.reserve(quota).await?,
        };
        self.apply(Happening::WakeBegan);
        let is_here = self.unfetched.is_none() && !self.must_read_pointer;
        match self.restore_hibernated().await {
            Ok(sandbox) => {
                let restored = if is_here { "here" } else { "s3" };
                let is_whole = self.files_only.is_none();
                self.state.metrics.woke(if is_whole { restored } else { "files_only" });
                self.reservation = Some(reservation);
                self.sleeping = None;
                let sandbox = self.session.sandbox.open(sandbox);
                self.kernel_required = false;
                (self.went_back, self.files_only, self.hibernated_as) = (None, None, None);
                self.hibernate_again_at = None;
                self.snapshot_later();
                self.touch(self.session.spec.ttl_s);
                self.apply(Happening::SandboxReady);
                self.publish();
                let (id, ms) = (&self.session.id, begun.elapsed().as_millis());
                tracing::info!(session.id = id, ms, "session {id} woke up");
                Ok(sandbox)
            }
            Err(error) => {
                let id = &self.session.id;
                tracing::warn!(session.id = id, "failed to wake: {}", in_full(&error));
                self.apply(Happening::SandboxAsleep);
                self.upload_again().await;
                Err(error)
            }
        }
    }

    async fn reserve(&self, quota: Quota) -> Result<Reservation, EngineError> {
        let (tenant, limits) = (&self.session.tenant, &self.session.spec.limits);
        self.state.reserve_sandbox(tenant, quota, limits).await
    }

    /// The session sleeps on, so its snapshot is uploaded if it was not.
    async fn upload_again(&mut self) {
        let missing = self.hibernated_as.filter(|id| self.uploads.pointer_to(*id).is_none());
        if missing.is_some()
            && let Some(manifest) = self.snapshots().last().await
        {
            self.upload(&manifest);
        }
    }

    async fn restore_hibernated(&mut self) -> Result<Sandbox, EngineError> {
        self.claim_again().await?;
        let manifest = self.hibernated().await?;
        let sandbox = self.fresh_sandbox().await?;
        let Err(error) = self.fill(&sandbox, &manifest).await else { return Ok(sandbox) };
        self.network = None;
        sandbox.destroy().await;
        let (store, id) = (&self.state.store, &self.session.id);
        let stored = store.set_sandbox(id, Phase::Hibernated, None, Durability::Soon).await;
        let _ = self.session.noticed(stored);
        Err(error)
    }

    /// Restores a snapshot into a fresh sandbox and makes it the sandbox of the session.
    async fn fill(
        &mut self,
        sandbox: &Sandbox,
        manifest: &SnapshotManifest,
    ) -> Result<(), EngineError> {
        let handle = Some(sandbox.handle().clone());
        let id = self.session.id.clone();
        let store = self.state.store.clone();
        let stored = store.set_sandbox(&id, Phase::Waking, handle.clone(), Durability::Process);
        self.session.noticed(stored.await)?;
        revive(sandbox, &self.snapshots(), manifest, self.kernel_required).await?;
        if let Some(reason) = &self.went_back {
            let noted = sandbox.lose_kernel(Language::Python, reason).await;
            noted.map_err(EngineError::Thaw)?;
        }
        self.base = Some(manifest.id);
        self.attach_network(sandbox, false).await?;
        self.begin_changes().await?;
        let stored = store.set_sandbox(&id, Phase::Ready, handle, Durability::Process).await;
        Ok(self.session.noticed(stored)?)
    }

    /// Begins with a session that an earlier server had hibernated, or was about to wake. A sandbox that the earlier
    /// server left is removed.
    pub(super) async fn begin_hibernated(&mut self, left: Option<Handle>) {
        if let Some(handle) = left {
            Arc::clone(&self.state.runtime).discard(&handle).await;
            let (store, id) = (&self.state.store, &self.session.id);
            let stored = store.set_sandbox(id, Phase::Hibernated, None, Durability::Soon).await;
            let _ = self.session.noticed(stored);
        }
        if self.reservation.is_none() {
            self.sleeping = Some(self.state.admission.admit_sleep(&self.session.tenant));
        }
        self.warn_of_soft_disk().await;
        self.find_hibernated().await;
        self.apply(Happening::SandboxAsleep);
    }

    /// In a cluster, a session that this node had hibernated before a restart is uploaded, or found in S3 if its files are
    /// gone.
    async fn find_hibernated(&mut self) {
        if !self.can_move() || self.kernel_required {
            return;
        }
        match self.snapshots().last().await {
            Some(manifest) => self.fall_asleep(&manifest),
            None => self.must_read_pointer = true,
        }
    }

    /// Finds the execution whose end state the session had under an earlier server.
    pub(super) async fn find_last_exec(&self) {
        let filter = ExecFilter { newest_first: true, beyond: None, finished: true, limit: RECENT };
        let foreground = |row: ExecRow| (!row.request.background).then_some(row.id);
        if let Ok(page) = self.state.store.execs(&self.session.id, filter, foreground).await
            && let Some(exec) = page.items.into_iter().flatten().next()
        {
            self.is_at(&exec);
        }
    }
}
