//! Uploads of datasets by clients.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::in_background;
use crate::blocking_writer::BlockingWriter;
use crate::datasets::{Arriving, DatasetInfo, DatasetName};
use crate::engine::{Engine, Principal};
use crate::error::EngineError;
use crate::session::HeldSession;
use crate::state::EngineState;
use crate::store::Digest;
use crate::uploads::UploadPermit;

/// A dataset that a client is sending. If it is dropped before [`Upload::finish`], it is stored as failed, and no part
/// of it is visible in the session.
#[derive(Debug)]
pub struct Upload {
    state: Arc<EngineState>,
    session: HeldSession,
    name: DatasetName,
    /// The hash that the client declared.
    promised: Option<Digest>,
    received: u64,
    /// `None` after it was finished or failed.
    arriving: Option<BlockingWriter<Arriving>>,
    _permit: UploadPermit,
}

/// Starts to write content to the cache, and to hash it.
pub(super) fn begin_arrival(
    state: &Arc<EngineState>,
) -> Result<BlockingWriter<Arriving>, EngineError> {
    let arriving = state.datasets.begin().map_err(EngineError::KeepDataset)?;
    let limit = state.config.dataset_bytes;
    Ok(BlockingWriter::begin(arriving, move |arriving, chunk| {
        if arriving.size() + chunk.len() as u64 > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, too_large(limit)));
        }
        arriving.write(chunk)
    }))
}

fn too_large(limit: u64) -> String {
    format!("it is larger than the limit of {limit} bytes (BELLJAR_DATASET_SIZE)")
}

impl Engine {
    /// Starts an upload. The client may declare its size and its hash.
    pub async fn upload(
        &self,
        who: &Principal,
        id: &str,
        name: DatasetName,
        declared: Option<u64>,
        promised: Option<Digest>,
    ) -> Result<Upload, EngineError> {
        let session = self.session_with_datasets(who, id).await?;
        let limit = self.state.config.dataset_bytes;
        if declared.is_some_and(|size| size > limit) {
            return Err(EngineError::TooLarge(too_large(limit)));
        }
        let _permit = self.state.uploads.permit(&who.tenant, id).await?;
        let arriving = Some(begin_arrival(&self.state)?);
        let state = Arc::clone(&self.state);
        // From here on, dropping the upload stores a failure.
        let upload = Upload { state, session, name, promised, received: 0, arriving, _permit };
        self.state.dataset_pending(&upload.session, &upload.name, None).await?;
        self.note_dataset(who, id, "dataset.upload", "begun", upload.name.as_str());
        Ok(upload)
    }
}

impl Upload {
    /// Adds bytes, at the speed of the disk.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), EngineError> {
        // The size is checked here too, because an error of the writer is seen only with the next bytes.
        self.received += bytes.len() as u64;
        let limit = self.state.config.dataset_bytes;
        if self.received > limit {
            return Err(self.fail(EngineError::TooLarge(too_large(limit))).await);
        }
        let is_sent = match &self.arriving {
            Some(arriving) => arriving.write(bytes).await,
            None => false,
        };
        if is_sent {
            return Ok(());
        }
        // The writer has failed, and returns the error.
        let error = match self.arriving.take() {
            Some(arriving) => arriving.finish().await.err().map(EngineError::KeepDataset),
            None => None,
        };
        Err(self.fail(error.unwrap_or(EngineError::UploadInterrupted)).await)
    }

    /// Makes the dataset visible in the session, even if the client does not wait for that.
    pub async fn finish(self) -> Result<DatasetInfo, EngineError> {
        in_background(self.complete()).await
    }

    async fn complete(mut self) -> Result<DatasetInfo, EngineError> {
        let Some(arriving) = self.arriving.take() else {
            return Err(EngineError::UploadInterrupted);
        };
        let staged = async {
            let arrived = arriving.finish().await.map_err(EngineError::KeepDataset)?;
            let found = arrived.sha256();
            if let Some(promised) = self.promised.filter(|promised| *promised != found) {
                return Err(EngineError::OtherContent { promised, found });
            }
            let (content, cached) = self.state.keep_dataset(&self.session.tenant, arrived).await?;
            let info = self.state.stage(&self.session, &self.name, None, content).await?;
            Ok(DatasetInfo { cached: Some(cached), ..info })
        };
        match staged.await {
            Ok(info) => Ok(info),
            Err(error) => Err(self.fail(error).await),
        }
    }

    async fn fail(&mut self, error: EngineError) -> EngineError {
        self.arriving = None;
        self.state.dataset_failed(&self.session, &self.name, None, &error).await;
        error
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.arriving.take().is_none() {
            return;
        }
        let (state, session) = (Arc::clone(&self.state), Arc::clone(&self.session));
        let name = self.name.clone();
        tokio::spawn(async move {
            let error = EngineError::UploadInterrupted;
            state.dataset_failed(&session, &name, None, &error).await;
        });
    }
}
