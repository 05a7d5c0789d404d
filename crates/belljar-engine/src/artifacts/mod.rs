//! Artifacts: files that code left in a sandbox, stored on the host.
//!
//! ```text
//!   sandbox ── guest lists, opens ──▶ ingest ── bytes, hashed on the way ──▶ Blobs: content
//!                                       │
//!                                       └── name, size, type, origin ──▶ ArtifactCatalog: rows
//! ```
//!
//! The host opens no path that code in the sandbox controls. The guest lists and opens files and
//! follows no links; the host gets descriptors, checks that each is a plain file opened for reading,
//! and copies no more than the size it had then. Names are used only below directories that the
//! host has made.
//!
//! A server has an [`ArtifactStore`]; a run without a server [copies](promote()) artifacts to a
//! directory.

mod blobs;
mod claim;
mod export;
mod ingest;
mod links;
mod mime;
mod names;
mod pins;
mod promote;
mod sandbox_files;
mod store;
mod tokens;
mod verify;

use std::collections::BTreeMap;
use std::path::PathBuf;

use belljar_runtime::paths;
use serde::{Deserialize, Serialize};

pub use blobs::{BlobReader, CopiedBlobs, ReadAt, copy_blobs};
pub(crate) use claim::catalog_id;
pub use claim::{ClaimError, claim_objects};
pub use export::{Exported, Exports};
pub(crate) use ingest::{ArtifactMemory, ArtifactOrigin, ArtifactPlace};
pub use mime::is_active;
pub use promote::{ArtifactLimits, promote};
pub use store::{ArtifactLink, ArtifactStore, ArtifactStoreConfig};
pub use tokens::Method;
pub(crate) use tokens::read_key;
pub use verify::{Lost, Verified, verify, verify_catalog};

use crate::error::{EngineError, in_full};
pub use crate::store::{ArtifactFilter, ArtifactQuota, ArtifactQuotas, ArtifactRow, Digest};

/// The artifacts of an execution or a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifacts {
    pub artifacts: Vec<Artifact>,
    /// Path in the sandbox to path on the host.
    pub artifact_map: BTreeMap<String, PathBuf>,
    /// Files that were not taken, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts_refused: Vec<RefusedArtifact>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// `None` for an artifact of a run without a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub name: String,
    /// In the sandbox.
    pub path: String,
    pub host_path: PathBuf,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    /// A link for downloading it, which expires. Every response has a new link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RefusedArtifact {
    pub path: String,
    pub reason: String,
}

impl Artifact {
    fn copied(name: String, path: String, host_path: PathBuf, size: u64) -> Artifact {
        Artifact { id: None, name, path, host_path, size, mime: None, sha256: None, url: None }
    }
}

impl Artifacts {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.artifacts.is_empty() && self.artifacts_refused.is_empty()
    }

    /// The artifacts of a run whose directory could not be listed.
    pub(crate) fn none_taken(error: &EngineError) -> Artifacts {
        let mut artifacts = Artifacts::default();
        artifacts.refuse(paths::RUN_ARTIFACTS.into(), in_full(error));
        artifacts
    }

    fn add(&mut self, artifact: Artifact) {
        self.artifact_map.insert(artifact.path.clone(), artifact.host_path.clone());
        self.artifacts.push(artifact);
    }

    pub(crate) fn refuse(&mut self, path: String, reason: impl Into<String>) {
        self.artifacts_refused.push(RefusedArtifact { path, reason: reason.into() });
    }
}
