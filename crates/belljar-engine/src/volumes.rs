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

mod name;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use belljar_runtime::{VolumeKind, VolumePlace, VolumeUsage};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

pub use name::{BadVolumeName, VolumeName};

use crate::lock;
use crate::store::{Store, StoreError};

/// What a session is to see, and how.
pub type AskedVolumes = BTreeMap<VolumeName, VolumeMode>;

/// The most that one session can have.
pub const MAX_PER_SESSION: usize = 16;

/// Looking at what a volume holds can take its time; so many at once.
const MEASURED_AT_ONCE: usize = 2;

/// What a session may do with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeMode {
    Rw,
    Ro,
}

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeQuota {
    pub count: u64,
    pub bytes: u64,
}

impl VolumesConfig {
    /// How a new volume is kept, and why not better.
    #[must_use]
    pub fn new_kind(&self) -> (VolumeKind, Option<&'static str>) {
        VolumeKind::of_new(self.kind, "BELLJAR_VOLUME_STORAGE=directory asks for that")
    }
}

/// A volume, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRow {
    /// Its directory.
    pub id: String,
    pub tenant: String,
    pub name: VolumeName,
    pub size: u64,
    pub kind: VolumeKind,
    pub created_ms: i64,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeUser {
    /// Of the session, or of the run.
    pub id: String,
    pub mode: VolumeMode,
}

/// Where they are, and which runs use them.
#[derive(Debug)]
pub(crate) struct Volumes {
    pub(crate) config: VolumesConfig,
    directory: PathBuf,
    pub(crate) runs: Runs,
    pub(crate) measuring: Semaphore,
}

/// What runs use, by id: tenant and volumes. EngineState with jobs of the store.
pub(crate) type Runs = Arc<Mutex<HashMap<String, (String, AskedVolumes)>>>;

impl Volumes {
    /// Servers that share a root have directories of their own in it, by the name of their database.
    pub(crate) fn new(config: VolumesConfig, store: &Store) -> Result<Volumes, StoreError> {
        let directory = config.root.join(store.owner()?);
        let measuring = Semaphore::new(MEASURED_AT_ONCE);
        Ok(Volumes { config, directory, runs: Runs::default(), measuring })
    }

    pub(crate) fn place(&self, row: &VolumeRow) -> VolumePlace {
        VolumePlace { directory: self.directory.join(&row.id), kind: row.kind }
    }
}

/// Lets go of a run's volumes when it ends, however it does.
#[derive(Debug)]
pub(crate) struct RunHold {
    pub(crate) runs: Runs,
    pub(crate) id: String,
}

impl Drop for RunHold {
    fn drop(&mut self) {
        lock(&self.runs).remove(&self.id);
    }
}
