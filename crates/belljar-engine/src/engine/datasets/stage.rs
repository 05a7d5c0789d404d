//! Copies content into a session, and stores the status of each dataset.

use std::io;
use std::sync::Arc;

use belljar_proto::guest::TreeFile;
use belljar_runtime::{UntrustedFile, paths};

use super::listing::{LISTED, is_temporary, modified_ms};
use crate::clock;
use crate::datasets::{Arriving, Content, DatasetInfo, DatasetName, DatasetRow, DatasetStatus};
use crate::error::{EngineError, in_full};
use crate::session::Session;
use crate::spec::Datasets;
use crate::state::EngineState;
use crate::store::Digest;

impl EngineState {
    pub(super) async fn dataset_pending(
        &self,
        session: &Session,
        name: &DatasetName,
        source: Option<&str>,
    ) -> Result<(), EngineError> {
        Ok(self.store.put_dataset(row(session, name, source, DatasetStatus::Pending)).await?)
    }

    pub(super) async fn dataset_failed(
        &self,
        session: &Session,
        name: &DatasetName,
        source: Option<&str>,
        error: &EngineError,
    ) {
        let reason = Some(in_full(error));
        let row = DatasetRow { reason, ..row(session, name, source, DatasetStatus::Failed) };
        if let Err(error) = self.store.put_dataset(row).await {
            let why = in_full(&error);
            tracing::error!(session.id = session.id, "failed to store a dataset's state: {why}");
        }
    }

    pub(super) async fn keep_dataset(
        self: &Arc<Self>,
        tenant: &str,
        arrived: Arriving,
    ) -> Result<(Content, bool), EngineError> {
        let (state, tenant) = (Arc::clone(self), tenant.to_owned());
        let keeping = tokio::task::spawn_blocking(move || state.datasets.keep(&tenant, arrived));
        let kept = keeping.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        kept.map_err(EngineError::KeepDataset)
    }

    /// Makes content visible in a session: writes a hidden file, and renames it when it is complete.
    pub(super) async fn stage(
        self: &Arc<Self>,
        session: &Session,
        name: &DatasetName,
        source: Option<&str>,
        content: Content,
    ) -> Result<DatasetInfo, EngineError> {
        let (sha256, size) = (content.sha256, content.size);
        let sandbox = session.sandbox()?;
        let path = name.as_str().as_bytes();
        let (file, temporary) =
            sandbox.create_file(paths::SESSION_DATA, path).await.map_err(EngineError::Stage)?;
        let copied = match copy(content, file).await {
            Ok(()) => sandbox.commit_file(&temporary).await.map_err(EngineError::Stage),
            Err(error) => Err(self.copy_failed(session, &sha256, size, error)),
        };
        let committed = match copied {
            Ok(committed) => committed,
            Err(error) => {
                // If this fails too, the file stays hidden.
                let _ = sandbox.discard_file(temporary).await;
                return Err(error);
            }
        };
        let row = DatasetRow {
            sha256: Some(sha256),
            size: Some(size),
            updated_ms: modified_ms(committed.modified_ns),
            ..row(session, name, source, DatasetStatus::Loaded)
        };
        self.store.put_dataset(row.clone()).await?;
        Ok(info_of_row(row))
    }

    fn copy_failed(
        &self,
        session: &Session,
        sha256: &Digest,
        size: u64,
        error: io::Error,
    ) -> EngineError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                return EngineError::NoRoomInside(size);
            }
            io::ErrorKind::InvalidData => self.datasets.forget(&session.tenant, sha256),
            _ => {}
        }
        EngineError::KeepDataset(error)
    }

    /// Removes hidden files that an earlier server left before this time.
    pub(crate) async fn clear_half_staged(&self, session: &Session, before_ms: i64) {
        let (Datasets::Api, Ok(sandbox)) = (session.spec.datasets, session.sandbox()) else {
            return;
        };
        // If this fails, they stay hidden.
        let Ok(tree) = sandbox.list_tree(paths::SESSION_DATA, LISTED).await else { return };
        let is_left =
            |file: &TreeFile| is_temporary(&file.path) && file.changed_ns / 1_000_000 < before_ms;
        let left: Vec<TreeFile> = tree.files.into_iter().filter(is_left).collect();
        if !left.is_empty() {
            let _ = sandbox.remove_files(paths::SESSION_DATA, &left).await;
        }
    }
}

async fn copy(content: Content, file: UntrustedFile) -> io::Result<()> {
    let copying = tokio::task::spawn_blocking(move || (content.copy_to(&file), file));
    let (copied, file) = copying.await.map_err(io::Error::other)?;
    file.close().await;
    copied
}

pub(super) fn row(
    session: &Session,
    name: &DatasetName,
    source: Option<&str>,
    status: DatasetStatus,
) -> DatasetRow {
    DatasetRow {
        session: session.id.clone(),
        name: name.as_str().to_owned(),
        status,
        reason: None,
        source: source.map(str::to_owned),
        sha256: None,
        size: None,
        updated_ms: clock::now_ms(),
    }
}

pub(super) fn info_of_row(row: DatasetRow) -> DatasetInfo {
    DatasetInfo {
        path: format!("{}/{}", paths::SESSION_DATA, row.name),
        name: row.name,
        status: row.status,
        reason: row.reason,
        source: row.source,
        size: row.size,
        modified: Some(clock::rfc3339(row.updated_ms)),
        sha256: row.sha256,
        description: None,
        cached: None,
    }
}

/// Whether cached content did not have the hash that it was stored under.
pub(super) fn is_damage(error: &EngineError) -> bool {
    matches!(error, EngineError::KeepDataset(cause) if cause.kind() == io::ErrorKind::InvalidData)
}
