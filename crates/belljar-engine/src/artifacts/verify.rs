//! Whether everything that was taken once is still there, as it was.

use std::collections::{HashMap, HashSet};
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
    /// What `bytes` comes to in the end, unless something is lost.
    pub expected_bytes: u64,
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
    let unseen = |cause| EngineError::Directory { path: database.to_owned(), cause };
    if !database.try_exists().map_err(unseen)? {
        return Ok(verified);
    }
    let catalog = Catalog::open(database)?;
    let mut wanted: HashMap<(String, Digest), Vec<ArtifactRow>> = HashMap::new();
    for row in catalog.all()? {
        wanted.entry((tenant_dir(&row.tenant), row.sha256)).or_default().push(row);
    }
    let sizes = wanted.values().filter_map(|artifacts| Some(artifacts.first()?.size));
    verified.expected_bytes = sizes.sum();
    let failed = |cause| EngineError::Directory { path: blobs_dir.to_owned(), cause };
    let lose = |verified: &mut Verified, artifacts: Vec<ArtifactRow>, reason| {
        verified.lost.extend(artifacts.into_iter().map(|artifact| Lost { artifact, reason }));
    };
    let looked = Blobs::look_at(blobs_dir).and_then(|blobs| {
        blobs.walk(|stored| {
            let damage = match stored.is_intact() {
                // Removed while we looked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Ok(true) => None,
                Ok(false) => Some("its content does not match its hash"),
                Err(_) => Some("its content cannot be read"),
            };
            match (wanted.remove(&(stored.tenant_dir, stored.digest)), damage) {
                (None, _) => verified.unused += 1,
                (Some(artifacts), Some(reason)) => lose(&mut verified, artifacts, reason),
                (Some(_), None) => {
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
    if !verified.lost.is_empty() {
        // What was removed while we looked is not lost.
        let there: HashSet<String> = catalog.all()?.into_iter().map(|row| row.id).collect();
        verified.lost.retain(|lost| there.contains(&lost.artifact.id));
        verified.lost.sort_by(|a, b| {
            (a.artifact.created_ms, &a.artifact.id).cmp(&(b.artifact.created_ms, &b.artifact.id))
        });
    }
    Ok(verified)
}
