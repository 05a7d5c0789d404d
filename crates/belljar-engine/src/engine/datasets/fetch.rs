//! Fetches datasets from sources, with a cache.

use std::io;
use std::sync::Arc;

use belljar_proto::guest::TreeFile;
use belljar_runtime::paths;

use super::listing::is_unchanged;
use super::stage::{info_of_row, is_damage};
use super::upload::begin_arrival;
use crate::clock;
use crate::datasets::source::FetchOutcome;
use crate::datasets::{Content, DatasetInfo, DatasetName, DatasetStatus, Known};
use crate::error::EngineError;
use crate::session::Session;
use crate::state::EngineState;

/// How long fetched content without an ETag is used without asking the source again.
const FRESH_MS: i64 = 5 * 60 * 1000;

impl EngineState {
    /// A dataset of this session that was fetched from `source` and not changed since.
    pub(super) async fn still_loaded(
        &self,
        session: &Session,
        source: &str,
    ) -> Result<Option<DatasetInfo>, EngineError> {
        let row = self.store.dataset_of_source(&session.id, source).await?;
        let Some(row) = row.filter(|row| row.status == DatasetStatus::Loaded) else {
            return Ok(None);
        };
        let file = TreeFile { path: row.name.clone().into(), ..TreeFile::default() };
        let there = session.sandbox()?.open_files(paths::SESSION_DATA, &[file], 0).await;
        let there = there.ok().and_then(|mut opened| opened.pop()?.ok());
        let there = there.filter(|file| is_unchanged(&row, file.size, file.modified_ns));
        Ok(there.map(|_| info_of_row(row)))
    }

    pub(super) async fn fetch(
        self: &Arc<Self>,
        session: &Session,
        name: &DatasetName,
        source: &str,
        refresh: bool,
    ) -> Result<DatasetInfo, EngineError> {
        match self.fetch_or_find(session, name, source, refresh).await {
            // The damaged content is no longer in the cache.
            Err(error) if is_damage(&error) => {
                self.fetch_or_find(session, name, source, refresh).await
            }
            outcome => outcome,
        }
    }

    async fn fetch_or_find(
        self: &Arc<Self>,
        session: &Session,
        name: &DatasetName,
        source: &str,
        refresh: bool,
    ) -> Result<DatasetInfo, EngineError> {
        let tenant = &session.tenant;
        let known = self.datasets.known(tenant, source);
        let mut known =
            known.and_then(|known| Some((self.datasets.find(tenant, &known.sha256)?, known)));
        if let Some((content, known)) = known.take_if(|(_, known)| !refresh && is_fresh(known)) {
            return self.stage_as(session, name, source, &known, content, true).await;
        }
        let etag = known.as_ref().and_then(|(_, known)| known.etag.as_deref());
        if let Some((content, new)) = self.transfer(tenant, source, etag).await? {
            return self.stage_as(session, name, source, &new, content, false).await;
        }
        let Some((content, known)) = known else {
            let why = "the source answered 304 to a request without an ETag";
            return Err(EngineError::KeepDataset(io::Error::other(why)));
        };
        self.stage_as(session, name, source, &known, content, true).await
    }

    /// Fetches content from its source into the cache; `None` if it still has this ETag.
    async fn transfer(
        self: &Arc<Self>,
        tenant: &str,
        source: &str,
        etag: Option<&str>,
    ) -> Result<Option<(Content, Known)>, EngineError> {
        let _permit = self.fetching.acquire().await;
        let arriving = begin_arrival(self)?;
        let outcome = self.config.dataset_sources.fetch(source, etag, arriving.sender()).await;
        // A failed write ends the transfer, so the error of the write is the cause.
        let arrived = arriving.finish().await.map_err(EngineError::KeepDataset)?;
        let fetched = match outcome.map_err(EngineError::Source)? {
            FetchOutcome::NotModified => return Ok(None),
            FetchOutcome::Fetched(fetched) => fetched,
        };
        let (content, _) = self.keep_dataset(tenant, arrived).await?;
        let known = Known {
            sha256: content.sha256,
            etag: fetched.etag,
            file_name: fetched.file_name,
            fetched_ms: clock::now_ms(),
        };
        if let Err(error) = self.datasets.remember(tenant, source, &known) {
            tracing::warn!("failed to store which content a source had: {error}");
        }
        Ok(Some((content, known)))
    }

    /// Stages content under its file name from the source, which may have an extension that `asked` does not have.
    async fn stage_as(
        self: &Arc<Self>,
        session: &Session,
        asked: &DatasetName,
        source: &str,
        known: &Known,
        content: Content,
        cached: bool,
    ) -> Result<DatasetInfo, EngineError> {
        let name = asked.with_file_name(&known.file_name).unwrap_or_else(|_| asked.clone());
        let info = self.stage(session, &name, Some(source), content).await?;
        if name != *asked {
            // The dataset was pending under the other name.
            self.store.remove_dataset(&session.id, asked.as_str()).await?;
        }
        Ok(DatasetInfo { cached: Some(cached), ..info })
    }
}

fn is_fresh(known: &Known) -> bool {
    known.etag.is_none() && clock::now_ms() - known.fetched_ms < FRESH_MS
}
