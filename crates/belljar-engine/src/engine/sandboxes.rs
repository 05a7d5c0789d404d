//! How the sandboxes of sessions, runs and the pool are to be, and those of sessions made.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_runtime::{DataMount, Sandbox, SandboxSpec, VolumeKind, VolumeMount};

use super::EngineState;
use super::state::durability;
use super::upkeep::too_large;
use crate::error::EngineError;
use crate::pool::{self, Pool};
use crate::record::{DiskConfig, Record};
use crate::session::Session;
use crate::session::rules::Phase;
use crate::spec::{Datasets, SessionSpec, Storage};
use crate::store::SessionRow;

impl EngineState {
    /// Makes the sandbox of a session and writes down how to find it, before anybody may use it.
    pub(crate) async fn make_sandbox(&self, session: &Session) -> Result<Sandbox, EngineError> {
        let sandbox = self.new_sandbox(session).await?;
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
        let durability = durability(&session.spec);
        match self.store.put_session(row, durability).await {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                sandbox.destroy().await;
                Err(error.into())
            }
        }
    }

    /// Another sandbox for a session that is there: of the pool, if one fits.
    pub(crate) async fn fresh_sandbox(&self, session: &Session) -> Result<Sandbox, EngineError> {
        // One of the pool has a directory of its own.
        let fits = session.spec.storage == Storage::Tmpfs && self.fits_pool(&session.spec);
        if let Some(warm) = self.pool.get().filter(|_| fits).and_then(Pool::take_ready) {
            let told = warm.sandbox.outlive_host(self.config.alone_for_s).await;
            told.map_err(EngineError::Create)?;
            return Ok(warm.sandbox);
        }
        self.new_sandbox(session).await
    }

    /// A sandbox as a session wants it.
    async fn new_sandbox(&self, session: &Session) -> Result<Sandbox, EngineError> {
        let _permit = self.may_make(&session.tenant).await;
        if let Some(record) = &session.record {
            prepare_record(record, &self.config.disk).await?;
            self.check_disk(session, record).await?;
        }
        let mut spec = self.sandbox_spec(&session.spec, &session.id)?;
        // One of the pool is nobody's yet when it is made, and has none.
        spec.labels.push(("belljar.tenant".to_owned(), session.tenant.clone()));
        spec.volumes = self.volumes_for_session(&session.tenant, &session.spec.volumes).await?;
        let soft =
            |volume: &VolumeMount| volume.write && volume.place.kind == VolumeKind::Directory;
        for volume in spec.volumes.iter().filter(|volume| soft(volume)) {
            session.warn_once(&format!("the size of volume `{}` is not enforced", volume.name));
        }
        if spec.workspace.is_some() {
            session.warn_once("the size of the workspace is not limited");
        }
        pool::warm_sandbox(&self.runtime, &spec).await
    }

    /// The directory of the host that was asked for, if it may be had.
    pub(super) async fn find_workspace(
        &self,
        asked: Option<&Path>,
    ) -> Result<Option<PathBuf>, EngineError> {
        let Some(asked) = asked.map(Path::to_owned) else { return Ok(None) };
        let config = self.config.workspaces.clone();
        // It may be on a disk that is slow to answer.
        let found = tokio::task::spawn_blocking(move || config.find(&asked)).await;
        found.map_err(|panic| EngineError::Internal(panic.to_string()))?.map(Some)
    }

    /// Refuses files on disk whose size nothing limits, where the operator wants that, and
    /// otherwise says so if they are too large.
    async fn check_disk(&self, session: &Session, record: &Record) -> Result<(), EngineError> {
        let disk = &self.config.disk;
        let soft = record.place().filter(|place| place.kind == VolumeKind::Directory);
        let Some(place) = soft else { return Ok(()) };
        if disk.strict {
            let why = disk.why_not_enforced();
            return Err(EngineError::DiskNotEnforced(format!(
                "{why}; BELLJAR_STRICT=1 forbids that"
            )));
        }
        let measured = tokio::task::spawn_blocking(move || place.usage()).await;
        if measured.is_ok_and(|usage| usage.is_ok_and(|usage| usage.bytes > disk.size)) {
            session.warn_once(&too_large(disk.size));
        }
        Ok(())
    }

    /// The sandbox that a session of this kind runs in.
    pub(super) fn sandbox_spec(
        &self,
        spec: &SessionSpec,
        id: &str,
    ) -> Result<SandboxSpec, EngineError> {
        let data = match spec.datasets {
            Datasets::LocalRo => {
                let host_path = self.config.datasets_dir.clone().ok_or_else(|| {
                    EngineError::Invalid("this server has no datasets directory".into())
                })?;
                Some(DataMount { host_path })
            }
            Datasets::None | Datasets::Api => None,
        };
        let session_files = (spec.storage == Storage::Bind)
            .then(|| Record::of(&self.config.sessions_root, id).place())
            .flatten();
        Ok(SandboxSpec {
            limits: spec.limits,
            env: spec.environment().into_iter().collect(),
            data,
            session_files,
            // Whose they are is not known here.
            volumes: Vec::new(),
            workspace: spec.workspace.clone(),
            alone_for_s: self.config.alone_for_s,
            image: Some(spec.image.clone()),
            labels: vec![("belljar.session".to_owned(), id.to_owned())],
        })
    }

    /// Whether a warm sandbox of the pool is what this asks for. The environment is no matter: it
    /// is handed to every execution; nor is the network, which is attached when it is taken.
    pub(super) fn fits_pool(&self, spec: &SessionSpec) -> bool {
        let own = &self.config.defaults;
        (spec.storage, spec.datasets, spec.limits) == (own.storage, own.datasets, own.limits)
            && spec.image == own.image
            // Mounts are made with a sandbox, and those of the pool are nobody's yet.
            && spec.volumes.is_empty()
            && spec.workspace.is_none()
    }
}

/// What the pool makes next.
pub(super) fn next_warm(shared: &Arc<EngineState>) -> pool::Next {
    // The pool is part of it.
    let shared = Arc::downgrade(shared);
    Box::new(move || {
        let shared = shared.upgrade().ok_or(EngineError::Stopping)?;
        let id = crate::new_id("ses");
        let defaults = &shared.config.defaults;
        if defaults.storage == Storage::Bind {
            let record = Record::of(&shared.config.sessions_root, &id);
            let path = record.directory().to_owned();
            record
                .prepare_unclaimed(&shared.config.disk, shared.store.owner())
                .map_err(|cause| EngineError::Directory { path, cause })?;
        }
        // It ends with us, unless somebody takes it.
        let spec = SandboxSpec { alone_for_s: 0, ..shared.sandbox_spec(defaults, &id)? };
        Ok((id, spec))
    })
}

async fn prepare_record(record: &Record, disk: &DiskConfig) -> Result<(), EngineError> {
    let path = record.directory().to_owned();
    let (record, disk) = (record.clone(), disk.clone());
    tokio::task::spawn_blocking(move || record.prepare(&disk))
        .await
        .unwrap_or_else(|panic| Err(std::io::Error::other(panic)))
        .map_err(|cause| EngineError::Directory { path, cause })
}
