//! Settings of volumes.

use std::path::{Path, PathBuf};

use anyhow::Result;
use belljar_engine::volumes::{VolumeQuota, VolumesConfig};
use belljar_runtime::{MIN_VOLUME_SIZE, VolumeKind};

use super::parse;
use super::values::Values;

#[derive(Debug, Clone)]
pub struct VolumeSettings {
    pub root: PathBuf,
    /// `None`: with an enforced size if that is possible.
    pub kind: Option<VolumeKind>,
    /// The default size of a volume.
    pub size: u64,
    pub per_tenant: VolumeQuota,
}

impl VolumeSettings {
    pub(super) fn read(values: &Values<'_>, home: &Path) -> Result<VolumeSettings> {
        let most = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        let count = values.limit("BELLJAR_TENANT_VOLUMES", parse::number(0..=u64::MAX));
        let bytes = values.limit("BELLJAR_TENANT_VOLUME_BYTES", parse::size_from(0));
        Ok(VolumeSettings {
            root: values.path_or("BELLJAR_VOLUMES_DIR", || Ok(home.join("volumes")))?,
            kind: values.read("BELLJAR_VOLUME_STORAGE", kind)?,
            size: values.read("BELLJAR_VOLUME_SIZE", parse::size_from(MIN_VOLUME_SIZE))?,
            per_tenant: VolumeQuota { count: most(count?), bytes: most(bytes?) },
        })
    }

    #[must_use]
    pub fn config(&self, strict: bool) -> VolumesConfig {
        let VolumeSettings { root, kind, size, per_tenant } = self.clone();
        VolumesConfig { root, kind, size, per_tenant, strict }
    }
}

/// How files are stored; `None`: with an enforced size if that is possible.
pub(super) fn kind(text: &str) -> Option<Option<VolumeKind>> {
    match text.to_ascii_lowercase().as_str() {
        "auto" => Some(None),
        "image" => Some(Some(VolumeKind::Image)),
        "directory" => Some(Some(VolumeKind::Directory)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::with;
    use super::*;

    #[test]
    fn volumes_are_bounded_and_enforced_where_possible_unless_told() {
        let volumes = with(&[]).unwrap().volumes;
        assert_eq!((volumes.kind, volumes.size), (None, 1 << 30));
        assert_eq!(volumes.per_tenant, VolumeQuota { count: 32, bytes: 32 << 30 });
        assert_eq!(volumes.root, Path::new("/x/volumes"));
        let pairs = [("BELLJAR_VOLUME_STORAGE", "Directory"), ("BELLJAR_TENANT_VOLUMES", "0")];
        let volumes = with(&pairs).unwrap().volumes;
        assert_eq!(volumes.kind, Some(VolumeKind::Directory));
        assert_eq!(volumes.per_tenant.count, u64::MAX);
        assert!(with(&[("BELLJAR_VOLUME_SIZE", "1M")]).is_err(), "too small");
    }
}
