//! Volumes, and which sessions and runs use them.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use belljar_runtime::VolumeKind;
use serde::{Deserialize, Serialize};

use crate::{StoreError, VolumeName};

/// The volumes that a session or run asks for.
pub type AskedVolumes = BTreeMap<VolumeName, VolumeMode>;

/// The access of a session to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeMode {
    Rw,
    Ro,
}

/// The limits of all volumes of a tenant together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeQuota {
    pub count: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRow {
    /// Also the name of its directory.
    pub id: String,
    pub tenant: String,
    pub name: VolumeName,
    pub size: u64,
    pub kind: VolumeKind,
    pub created_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeUser {
    /// The id of the session, or of the run.
    pub id: String,
    pub mode: VolumeMode,
}

/// The result of [`VolumeRecords::add_volume`].
#[derive(Debug, PartialEq, Eq)]
pub enum VolumeAdded {
    Yes,
    Exists,
    /// The quota is reached: the tenant has this many volumes, with this many bytes.
    NoRoom {
        count: u64,
        bytes: u64,
    },
}

/// The result of [`VolumeRecords::retire_volume`].
#[derive(Debug, PartialEq, Eq)]
pub enum VolumeRetired {
    Yes(VolumeRow),
    Unknown,
    Used(Vec<VolumeUser>),
}

/// The volumes of all tenants, as a server finds them when it starts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct VolumesLeft {
    pub ready: Vec<VolumeRow>,
    /// Volumes that an earlier server was creating or removing.
    pub unfinished: Vec<VolumeRow>,
}

/// A run's use of volumes, which ends when this is dropped.
pub struct VolumeHold {
    release: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl VolumeHold {
    pub fn new(release: impl FnOnce() + Send + Sync + 'static) -> VolumeHold {
        VolumeHold { release: Some(Box::new(release)) }
    }
}

impl Drop for VolumeHold {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

impl fmt::Debug for VolumeHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeHold").finish_non_exhaustive()
    }
}

/// A volume is in use by the sessions that have not ended and whose spec names it, and by the runs
/// that hold it. A volume is retired in the transaction that finds no user, and a session is stored
/// before its volumes are looked up. So if both happen at the same time, at least one of them sees
/// the other.
#[async_trait]
pub trait VolumeRecords {
    /// Adds a volume that is about to be created, if the tenant's quota allows it. Only
    /// [`volumes_left`](VolumeRecords::volumes_left) lists it until it is ready.
    async fn add_volume(
        &self,
        row: VolumeRow,
        quota: VolumeQuota,
    ) -> Result<VolumeAdded, StoreError>;

    /// Marks a volume as created.
    async fn volume_ready(&self, id: &str) -> Result<(), StoreError>;

    /// Makes a volume that is not in use unavailable, before it is removed.
    async fn retire_volume(
        &self,
        tenant: &str,
        name: VolumeName,
    ) -> Result<VolumeRetired, StoreError>;

    /// Deletes the row of a volume that is no longer on disk.
    async fn forget_volume(&self, id: &str) -> Result<(), StoreError>;

    async fn volume(
        &self,
        tenant: &str,
        name: &VolumeName,
    ) -> Result<Option<VolumeRow>, StoreError>;

    /// The volumes of a tenant, by name.
    async fn volumes(&self, tenant: &str) -> Result<Vec<VolumeRow>, StoreError>;

    async fn volumes_left(&self) -> Result<VolumesLeft, StoreError>;

    /// The volumes that a session requests, in the order of their names; or the name of the first
    /// one that does not exist.
    async fn volumes_asked(
        &self,
        tenant: &str,
        asked: AskedVolumes,
    ) -> Result<Result<Vec<VolumeRow>, VolumeName>, StoreError>;

    /// The same for a run, which uses the volumes until the hold is dropped or this process ends.
    async fn hold_volumes(
        &self,
        tenant: &str,
        asked: AskedVolumes,
        run: &str,
    ) -> Result<Result<(Vec<VolumeRow>, VolumeHold), VolumeName>, StoreError>;

    /// The sessions and runs of this tenant that use volumes, by id.
    async fn volume_users(&self, tenant: &str) -> Result<Vec<(String, AskedVolumes)>, StoreError>;
}
