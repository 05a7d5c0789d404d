//! Creates, lists and removes volumes, and prepares their mounts for sessions and runs.

use std::sync::Arc;

use belljar_runtime::{
    MAX_VOLUME_SIZE, MIN_VOLUME_SIZE, RuntimeError, VolumeKind, VolumeMount, VolumeUsage,
};

use super::{Engine, EngineState, Principal};
use crate::audit::AuditEntry;
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::store::{VolumeAdded, VolumeHold, VolumeRetired, VolumesLeft};
use crate::volumes::{AskedVolumes, VolumeInfo, VolumeMode, VolumeName, VolumeRow, VolumeUser};

impl Engine {
    /// Creates an empty volume for this tenant.
    pub async fn create_volume(
        &self,
        who: &Principal,
        name: VolumeName,
        size: Option<u64>,
    ) -> Result<VolumeInfo, EngineError> {
        let size = size.unwrap_or(self.state.volumes.config.size);
        let (state, tenant, of) = (Arc::clone(&self.state), who.tenant.clone(), name.clone());
        // A separate task: the caller may disconnect, and the volume must not stay half made.
        let making = tokio::spawn(async move { state.make_volume(tenant, of, size).await });
        let made = making.await.unwrap_or(Err(EngineError::Stopping));
        self.note_volume(who, "volume_create", &name, made.as_ref().map(|_| "created"));
        made
    }

    /// The volumes of this tenant, by name.
    pub async fn volumes(&self, who: &Principal) -> Result<Vec<VolumeInfo>, EngineError> {
        let state = &self.state;
        let rows = state.store.volumes(&who.tenant).await?;
        let users = state.volume_users(who).await?;
        Ok(rows.into_iter().map(|row| info(row, &users, None)).collect())
    }

    /// A volume, with its usage.
    pub async fn volume(
        &self,
        who: &Principal,
        name: VolumeName,
    ) -> Result<VolumeInfo, EngineError> {
        let state = &self.state;
        let row = state.store.volume(&who.tenant, &name).await?;
        let row = row.ok_or(EngineError::NoVolume(name))?;
        let usage = state.volume_usage(&row).await?;
        let users = state.volume_users(who).await?;
        Ok(info(row, &users, Some(usage)))
    }

    /// Removes a volume that is not in use, with everything in it.
    pub async fn remove_volume(
        &self,
        who: &Principal,
        name: VolumeName,
    ) -> Result<(), EngineError> {
        let (state, tenant, of) = (Arc::clone(&self.state), who.tenant.clone(), name.clone());
        let removing = tokio::spawn(async move { state.remove_volume(&tenant, of).await });
        let removed = removing.await.unwrap_or(Err(EngineError::Stopping));
        self.note_volume(who, "volume_remove", &name, removed.as_ref().map(|()| "removed"));
        removed
    }

    fn note_volume(
        &self,
        who: &Principal,
        action: &str,
        name: &VolumeName,
        outcome: Result<&str, &EngineError>,
    ) {
        let outcome = outcome.map_or_else(|error| in_full(error), str::to_owned);
        let detail = Some(name.as_str());
        self.audit
            .note(who, &AuditEntry { action, outcome: &outcome, detail, ..AuditEntry::default() });
    }
}

fn check_size(size: u64) -> Result<(), EngineError> {
    if (MIN_VOLUME_SIZE..=MAX_VOLUME_SIZE).contains(&size) {
        return Ok(());
    }
    let (least, most) = (MIN_VOLUME_SIZE >> 20, MAX_VOLUME_SIZE >> 40);
    Err(EngineError::Invalid(format!("size: expected {least} MiB to {most} TiB")))
}

impl EngineState {
    async fn make_volume(
        &self,
        tenant: String,
        name: VolumeName,
        size: u64,
    ) -> Result<VolumeInfo, EngineError> {
        let config = &self.volumes.config;
        check_size(size)?;
        let kind = self.kind_of_new_volume()?;
        let row = VolumeRow {
            id: crate::new_id("vol"),
            tenant,
            name,
            size,
            kind,
            created_ms: clock::now_ms(),
        };
        match self.store.add_volume(row.clone(), config.per_tenant).await? {
            VolumeAdded::Yes => {}
            VolumeAdded::Exists => return Err(EngineError::VolumeExists(row.name)),
            VolumeAdded::NoRoom { count, bytes } => {
                let quota = config.per_tenant;
                return Err(EngineError::VolumeQuota(format!(
                    "there are {count} volumes of {bytes} bytes together; at most {} of {} bytes \
                     are allowed",
                    quota.count, quota.bytes
                )));
            }
        }
        let place = self.volumes.place(&row);
        let made = blocking(move || place.make(size)).await;
        if let Err(error) = made {
            // No files are left, so the row is removed too.
            self.store.forget_volume(&row.id).await?;
            return Err(EngineError::Volume(error));
        }
        self.store.volume_ready(&row.id).await?;
        Ok(info(row, &[], None))
    }

    fn kind_of_new_volume(&self) -> Result<VolumeKind, EngineError> {
        let config = &self.volumes.config;
        match config.new_kind() {
            (VolumeKind::Image, Some(why)) => Err(EngineError::VolumeNotEnforced(format!(
                "BELLJAR_VOLUME_STORAGE=image asks for volumes with an enforced size, which this \
                 server cannot make: {why}"
            ))),
            (VolumeKind::Directory, Some(why)) if config.strict => {
                Err(EngineError::VolumeNotEnforced(format!(
                    "BELLJAR_STRICT=1 forbids volumes whose size is not enforced: {why}"
                )))
            }
            (kind, _) => Ok(kind),
        }
    }

