//! Reads the files of a snapshot in S3 and compares them with their hashes.

use std::collections::HashSet;

use serde_json::Value;

use super::{PartFile, RemoteSnapshots, read};
use crate::error::EngineError;

impl RemoteSnapshots {
    /// Returns the number of files and their bytes. Objects in `intact` are not read again, and those that were read are
    /// added to it.
    pub(in crate::snapshots) async fn read_back(
        &self,
        pointer: &Value,
        intact: &mut HashSet<String>,
    ) -> Result<(u64, u64), EngineError> {
        let files = read(pointer).map_err(EngineError::KeepSnapshot)?.files;
        for file in &files {
            if intact.contains(&file.key) {
                continue;
            }
            let copy = PartFile(self.0.cache.part().await.map_err(EngineError::KeepSnapshot)?);
            let read = self.0.download(file, copy.0.clone()).await;
            read.map_err(EngineError::KeepSnapshot)?;
            intact.insert(file.key.clone());
        }
        Ok((files.len() as u64, files.iter().map(|file| file.bytes).sum()))
    }
}
