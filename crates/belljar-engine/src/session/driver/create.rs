//! Gets the sandbox of a session: creates it, takes it from the pool, or takes it over from an earlier server.

use std::sync::Arc;

use belljar_runtime::{Handle, Sandbox, VolumeKind, VolumeMount, VolumePlace};

use super::{Driver, Origin, SandboxLease};
use crate::error::{EngineError, in_full};
use crate::network;
use crate::pool::{self, Pool};
use crate::rules::{Happening, Phase};
use crate::session::too_large_on_disk;
use crate::session_directory::{DiskConfig, SessionDirectory};
use crate::spec::Storage;
use crate::state::durability;
use crate::store::SessionRow;

/// How the creation of a session ended.
pub(super) enum Creation {
    Ready(SandboxLease),
    /// Its sandbox is gone, and it goes on from a snapshot in S3.
    Asleep,
    /// The session has ended, is left to the next server, or belongs to another node.
    Over,
}

impl Driver {
    /// Makes the session ready.
    pub(super) async fn create(&mut self, origin: Origin) -> Creation {
        let adopted = matches!(origin, Origin::Adopted(_));
        let is_new = matches!(origin, Origin::Cold) && self.next_number == 1;
        let mut stop = self.session.stop.subscribe();
        let mut leaving = self.state.leaving.subscribe();
        let mut fenced = self.session.fenced.subscribe();
        let created = tokio::select! {
            created = self.sandbox_of(origin) => Some(created),
            // An adopted sandbox must be destroyed, so it is found first even if a stop is requested.
            _ = stop.wait_for(Option::is_some), if !adopted => None,
            // The next server finds the sandbox as this one did, or removes what is incomplete.
            _ = leaving.wait_for(|leaving| *leaving) => return Creation::Over,
            _ = fenced.wait_for(|fenced| *fenced) => None,
        };
        let lost = match &created {
            Some(Err(error)) if adopted && self.session.stop.borrow().is_none() => {
                Some(in_full(error))
            }
            _ => None,
        };
        if let Some(lost) = lost
            && self.begin_without_sandbox(&lost).await
        {
            return Creation::Asleep;
        }
        let created = match created {
            Some(Ok(sandbox)) => Some(self.connect(sandbox, adopted).await),
            other => other,
        };
        match created {
            Some(Ok(sandbox)) => return Creation::Ready(self.begin_ready(sandbox, adopted).await),
            _ if self.session.is_fenced() => self.end_fenced(None).await,
            // If a stop was requested, the session ends as stopped, not as failed.
            Some(Err(error)) if self.session.stop.borrow().is_none() => {
                self.fail(error, is_new).await;
            }
            Some(Err(_)) | None => {
                let because = self.stop_reason();
                self.apply(Happening::StopAsked);
                self.end_unfinished_execs(&because).await;
                self.over(self.final_view(Happening::SandboxGone, &because)).await;
            }
        }
        Creation::Over
    }

    async fn begin_ready(&mut self, sandbox: Sandbox, adopted: bool) -> SandboxLease {
        let sandbox = self.session.sandbox.open(sandbox);
        if adopted {
            self.inherit(&sandbox).await;
        }
        self.warn_of_soft_disk().await;
        self.apply(Happening::SandboxReady);
        if !adopted {
            // The time to live begins now, not when the session was requested.
            self.touch(self.session.spec.ttl_s);
        }
        self.publish();
        let (id, tenant) = (&self.session.id, &self.session.tenant);
        let how = if adopted { "taken over" } else { "ready" };
        tracing::info!(session.id = id, tenant, sandbox = sandbox.name(), "session {id} {how}");
        sandbox
    }

    async fn fail(&mut self, error: EngineError, is_new: bool) {
        let because = in_full(&error);
        self.end_unfinished_execs(&because).await;
        if let Some(record) = self.session.record.clone().filter(|_| is_new) {
            let _ = tokio::task::spawn_blocking(move || record.remove_if_unused()).await;
        }
        if let Some(failure) = self.failure.take() {
            // The caller may have disconnected.
            let _ = failure.send(error);
        }
        self.over(self.final_view(Happening::SandboxFailed, &because)).await;
    }

    async fn sandbox_of(&self, origin: Origin) -> Result<Sandbox, EngineError> {
        match origin {
            Origin::Pool(sandbox) => Ok(*sandbox),
            Origin::Cold => self.first_sandbox().await,
            Origin::Adopted(handle) => self.adopt(*handle).await,
            Origin::Lost => {
                self.state.metrics.adopted("cleaned");
                Err(EngineError::Internal(
                    "the server ended while the session was being made".into(),
                ))
            }
            Origin::Hibernated(_) | Origin::Fork | Origin::Claimed => {
                Err(EngineError::Internal("a hibernated session cannot be made, only woken".into()))
            }
        }
    }