    async fn remove_volume(&self, tenant: &str, name: VolumeName) -> Result<(), EngineError> {
        match self.store.retire_volume(tenant, name.clone()).await? {
            VolumeRetired::Yes(row) => self.finish_removal(row).await,
            VolumeRetired::Unknown => Err(EngineError::NoVolume(name)),
            VolumeRetired::Used(by) => Err(EngineError::VolumeInUse {
                name,
                by: by.into_iter().map(|user| user.id).collect(),
            }),
        }
    }

    /// Removes the files, and then the row. If that fails, the next start tries again.
    async fn finish_removal(&self, row: VolumeRow) -> Result<(), EngineError> {
        let place = self.volumes.place(&row);
        let path = place.directory.clone();
        blocking(move || {
            place.remove().map_err(|cause| RuntimeError::Volume { doing: "remove", path, cause })
        })
        .await
        .map_err(EngineError::Volume)?;
        Ok(self.store.forget_volume(&row.id).await?)
    }

    /// Finishes what an earlier server had begun, and unmounts what it left mounted.
    pub(super) async fn recover_volumes(self: &Arc<Self>) {
        let VolumesLeft { ready, unfinished } = match self.store.volumes_left().await {
            Ok(left) => left,
            Err(error) => {
                tracing::error!("failed to look for volumes: {}", in_full(&error));
                return;
            }
        };
        for row in ready {
            let place = self.volumes.place(&row);
            let _ = tokio::task::spawn_blocking(move || place.tidy()).await;
        }
        // In the background: clients no longer see these volumes, and they may contain many files.
        let state = Arc::clone(self);
        tokio::spawn(async move {
            for row in unfinished {
                let name = row.name.clone();
                if let Err(error) = state.finish_removal(row).await {
                    let error = in_full(&error);
                    tracing::error!("failed to remove the rest of volume `{name}`: {error}");
                }
            }
        });
    }

    async fn volume_usage(&self, row: &VolumeRow) -> Result<VolumeUsage, EngineError> {
        let _permit = self.volumes.measuring.acquire().await;
        let place = self.volumes.place(row);
        blocking(move || place.usage()).await.map_err(EngineError::Volume)
    }

    async fn volume_users(
        &self,
        who: &Principal,
    ) -> Result<Vec<(String, AskedVolumes)>, EngineError> {
        Ok(self.store.volume_users(&who.tenant).await?)
    }

    /// Refuses volumes that do not exist, before anything is created.
    pub(super) async fn check_volumes(
        &self,
        tenant: &str,
        asked: &AskedVolumes,
    ) -> Result<(), EngineError> {
        if asked.is_empty() {
            return Ok(());
        }
        let found = self.store.volumes_asked(tenant, asked.clone()).await?;
        found.map(|_| ()).map_err(EngineError::NoVolume)
    }

    /// The mounts below `/volumes` for a session whose row is stored.
    pub(crate) async fn volumes_for_session(
        &self,
        tenant: &str,
        asked: &AskedVolumes,
    ) -> Result<Vec<VolumeMount>, EngineError> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.store.volumes_asked(tenant, asked.clone()).await?;
        self.mounts(rows.map_err(EngineError::NoVolume)?, asked).await
    }

    /// The same for a run, which uses the volumes until the hold is dropped.
    pub(super) async fn volumes_for_run(
        &self,
        tenant: &str,
        asked: &AskedVolumes,
        run: &str,
    ) -> Result<(Vec<VolumeMount>, Option<VolumeHold>), EngineError> {
        if asked.is_empty() {
            return Ok((Vec::new(), None));
        }
        let held = self.store.hold_volumes(tenant, asked.clone(), run).await?;
        let (rows, hold) = held.map_err(EngineError::NoVolume)?;
        Ok((self.mounts(rows, asked).await?, Some(hold)))
    }

    async fn mounts(
        &self,
        rows: Vec<VolumeRow>,
        asked: &AskedVolumes,
    ) -> Result<Vec<VolumeMount>, EngineError> {
        let mut mounts = Vec::with_capacity(rows.len());
        for row in rows {
            let write = asked.get(&row.name) == Some(&VolumeMode::Rw);
            if row.kind == VolumeKind::Directory {
                self.check_soft(&row, write).await?;
            }
            let place = self.volumes.place(&row);
            mounts.push(VolumeMount { name: row.name.into(), place, write });
        }
        Ok(mounts)
    }

    /// Checks a volume whose size is not enforced: a full volume is not given to another writer.
    /// Nothing more can be done about its size.
    async fn check_soft(&self, row: &VolumeRow, write: bool) -> Result<(), EngineError> {
        if self.volumes.config.strict {
            return Err(EngineError::VolumeNotEnforced(format!(
                "the size of volume `{}` is not enforced, and BELLJAR_STRICT=1 forbids that",
                row.name
            )));
        }
        if !write {
            return Ok(());
        }
        let usage = self.volume_usage(row).await?;
        if usage.bytes >= row.size || usage.partial {
            return Err(EngineError::VolumeFull {
                name: row.name.clone(),
                used: usage.bytes,
                size: row.size,
            });
        }
        Ok(())
    }
}

fn info(
    row: VolumeRow,
    users: &[(String, AskedVolumes)],
    usage: Option<VolumeUsage>,
) -> VolumeInfo {
    let used_by = users
        .iter()
        .filter_map(|(id, volumes)| {
            Some(VolumeUser { id: id.clone(), mode: *volumes.get(&row.name)? })
        })
        .collect();
    let VolumeRow { name, size, kind, created_ms, .. } = row;
    VolumeInfo { name, size, kind, created_ms, used_by, usage }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(RuntimeError::Build(panic.to_string())))
}
