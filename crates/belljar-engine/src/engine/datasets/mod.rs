//! Datasets of sessions: uploaded, fetched from sources, listed and exported.

mod fetch;
mod listing;
mod stage;
mod upload;

use std::io;
use std::sync::Arc;

use belljar_runtime::paths;
use tokio::sync::oneshot;

pub use upload::Upload;

use super::{Engine, Principal};
use crate::audit::AuditEntry;
use crate::datasets::source::SourceError;
use crate::datasets::{DatasetInfo, DatasetListing, DatasetName, DatasetStatus, Exports};
use crate::error::{EngineError, in_full};
use crate::session::HeldSession;
use crate::spec::Datasets;
use crate::store::Digest;
use listing::list;
use stage::{info_of_row, is_damage, row};

impl Engine {
    /// Stages content that another session of the tenant has put into the cache; `None` if it is not cached.
    pub async fn stage_known(
        &self,
        who: &Principal,
        id: &str,
        name: DatasetName,
        sha256: Digest,
    ) -> Result<Option<DatasetInfo>, EngineError> {
        let session = self.session_with_datasets(who, id).await?;
        let Some(content) = self.state.datasets.find(&session.tenant, &sha256) else {
            return Ok(None);
        };
        let state = Arc::clone(&self.state);
        let staging = async move {
            match state.stage(&session, &name, None, content).await {
                Ok(info) => Ok(Some(DatasetInfo { cached: Some(true), ..info })),
                // The cached content was damaged.
                Err(error) if is_damage(&error) => Ok(None),
                Err(error) => {
                    state.dataset_failed(&session, &name, None, &error).await;
                    Err(error)
                }
            }
        };
        in_background(staging).await
    }

    /// Fetches a dataset from its source, unless the session has it. `begun` receives the pending state first.
    pub async fn stage_from_source(
        &self,
        who: &Principal,
        id: &str,
        source: &str,
        refresh: bool,
        begun: oneshot::Sender<DatasetInfo>,
    ) -> Result<DatasetInfo, EngineError> {
        let session = self.session_with_datasets(who, id).await?;
        if !refresh && let Some(loaded) = self.state.still_loaded(&session, source).await? {
            return Ok(DatasetInfo { cached: Some(true), ..loaded });
        }
        let name: DatasetName =
            source.parse().map_err(|error| EngineError::Invalid(format!("{error}")))?;
        if !self.state.config.dataset_sources.knows(source) {
            let none = SourceError::NoSource { id: source.to_owned() };
            return Err(EngineError::Source(none));
        }
        self.state.dataset_pending(&session, &name, Some(source)).await?;
        let pending = row(&session, &name, Some(source), DatasetStatus::Pending);
        // Most callers wait only for the end, so the receiver may be gone.
        let _ = begun.send(info_of_row(pending));
        let fetched = self.state.fetch(&session, &name, source, refresh).await;
        let outcome = match &fetched {
            Ok(_) => "loaded".to_owned(),
            Err(error) => {
                self.state.dataset_failed(&session, &name, Some(source), error).await;
                in_full(error)
            }
        };
        self.note_dataset(who, id, "dataset.fetch", &outcome, source);
        fetched
    }

    /// The datasets of a session.
    pub async fn datasets(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<(Datasets, DatasetListing), EngineError> {
        let session = self.settled_session(who, id).await?;
        let access = session.spec.datasets;
        let listing = match access {
            Datasets::None => DatasetListing::default(),
            Datasets::LocalRo => list(&*session.sandbox()?, paths::DATA, &[]).await?,
            Datasets::Api => {
                let rows = self.state.store.datasets(&session.id).await?;
                list(&*session.sandbox()?, paths::SESSION_DATA, &rows).await?
            }
        };
        Ok((access, listing))
    }

    /// Copies files of `/session/data` to the host and makes them artifacts: the named ones, or all.
    pub async fn export(
        &self,
        who: &Principal,
        id: &str,
        names: Option<Vec<DatasetName>>,
    ) -> Result<Exports, EngineError> {
        let session = self.settled_session(who, id).await?;
        let sandbox = session.sandbox()?;
        let names = names.map(|names| names.iter().map(ToString::to_string).collect());
        let exports =
            self.state.artifact_store.export(&sandbox, &session.tenant, &session.id, names).await?;
        let outcome = format!("{} exported", exports.exports.len());
        self.note_dataset(who, id, "dataset.export", &outcome, "");
        Ok(exports)
    }

    /// A live session with its sandbox. Waits if the session is being created, or found again after a restart.
    pub(in crate::engine) async fn settled_session(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<HeldSession, EngineError> {
        let session = self.live_session(who, id).await?;
        session.awake(who.quota()).await?;
        Ok(session)
    }

    async fn session_with_datasets(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<HeldSession, EngineError> {
        let session = self.settled_session(who, id).await?;
        if session.spec.datasets != Datasets::Api {
            return Err(EngineError::NoStaging(session.id.clone()));
        }
        session.used()?;
        Ok(session)
    }

    fn note_dataset(
        &self,
        who: &Principal,
        id: &str,
        action: &'static str,
        outcome: &str,
        detail: &str,
    ) {
        let detail = Some(detail).filter(|detail| !detail.is_empty());
        self.audit.note(
            who,
            &AuditEntry { action, outcome, session: Some(id), detail, ..AuditEntry::default() },
        );
    }
}

/// Runs to the end even if the caller stops waiting, so that a file in the session is completed or removed.
async fn in_background<T: Send + 'static>(
    work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, EngineError> {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|panic| Err(EngineError::KeepDataset(io::Error::other(panic))))
}