    /// Gives the sandbox its network access, if the session has any. An adopted sandbox is kept even if that fails.
    pub(super) async fn attach_network(
        &mut self,
        sandbox: &Sandbox,
        adopted: bool,
    ) -> Result<(), EngineError> {
        let (network, policy) = (&self.state.config.network, &self.session.spec.network);
        match network::attach(network, policy, &self.session.traffic, sandbox.link()).await {
            Ok(attached) => self.network = attached,
            Err(error) if adopted => {
                let warning = format!("it has no network: {}", in_full(&error));
                tracing::warn!(session.id = self.session.id, "{warning}");
                self.warn(warning);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn connect(&mut self, sandbox: Sandbox, adopted: bool) -> Result<Sandbox, EngineError> {
        match self.attach_network(&sandbox, adopted).await {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                sandbox.destroy().await;
                Err(error)
            }
        }
    }

    /// Creates the first sandbox of a session and stores its handle before it is used.
    async fn first_sandbox(&self) -> Result<Sandbox, EngineError> {
        let sandbox = self.new_sandbox().await?;
        let session = &self.session;
        let view = session.view();
        let row = SessionRow {
            id: session.id.clone(),
            tenant: session.tenant.clone(),
            key: session.key.clone(),
            phase: Phase::Ready,
            spec: session.spec.clone(),
            handle: Some(sandbox.handle().clone()),
            created_ms: session.created_ms,
            used_ms: view.used_ms,
            expires_ms: view.expires_ms,
            ended_ms: None,
            ended_because: None,
            execs: view.execs,
        };
        let stored = self.state.store.put_session(row, durability(&session.spec)).await;
        match session.noticed(stored) {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                sandbox.destroy().await;
                Err(error.into())
            }
        }
    }

    /// Another sandbox for this session, into which a snapshot is restored. It is taken from the pool, if one fits.
    pub(super) async fn fresh_sandbox(&self) -> Result<Sandbox, EngineError> {
        let spec = &self.session.spec;
        // A sandbox of the pool has a directory of its own.
        let fits = spec.storage == Storage::Tmpfs && self.state.fits_pool(spec);
        if let Some(warm) = self.state.pool.get().filter(|_| fits).and_then(Pool::take_ready) {
            let kept = warm.sandbox.outlive_host(self.state.config.alone_for_s).await;
            kept.map_err(EngineError::Create)?;
            return Ok(warm.sandbox);
        }
        self.new_sandbox().await
    }

    async fn new_sandbox(&self) -> Result<Sandbox, EngineError> {
        let (session, state) = (&self.session, &self.state);
        let _permit = state.creation_permit(&session.tenant).await;
        if let Some(record) = &session.record {
            prepare_record(record, &state.config.disk).await?;
            self.check_disk(record).await?;
        }
        let mut spec = state.sandbox_spec(&session.spec, &session.id)?;
        // Sandboxes of the pool have no such label, because they belong to no tenant when they are created.
        spec.labels.push(("belljar.tenant".to_owned(), session.tenant.clone()));
        spec.volumes = state.volumes_for_session(&session.tenant, &session.spec.volumes).await?;
        let soft =
            |volume: &VolumeMount| volume.write && volume.place.kind == VolumeKind::Directory;
        for volume in spec.volumes.iter().filter(|volume| soft(volume)) {
            self.warn(format!("the size of volume `{}` is not enforced", volume.name));
        }
        if spec.workspace.is_some() {
            self.warn("the size of the workspace is not limited".into());
        }
        pool::warm_sandbox(&state.runtime, &spec).await
    }

    /// Finds the sandbox of an earlier server. If that fails, makes sure that nothing of it is left.
    async fn adopt(&self, handle: Handle) -> Result<Sandbox, EngineError> {
        let (session, state) = (&self.session, &self.state);
        let spec = state.sandbox_spec(&session.spec, &session.id)?;
        match Arc::clone(&state.runtime).adopt(handle.clone(), spec).await {
            Ok(sandbox) => {
                state.usage.open(&session.id, &sandbox);
                state.metrics.adopted("adopted");
                Ok(sandbox)
            }
            Err(error) => {
                state.metrics.adopted("lost");
                Arc::clone(&state.runtime).discard(&handle).await;
                Err(EngineError::Adopt(error))
            }
        }
    }

    /// If the operator requires enforced sizes, refuses files on disk whose size is not enforced. Otherwise warns if
    /// they are too large.
    async fn check_disk(&self, record: &SessionDirectory) -> Result<(), EngineError> {
        let disk = &self.state.config.disk;
        let Some(place) = soft_place(record).await else { return Ok(()) };
        if disk.strict {
            let why = disk.why_not_enforced();
            return Err(EngineError::DiskNotEnforced(format!(
                "{why}; BELLJAR_STRICT=1 forbids that"
            )));
        }
        self.warn(disk.why_not_enforced());
        let measured = tokio::task::spawn_blocking(move || place.usage()).await;
        if measured.is_ok_and(|usage| usage.is_ok_and(|usage| usage.bytes > disk.size)) {
            self.warn(too_large_on_disk(disk.size));
        }
        Ok(())
    }

    /// Warns if the session has files on disk whose size is not enforced.
    pub(super) async fn warn_of_soft_disk(&self) {
        let Some(record) = &self.session.record else { return };
        if soft_place(record).await.is_some() {
            self.warn(self.state.config.disk.why_not_enforced());
        }
    }
}

/// Where the files of a session are, if their size is not enforced.
async fn soft_place(record: &SessionDirectory) -> Option<VolumePlace> {
    let record = record.clone();
    let finding = tokio::task::spawn_blocking(move || record.place());
    let place = finding.await.ok().flatten();
    place.filter(|place| place.kind == VolumeKind::Directory)
}

async fn prepare_record(record: &SessionDirectory, disk: &DiskConfig) -> Result<(), EngineError> {
    let path = record.directory().to_owned();
    let (record, disk) = (record.clone(), disk.clone());
    tokio::task::spawn_blocking(move || record.prepare(&disk))
        .await
        .unwrap_or_else(|panic| Err(std::io::Error::other(panic)))
        .map_err(|cause| EngineError::Directory { path, cause })
}
