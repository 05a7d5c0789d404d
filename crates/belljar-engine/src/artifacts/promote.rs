//! Artifacts of a run without a server, which are copied to a directory.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use belljar_proto::guest::TreeLimits;
use belljar_runtime::{Sandbox, paths};

use super::sandbox_files::SandboxFiles;
use super::{Artifact, Artifacts};
use crate::EngineError;

/// How many artifacts one run may leave.
#[derive(Debug, Clone, Copy)]
pub struct ArtifactLimits {
    pub files: u64,
    pub depth: u32,
    /// Bytes of one file, and of all files.
    pub file_bytes: u64,
    pub total_bytes: u64,
}

impl Default for ArtifactLimits {
    fn default() -> Self {
        ArtifactLimits { files: 10_000, depth: 32, file_bytes: 1 << 30, total_bytes: 4 << 30 }
    }
}

/// Copies the artifacts of `sandbox` below `directory`, which is created with the first artifact.
pub async fn promote(
    sandbox: &Sandbox,
    directory: &Path,
    limits: ArtifactLimits,
) -> Result<Artifacts, EngineError> {
    let tree_limits = TreeLimits { files: limits.files, depth: limits.depth };
    let mut files =
        SandboxFiles::begin(sandbox, (paths::ARTIFACTS, paths::RUN_ARTIFACTS), tree_limits).await?;
    files.most = limits.file_bytes;
    let mut promoted = Artifacts::default();
    let mut total = 0;
    while let Some(batch) = files.next().await {
        for found in batch {
            let size = found.size;
            if size > limits.file_bytes || total + size > limits.total_bytes {
                promoted.refuse(found.path, format!("{size} bytes are too many"));
                continue;
            }
            let host_path = directory.join(&found.relative);
            let name = found.name();
            let (file, target) = (found.file, host_path.clone());
            let copied = tokio::task::spawn_blocking(move || copy(&file, size, &target)).await;
            match copied.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
                Ok(size) => {
                    total += size;
                    promoted.add(Artifact::copied(name, found.path, host_path, size));
                }
                Err(error) => promoted.refuse(
                    found.path,
                    format!("failed to write `{}`: {error}", host_path.display()),
                ),
            }
        }
    }
    promoted.artifacts_refused.extend(files.refused);
    Ok(promoted)
}

/// Copies at most `size` bytes: a file that grows meanwhile is cut there.
fn copy(from: &File, size: u64, to: &Path) -> io::Result<u64> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut target = File::create_new(to)?;
    io::copy(&mut from.take(size), &mut target)
}
