//! Checks that the content of every artifact is still there and unchanged.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use tokio::runtime::Handle;

use super::blobs::Blobs;
use crate::error::EngineError;
use crate::objects::{Objects, ObjectsConfig};
use crate::store::{ArtifactCatalog, ArtifactRow, Digest, SqliteCatalog};
use crate::tenant_dir::TenantDir;

/// The findings so far.
#[derive(Debug, Default)]
pub struct Verified {
    /// Contents that were read and are intact.
    pub intact: u64,
    pub bytes: u64,
    /// Contents that no artifact uses. The next sweep of the server removes them.
    pub unused: u64,
    pub lost: Vec<Lost>,
    /// The value of `bytes` at the end, unless content is lost.
    pub expected_bytes: u64,
}

/// An artifact whose content is missing or changed.
#[derive(Debug)]
pub struct Lost {
    pub artifact: ArtifactRow,
    pub reason: &'static str,
}

/// Artifacts by the directory of their tenant and their content.
type Wanted = HashMap<(TenantDir, Digest), Vec<ArtifactRow>>;

/// Reads all content, in S3 if there is an `objects`, compares it with its hash, and calls `progress` after each. It
/// changes nothing, so a server may be running. Artifacts that are added or removed meanwhile may or may not be
/// counted.
pub async fn verify(
    database: &Path,
    blobs_dir: &Path,
    objects: Option<&ObjectsConfig>,
    progress: impl FnMut(&Verified) + Send + 'static,
) -> Result<Verified, EngineError> {
    let Some(catalog) = open(database.to_owned()).await? else { return Ok(Verified::default()) };
    verify_catalog(&catalog, blobs_dir, objects, progress).await
}

/// The same for a catalog that is not a SQLite file.
pub async fn verify_catalog(
    catalog: &dyn ArtifactCatalog,
    blobs_dir: &Path,
    objects: Option<&ObjectsConfig>,
    progress: impl FnMut(&Verified) + Send + 'static,
) -> Result<Verified, EngineError> {
    let mut wanted = Wanted::new();
    for row in catalog.all().await? {
        wanted.entry((TenantDir::of(&row.tenant), row.sha256)).or_default().push(row);
    }
    let objects = objects.map(Objects::open).transpose().map_err(EngineError::from)?;
    let (directory, runtime) = (blobs_dir.to_owned(), Handle::current());
    let reading = tokio::task::spawn_blocking(move || {
        let _runtime = runtime.enter();
        let open = || match objects {
            Some(objects) => Ok(Blobs::look_at_objects(objects)),
            None => Blobs::look_at(&directory),
        };
        read_all(open, wanted, progress)
    });
    let read = reading.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
    let mut verified = read.map_err(|cause| unusable(blobs_dir, cause))?;
    if !verified.lost.is_empty() {
        // Artifacts that were removed meanwhile are not lost.
        let there: HashSet<String> = catalog.all().await?.into_iter().map(|row| row.id).collect();
        verified.lost.retain(|lost| there.contains(&lost.artifact.id));
        verified.lost.sort_by(|a, b| {
            (a.artifact.created_ms, &a.artifact.id).cmp(&(b.artifact.created_ms, &b.artifact.id))
        });
    }
    Ok(verified)
}

/// The catalog, if there is one.
async fn open(database: PathBuf) -> Result<Option<SqliteCatalog>, EngineError> {
    let path = database.clone();
    let opening = tokio::task::spawn_blocking(move || match path.try_exists() {
        Ok(true) => Ok(Some(SqliteCatalog::open(&path)?)),
        Ok(false) => Ok(None),
        Err(cause) => Err(unusable(&path, cause)),
    });
    opening.await.unwrap_or_else(|panic| Err(unusable(&database, io::Error::other(panic))))
}

fn unusable(path: &Path, cause: io::Error) -> EngineError {
    EngineError::Directory { path: path.to_owned(), cause }
}

fn read_all(
    open: impl FnOnce() -> io::Result<Blobs>,
    mut wanted: Wanted,
    mut progress: impl FnMut(&Verified),
) -> io::Result<Verified> {
    let sizes = wanted.values().filter_map(|artifacts| Some(artifacts.first()?.size));
    let mut verified = Verified { expected_bytes: sizes.sum(), ..Verified::default() };
    let walked = open().and_then(|blobs| {
        blobs.walk(|stored| {
            let (key, size) = ((stored.tenant, stored.digest), stored.size);
            let damage = match stored.check() {
                // Removed in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Ok(true) => None,
                Ok(false) => Some("its content does not match its hash"),
                Err(_) => Some("its content cannot be read"),
            };
            match (wanted.remove(&key), damage) {
                (None, _) => verified.unused += 1,
                (Some(artifacts), Some(reason)) => verified.lose(artifacts, reason),
                (Some(_), None) => {
                    verified.intact += 1;
                    verified.bytes += size;
                }
            }
            progress(&verified);
            Ok(())
        })
    });
    match walked {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    for artifacts in wanted.into_values() {
        verified.lose(artifacts, "its content is missing");
    }
    Ok(verified)
}

impl Verified {
    fn lose(&mut self, artifacts: Vec<ArtifactRow>, reason: &'static str) {
        self.lost.extend(artifacts.into_iter().map(|artifact| Lost { artifact, reason }));
    }
}
