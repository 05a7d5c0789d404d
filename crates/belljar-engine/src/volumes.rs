//! Volumes: named files of a tenant that outlive sessions, and are shown to any number of them at
//! `/volumes/NAME`.
//!
//! ```text
//!            made on disk              nobody uses it
//!   making ───────────────▶ ready ───────────────────▶ removing ──▶ no row
//!      └── killed ──▶ removed at the next start ◀── killed ──┘
//! ```
//!
//! The row comes first and goes last, so that whatever is on disk is known of. Who uses a volume is
//! never written down by itself: it is what the rows of living sessions say, also after a restart, and
//! the runs of this process. A session's row is written before its volumes are looked up, and a
//! volume is given up in the same transaction that finds no session: of the two, one sees the other.

use std::path::PathBuf;

use belljar_runtime::{VolumeKind, VolumePlace, VolumeUsage};
use tokio::sync::Semaphore;

pub use crate::store::{
    AskedVolumes, BadVolumeName, VolumeMode, VolumeName, VolumeQuota, VolumeRow, VolumeUser,
};

/// The most that one session can have.
pub const MAX_PER_SESSION: usize = 16;

/// Looking at what a volume holds can take its time; so many at once.
const MEASURED_AT_ONCE: usize = 2;

/// How a server keeps volumes.
#[derive(Debug, Clone)]
pub struct VolumesConfig {
    pub root: PathBuf,
    /// How new ones are kept; none: with an enforced size if that is possible.
    pub kind: Option<VolumeKind>,
    /// Of one whose size nobody said.
    pub size: u64,
    /// How many a tenant can have, and how large they can be together.
    pub per_tenant: VolumeQuota,
    /// Refuses volumes whose size is not enforced.
    pub strict: bool,
}

impl VolumesConfig {
    /// How a new volume is kept, and why not better.
    #[must_use]
    pub fn new_kind(&self) -> (VolumeKind, Option<&'static str>) {
        VolumeKind::of_new(self.kind, "BELLJAR_VOLUME_STORAGE=directory asks for that")
    }
}

/// Everything about a volume.
#[derive(Debug, Clone)]
pub struct VolumeInfo {
    pub name: VolumeName,
    pub size: u64,
    pub kind: VolumeKind,
    pub created_ms: i64,
    /// Living sessions, and runs.
    pub used_by: Vec<VolumeUser>,
    /// Where somebody asked for that.
    pub usage: Option<VolumeUsage>,
}

impl VolumeInfo {
    /// Whether more than its size is refused by the kernel.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.kind == VolumeKind::Image
    }
}

/// Where volumes are on disk.
#[derive(Debug)]
pub(crate) struct Volumes {
    pub(crate) config: VolumesConfig,
    directory: PathBuf,
    pub(crate) measuring: Semaphore,
}

impl Volumes {
    /// Servers that share a root have a directory each in it, named after the owner of their store.
    pub(crate) fn new(config: VolumesConfig, owner: &str) -> Volumes {
        let directory = config.root.join(owner);
        Volumes { config, directory, measuring: Semaphore::new(MEASURED_AT_ONCE) }
    }

    pub(crate) fn place(&self, row: &VolumeRow) -> VolumePlace {
        VolumePlace { directory: self.directory.join(&row.id), kind: row.kind }
    }
}
