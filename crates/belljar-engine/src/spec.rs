//! The request for a session.

use std::collections::BTreeMap;
use std::path::PathBuf;

use belljar_runtime::Limits;

use crate::network::Policy;
pub use crate::store::{Checkpoints, Datasets, SessionSpec, Storage};
use crate::volumes::AskedVolumes;

/// The settings that a caller requests. The server chooses those that are not set.
#[derive(Debug, Clone, Default)]
pub struct SessionAsk {
    pub key: Option<String>,
    pub image: Option<String>,
    pub storage: Option<Storage>,
    pub datasets: Option<Datasets>,
    pub memory: Option<u64>,
    pub millicpus: Option<u32>,
    pub pids: Option<u64>,
    pub tmpfs: Option<u64>,
    pub network: Option<Policy>,
    pub volumes: Option<AskedVolumes>,
    pub workspace: Option<PathBuf>,
    pub env: Option<BTreeMap<String, String>>,
    pub ttl_s: Option<u64>,
    pub idle_s: Option<u64>,
    pub spill_s: Option<u64>,
    /// `Some(None)`: without checkpoints.
    pub checkpoints: Option<Option<Checkpoints>>,
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

impl SessionAsk {
    /// The spec of the session, with defaults for the fields that are not set. If only the size of
    /// files in memory is set, the memory limit is raised to hold them.
    #[must_use]
    pub fn with_defaults(&self, defaults: &SessionSpec) -> SessionSpec {
        let own = defaults.clone();
        let least = self.tmpfs.map_or(0, Limits::memory_for_tmpfs);
        SessionSpec {
            image: self.image.clone().unwrap_or(own.image),
            storage: self.storage.unwrap_or(own.storage),
            datasets: self.datasets.unwrap_or(own.datasets),
            limits: Limits {
                memory: self.memory.unwrap_or(own.limits.memory.max(least)),
                millicpus: self.millicpus.unwrap_or(own.limits.millicpus),
                pids: self.pids.unwrap_or(own.limits.pids),
                tmpfs: self.tmpfs.unwrap_or(own.limits.tmpfs),
            },
            network: self.network.clone().unwrap_or(own.network),
            volumes: self.volumes.clone().unwrap_or(own.volumes),
            workspace: self.workspace.clone().or(own.workspace),
            env: self.env.clone().unwrap_or(own.env),
            ttl_s: self.ttl_s.unwrap_or(own.ttl_s),
            idle_s: self.idle_s.or(own.idle_s),
            spill_s: self.spill_s.or(own.spill_s),
            checkpoints: self.checkpoints.unwrap_or(own.checkpoints),
            metadata: self.metadata.clone().unwrap_or(own.metadata),
        }
    }

    /// The fields that are set and differ from an existing session with the same key. A longer time
    /// to live does not count as a difference, because it is granted.
    #[must_use]
    pub fn differences(&self, found: &SessionSpec) -> Vec<&'static str> {
        fn differs<T: PartialEq>(asked: Option<&T>, found: &T) -> bool {
            asked.is_some_and(|asked| asked != found)
        }
        let limits = &found.limits;
        let all = [
            ("image", differs(self.image.as_ref(), &found.image)),
            ("storage", differs(self.storage.as_ref(), &found.storage)),
            ("datasets", differs(self.datasets.as_ref(), &found.datasets)),
            ("limits.memory", differs(self.memory.as_ref(), &limits.memory)),
            ("limits.cpus", differs(self.millicpus.as_ref(), &limits.millicpus)),
            ("limits.pids", differs(self.pids.as_ref(), &limits.pids)),
            ("limits.tmpfs", differs(self.tmpfs.as_ref(), &limits.tmpfs)),
            ("network", differs(self.network.as_ref(), &found.network)),
            ("volumes", differs(self.volumes.as_ref(), &found.volumes)),
            ("workspace", self.workspace.is_some() && self.workspace != found.workspace),
            ("env", differs(self.env.as_ref(), &found.env)),
            ("checkpoints", differs(self.checkpoints.as_ref(), &found.checkpoints)),
        ];
        all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_can_differ() {
        let defaults = SessionSpec {
            image: "host".into(),
            storage: Storage::Tmpfs,
            datasets: Datasets::None,
            limits: Limits::default(),
            network: Policy::default(),
            volumes: AskedVolumes::new(),
            workspace: None,
            env: BTreeMap::new(),
            ttl_s: 3600,
            idle_s: None,
            spill_s: None,
            checkpoints: None,
            metadata: serde_json::Map::new(),
        };
        let ask = SessionAsk { memory: Some(64 << 20), ttl_s: Some(5), ..SessionAsk::default() };
        let small = ask.with_defaults(&defaults);
        assert_eq!((small.limits.memory, small.ttl_s, small.limits.pids), (64 << 20, 5, 256));
        assert_eq!(SessionAsk::default().differences(&small), Vec::<&str>::new());
        assert_eq!(ask.differences(&defaults), ["limits.memory"]);
        let ask = SessionAsk { tmpfs: Some(1 << 30), ..SessionAsk::default() };
        let large = ask.with_defaults(&defaults);
        assert_eq!((large.limits.effective_tmpfs(), large.limits.memory), (1 << 30, 1366 << 20));
        assert_eq!(ask.differences(&large), Vec::<&str>::new(), "asked for twice");
        let ask = SessionAsk { tmpfs: Some(1 << 20), ..SessionAsk::default() };
        assert_eq!(ask.with_defaults(&defaults).limits.memory, 512 << 20, "never less");
    }

    #[test]
    fn the_old_name_of_api_access_is_understood() {
        assert_eq!(serde_json::from_str::<Datasets>("\"API_TMPFS\"").unwrap(), Datasets::Api);
    }
}
