//! Settings of artifacts.

use std::path::{Path, PathBuf};

use anyhow::Result;
use belljar_engine::artifacts::{ArtifactQuota, ArtifactQuotas};
use belljar_engine::objects::ObjectsConfig;

use super::values::Values;
use super::{objects, parse};

#[derive(Debug, Clone)]
pub struct ArtifactSettings {
    /// The directory of their content.
    pub blobs_dir: PathBuf,
    /// S3, if their content is there.
    pub objects: Option<ObjectsConfig>,
    /// The database of artifacts.
    pub database: PathBuf,
    /// The directory for exported datasets.
    pub exports_dir: PathBuf,
    /// Files stay in the sandbox after they became artifacts.
    pub keep_originals: bool,
    pub quotas: ArtifactQuotas,
    pub retention_s: Option<u64>,
    /// Seconds that a link is valid.
    pub link_ttl_s: u64,
    /// The base URL of links, without a slash at the end.
    pub public_url: Option<String>,
}

impl ArtifactSettings {
    pub(super) fn read(
        values: &Values<'_>,
        home: &Path,
        state_dir: &Path,
    ) -> Result<ArtifactSettings> {
        let most = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        let bytes = |name| values.limit(name, parse::size_from(0)).map(most);
        let count = |name| values.limit(name, parse::number(0..=u64::MAX)).map(most);
        Ok(ArtifactSettings {
            blobs_dir: values.path_or("BLOBSTORE_DIR", || Ok(home.join("blobstore")))?,
            objects: objects::read(values)?,
            database: values.path_or("ARTIFACTS_DB", || Ok(state_dir.join("artifacts.db")))?,
            exports_dir: values.path("BELLJAR_EXPORTS_DIR")?.expect("its default is not empty"),
            keep_originals: values.read("BELLJAR_KEEP_ARTIFACTS", parse::yes_or_no)?,
            quotas: ArtifactQuotas {
                file_bytes: bytes("BELLJAR_ARTIFACT_SIZE")?,
                session: ArtifactQuota {
                    bytes: bytes("BELLJAR_SESSION_ARTIFACT_BYTES")?,
                    count: count("BELLJAR_SESSION_ARTIFACTS")?,
                },
                tenant: ArtifactQuota {
                    bytes: bytes("BELLJAR_TENANT_ARTIFACT_BYTES")?,
                    count: count("BELLJAR_TENANT_ARTIFACTS")?,
                },
            },
            retention_s: values.limit("BELLJAR_ARTIFACT_RETENTION", parse::seconds_or_0)?,
            link_ttl_s: values.read("BELLJAR_LINK_TTL", parse::seconds)?,
            public_url: values.optional("BELLJAR_PUBLIC_URL", parse::public_url)?,
        })
    }
}
