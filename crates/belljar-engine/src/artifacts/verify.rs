//! Whether everything that was taken once is still there, as it was.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use super::blobs::{Blobs, tenant_dir};
use super::catalog::{ArtifactRow, Catalog};
use super::digest::Digest;
use crate::error::EngineError;

/// What was found so far.
#[derive(Debug, Default)]
pub struct Verified {
    /// Contents that were read and are intact.
    pub intact: u64,
    pub bytes: u64,
    /// Contents that no artifact has any more: the server removes them in time.
    pub unused: u64,
    pub lost: Vec<Lost>,
}

/// An artifact whose content is not what it was.
#[derive(Debug)]
pub struct Lost {
    pub artifact: ArtifactRow,
    pub reason: &'static str,
}

/// Reads all content and compares it with its hash, showing how far it is. Changes nothing, so that
/// a server may go on meanwhile; what comes or goes while this reads may or may not be counted.
pub fn verify(
    database: &Path,
    blobs_dir: &Path,
    mut progress: impl FnMut(&Verified),
) -> Result<Verified, EngineError> {
    let mut verified = Verified::default();
    if !database.exists() {
        return Ok(verified);
    }
    let catalog = Catalog::open(database)?;
    let mut wanted: HashMap<(String, Digest), Vec<ArtifactRow>> = HashMap::new();
    for row in catalog.all()? {
        wanted.entry((tenant_dir(&row.tenant), row.sha256)).or_default().push(row);
    }
    let failed = |cause| EngineError::Directory { path: blobs_dir.to_owned(), cause };
    let lose = |verified: &mut Verified, artifacts: Vec<ArtifactRow>, reason| {
        verified.lost.extend(artifacts.into_iter().map(|artifact| Lost { artifact, reason }));
    };
    let looked = Blobs::look_at(blobs_dir).and_then(|blobs| {
        blobs.walk(|stored| {
            let intact = match stored.is_intact() {
                // Removed while we looked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                intact => intact.unwrap_or(false),
            };
            match wanted.remove(&(stored.tenant_dir, stored.digest)) {
                None => verified.unused += 1,
                Some(artifacts) if !intact => {
                    lose(&mut verified, artifacts, "its content does not match its hash");
                }
                Some(_) => {
                    verified.intact += 1;
                    verified.bytes += stored.size;
                }
            }
            progress(&verified);
            Ok(())
        })
    });
    match looked {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        looked => looked.map_err(failed)?,
    }
    for artifacts in wanted.into_values() {
        lose(&mut verified, artifacts, "its content is missing");
    }
    Ok(verified)
}
