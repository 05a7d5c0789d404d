//! Specifications for the sandboxes of sessions, runs and the pool.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_runtime::{DataMount, SandboxSpec};

use crate::error::EngineError;
use crate::pool;
use crate::session_directory::SessionDirectory;
use crate::spec::{Datasets, SessionSpec, Storage};
use crate::state::EngineState;

impl EngineState {
    /// The directory of the host that a session requests, if it is allowed.
    pub(crate) async fn find_workspace(
        &self,
        asked: Option<&Path>,
    ) -> Result<Option<PathBuf>, EngineError> {
        let Some(asked) = asked.map(Path::to_owned) else { return Ok(None) };
        let config = self.config.workspaces.clone();
        // The directory may be on a slow disk, so a blocking thread is used.
        let found = tokio::task::spawn_blocking(move || config.find(&asked)).await;
        found.map_err(|panic| EngineError::Internal(panic.to_string()))?.map(Some)
    }

    /// The specification of the sandbox of a session with this spec.
    pub(crate) fn sandbox_spec(
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
            .then(|| SessionDirectory::of(&self.config.sessions_root, id).place())
            .flatten();
        Ok(SandboxSpec {
            limits: spec.limits,
            env: spec.environment().into_iter().collect(),
            data,
            session_files,
            // Volumes belong to a tenant, which is not known here.
            volumes: Vec::new(),
            workspace: spec.workspace.clone(),
            alone_for_s: self.config.alone_for_s,
            image: Some(spec.image.clone()),
            labels: vec![("belljar.session".to_owned(), id.to_owned())],
        })
    }

    /// Whether a warm sandbox of the pool can be used for a session with this spec. The environment does not matter,
    /// because every execution gets it; nor does the network, which is attached when the sandbox is taken.
    pub(crate) fn fits_pool(&self, spec: &SessionSpec) -> bool {
        let own = &self.config.defaults;
        (spec.storage, spec.datasets, spec.limits) == (own.storage, own.datasets, own.limits)
            && spec.image == own.image
            // Mounts are made when the sandbox is created, and sandboxes of the pool have no tenant yet.
            && spec.volumes.is_empty()
            && spec.workspace.is_none()
    }
}

/// Returns the function that specifies the next sandbox of the pool.
pub(crate) fn next_warm(state: &Arc<EngineState>) -> pool::Next {
    // A weak reference, because the pool is part of the state.
    let state = Arc::downgrade(state);
    Box::new(move || {
        let state = state.upgrade().ok_or(EngineError::Stopping)?;
        let id = crate::new_id("ses");
        let defaults = &state.config.defaults;
        if defaults.storage == Storage::Bind {
            let record = SessionDirectory::of(&state.config.sessions_root, &id);
            let path = record.directory().to_owned();
            record
                .prepare_unclaimed(&state.config.disk, state.store.owner())
                .map_err(|cause| EngineError::Directory { path, cause })?;
        }
        // The sandbox ends with this server, unless a session takes it.
        let spec = SandboxSpec { alone_for_s: 0, ..state.sandbox_spec(defaults, &id)? };
        Ok((id, spec))
    })
}
