//! Volumes: named directories of a tenant that outlive sessions. Any number of sessions can use one,
//! at `/volumes/NAME`.
//!
//! ```text
//!            made on disk              not in use
//!   making ───────────────▶ ready ───────────────────▶ removing ──▶ no row
//!      └── killed ──▶ removed at the next start ◀── killed ──┘
//! ```
//!
//! The row is added first and deleted last, so that everything on disk has a row. The users of a volume are not stored
//! separately. They are the sessions that have not ended and whose rows name the volume, and the runs of this process.
//! A session's row is stored before its volumes are looked up, and a volume is retired in the transaction that finds no
//! user. So if both happen at the same time, at least one of them sees the other.

use std::path::PathBuf;

use belljar_runtime::{VolumeKind, VolumePlace, VolumeUsage};
use tokio::sync::Semaphore;

pub use crate::store::{
    AskedVolumes, BadVolumeName, VolumeMode, VolumeName, VolumeQuota, VolumeRow, VolumeUser,
};

/// How many volumes one session can have.
pub const MAX_PER_SESSION: usize = 16;

/// How many volumes are measured at the same time, because measuring can take long.
const MEASURED_AT_ONCE: usize = 2;

/// Settings of volumes.
#[derive(Debug, Clone)]
pub struct VolumesConfig {
    pub root: PathBuf,
    /// For new volumes. `None` means with an enforced size if that is possible.
    pub kind: Option<VolumeKind>,
    /// The size in bytes of a volume that is created without a size.
    pub size: u64,
    /// The quota of all volumes of a tenant together.
    pub per_tenant: VolumeQuota,
    /// Refuses volumes whose size is not enforced.
    pub strict: bool,
}

impl VolumesConfig {
    /// The kind of a new volume, and the reason if its size is not enforced.
    #[must_use]
    pub fn new_kind(&self) -> (VolumeKind, Option<&'static str>) {
        VolumeKind::of_new(self.kind, "BELLJAR_VOLUME_STORAGE=directory is set")
    }
}

/// Everything about a volume.
#[derive(Debug, Clone)]
pub struct VolumeInfo {
    pub name: VolumeName,
    pub size: u64,
    pub kind: VolumeKind,
    pub created_ms: i64,
    /// Sessions that have not ended, and runs.
    pub used_by: Vec<VolumeUser>,
    /// `None` if it was not measured.
    pub usage: Option<VolumeUsage>,
}

impl VolumeInfo {
    /// Whether the kernel enforces its size.
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
    /// Servers that share a root each have a directory in it, named after the owner of their store.
    pub(crate) fn new(config: VolumesConfig, owner: &str) -> Volumes {
        let directory = config.root.join(owner);
        Volumes { config, directory, measuring: Semaphore::new(MEASURED_AT_ONCE) }
    }

    pub(crate) fn place(&self, row: &VolumeRow) -> VolumePlace {
        VolumePlace { directory: self.directory.join(&row.id), kind: row.kind }
    }
}
