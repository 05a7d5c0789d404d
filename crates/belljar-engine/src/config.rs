//! The configuration of a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::Quota;
use crate::artifacts::ArtifactStoreConfig;
use crate::datasets::source::Sources;
use crate::error::EngineError;
use crate::network::Network;
use crate::session_directory::DiskConfig;
use crate::snapshots::SnapshotConfig;
use crate::spec::SessionSpec;
use crate::volumes::VolumesConfig;
use crate::workspaces::WorkspacesConfig;

#[derive(Debug, Clone)]
pub struct EngineConfig {
    pub defaults: SessionSpec,
    /// Patterns of images that sessions may ask for besides the default.
    pub images: Vec<String>,
    pub sessions_root: PathBuf,
    /// The directory that `LOCAL_RO` mounts at `/data`.
    pub datasets_dir: Option<PathBuf>,
    /// Where the server itself fetches datasets from.
    pub dataset_sources: Arc<Sources>,
    /// The cache of dataset content, and its limit in bytes.
    pub dataset_cache: PathBuf,
    pub dataset_cache_bytes: u64,
    /// The largest dataset.
    pub dataset_bytes: u64,
    /// The network access of sandboxes.
    pub network: Arc<Network>,
    /// How the files of sessions with storage BIND are kept.
    pub disk: DiskConfig,
    /// How volumes are kept.
    pub volumes: VolumesConfig,
    /// Directories of the host that sessions may mount at `/workspace`.
    pub workspaces: WorkspacesConfig,
    /// Where artifacts are kept.
    pub artifact_store: ArtifactStoreConfig,
    /// Warm sandboxes to keep.
    pub pool: usize,
    pub total: Quota,
    /// How long a sandbox lives without a server.
    pub alone_for_s: u64,
    /// The longest time to live that a client can ask for.
    pub max_ttl_s: u64,
    /// When idle sessions move their large values to disk; `None` means never.
    pub spill: Option<SpillPolicy>,
    pub snapshots: SnapshotConfig,
    /// This server as a node of a cluster; `None` for a single server.
    pub node: Option<NodeConfig>,
    /// How often the snapshot from which an awake session goes on after the loss of its node is renewed; `None` means
    /// only when the session hibernates, and after checkpoints.
    pub snapshot_every: Option<Duration>,
}

/// A server as a node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    pub id: String,
    /// What its kernels can be restored on, and from (`belljar_sys::wake_class::NodeClass`).
    pub class: String,
}

/// When and which large values of an idle session are moved to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpillPolicy {
    /// How long the session must be idle.
    pub after: Duration,
    /// The smallest table or column that is moved to disk, in bytes; then the smallest array.
    pub frame_bytes: u64,
    pub array_bytes: u64,
}

impl EngineConfig {
    /// Refuses an image that the operator did not allow.
    pub(crate) fn check_image(&self, image: &str) -> Result<(), EngineError> {
        let own = &self.defaults.image;
        let is_allowed = |image: &str| {
            tagged(image) == tagged(own)
                || self.images.iter().any(|pattern| matches(pattern, image))
        };
        // `name` and `name:latest` are one image.
        if is_allowed(image) || is_allowed(&tagged(image)) {
            return Ok(());
        }
        let others = match self.images[..] {
            [] => String::new(),
            _ => format!(", and allows {}", self.images.join(", ")),
        };
        Err(EngineError::Invalid(format!(
            "image `{image}` is not allowed here; this server has `{own}`{others}. Its operator can allow \
             others with BELLJAR_IMAGES (names, or * for all), or make it the default with SANDBOX_IMAGE"
        )))
    }
}

/// The name of an image with its tag; the default tag is `latest`.
fn tagged(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

/// Whether a name matches a pattern, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    (0..=name.len()).any(|at| name.is_char_boundary(at) && matches(rest, &name[at..]))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name) in
            [("a", "a"), ("*", "a/b:c"), ("team/*", "team/x"), ("*/py:3.*", "x/py:3.12"), ("*", "")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "ab"), ("team/*", "other/x"), ("*:1", "x:2"), ("", "a")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
