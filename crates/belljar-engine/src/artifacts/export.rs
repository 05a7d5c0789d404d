//! Exports: files of `/session/data` that are copied to the host, each as an artifact and as a file
//! with a new name.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belljar_proto::guest::TreeLimits;
use belljar_runtime::{Sandbox, paths};
use serde::Serialize;

use super::ingest::{ArtifactOrigin, ArtifactPlace, own_directory};
use super::names::harmless;
use super::sandbox_files::SandboxFiles;
use super::store::ArtifactStore;
use super::{Artifact, RefusedArtifact};
use crate::clock;
use crate::error::EngineError;

const AT_ONCE: TreeLimits = TreeLimits { files: 1000, depth: 16 };

/// How many names are tried for a file.
const ATTEMPTS: u32 = 1000;

/// A file that was copied from a session to the host.
#[derive(Debug, Clone, Serialize)]
pub struct Exported {
    /// Below `/session/data`.
    pub dataset: String,
    #[serde(flatten)]
    pub artifact: Artifact,
}

#[derive(Debug, Clone, Default)]
pub struct Exports {
    pub exports: Vec<Exported>,
    pub refused: Vec<RefusedArtifact>,
}

impl ArtifactStore {
    /// Exports these files of `/session/data`, or all of them. The originals are kept.
    pub(crate) async fn export(
        &self,
        sandbox: &Sandbox,
        tenant: &str,
        session: &str,
        names: Option<BTreeSet<String>>,
    ) -> Result<Exports, EngineError> {
        let exec = crate::new_id("export");
        let origin = ArtifactOrigin { tenant, session, exec: &exec, place: ArtifactPlace::Exports };
        let mut files = selected(sandbox, origin, names).await?;
        let mut refused = self.take_all(&mut files, origin, &HashMap::new()).await?.refused;
        let stamp = clock::stamp(clock::now_ms());
        let mut exports = Vec::new();
        let rows = self.catalog.of_exec(session, &exec).await?;
        let nowhere = vec![None; rows.len()];
        for mut artifact in self.show(rows, nowhere).await {
            let Some(name) = relative(&artifact.path).map(str::to_owned) else { continue };
            match self.copy_out(&artifact, tenant, &name, &stamp).await {
                Ok(host_path) => {
                    artifact.host_path = host_path;
                    exports.push(Exported { dataset: name, artifact });
                }
                Err(error) => {
                    let reason = format!("it could not be exported: {error}");
                    refused.push(RefusedArtifact { path: artifact.path, reason });
                }
            }
        }
        Ok(Exports { exports, refused })
    }

    /// Copies the content of an artifact to the exports of its tenant. Returns the copy's path.
    async fn copy_out(
        &self,
        artifact: &Artifact,
        tenant: &str,
        name: &str,
        stamp: &str,
    ) -> io::Result<PathBuf> {
        let (blob, stamp) = (artifact.host_path.clone(), stamp.to_owned());
        let directory = own_directory(&self.config.exports_dir, tenant);
        let file = harmless(name.as_bytes()).unwrap_or_default();
        let placing = tokio::task::spawn_blocking(move || place(&blob, &directory, &file, &stamp));
        placing.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }
}

async fn selected<'a>(
    sandbox: &'a Sandbox,
    origin: ArtifactOrigin<'_>,
    names: Option<BTreeSet<String>>,
) -> Result<SandboxFiles<'a>, EngineError> {
    let Some(names) = names else {
        return SandboxFiles::begin(sandbox, origin.directory(), AT_ONCE).await;
    };
    let most = AT_ONCE.files;
    if names.len() as u64 > most {
        return Err(EngineError::Invalid(format!("at most {most} can be exported at once")));
    }
    let paths = names.into_iter().map(String::into_bytes);
    Ok(SandboxFiles::named(sandbox, origin.directory(), paths))
}

/// The name of a file of `/session/data`.
fn relative(path: &str) -> Option<&str> {
    path.strip_prefix(paths::SESSION_DATA)?.strip_prefix('/')
}

/// Copies content to the exports, under the file's own name with the time in it. If that name is
/// taken, a number is added.
fn place(blob: &Path, directory: &Path, file: &Path, stamp: &str) -> io::Result<PathBuf> {
    let folder = directory.join(file.parent().unwrap_or(Path::new("")));
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let part =
        |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let stem = part(file.file_stem());
    let extension = file.extension().map(|it| format!(".{}", it.to_string_lossy()));
    let extension = extension.unwrap_or_default();
    for attempt in 1..=ATTEMPTS {
        let number = if attempt == 1 { String::new() } else { format!("-{attempt}") };
        let path = folder.join(format!("{stem}_{stamp}{number}{extension}"));
        match copy_new(blob, &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => return linked.map(|()| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Copies instead of linking, because users may write to the file.
fn copy_new(blob: &Path, path: &Path) -> io::Result<()> {
    let mut target = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let copied = File::open(blob).and_then(|mut blob| io::copy(&mut blob, &mut target));
    if copied.is_err() {
        let _ = fs::remove_file(path);
    }
    copied.map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn nothing_is_ever_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let blob = directory.path().join("blob");
        fs::write(&blob, "x").unwrap();
        let exports = directory.path().join("exports");
        let export = |file: &str| {
            let path = place(&blob, &exports, Path::new(file), "T").unwrap();
            path.strip_prefix(&exports).unwrap().display().to_string()
        };
        assert_eq!(export("a/sales.csv"), "a/sales_T.csv");
        assert_eq!(export("a/sales.csv"), "a/sales_T-2.csv");
        assert_eq!(export("a/sales.csv"), "a/sales_T-3.csv");
        assert_eq!(export("README"), "README_T");
        let mode = |path: &str| fs::metadata(exports.join(path)).unwrap().permissions().mode();
        assert_eq!((mode("a") & 0o777, mode("a/sales_T.csv") & 0o777), (0o700, 0o600));
    }
}
