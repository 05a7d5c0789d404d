//! The specification of a session, as it is stored.

use std::collections::BTreeMap;
use std::path::PathBuf;

use belljar_network::Policy;
use belljar_runtime::Limits;
use serde::{Deserialize, Serialize};

use crate::AskedVolumes;

/// Where the files of `/session` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Storage {
    /// In memory, until the session ends.
    #[serde(rename = "TMPFS")]
    Tmpfs,
    /// On disk, below the sessions root. It outlives the session.
    #[serde(rename = "BIND")]
    Bind,
}

/// How a session gets datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Datasets {
    #[serde(rename = "NONE")]
    None,
    /// A directory of the host at `/data`, read-only.
    #[serde(rename = "LOCAL_RO")]
    LocalRo,
    /// Staged on demand into `/session/data`.
    #[serde(rename = "API", alias = "API_TMPFS")]
    Api,
}

/// The settings of a session, including all defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSpec {
    pub image: String,
    pub storage: Storage,
    pub datasets: Datasets,
    pub limits: Limits,
    /// Which hosts its code may reach.
    #[serde(default)]
    pub network: Policy,
    /// Its volumes, below `/volumes`.
    #[serde(default, skip_serializing_if = "AskedVolumes::is_empty")]
    pub volumes: AskedVolumes,
    /// A directory of the host at `/workspace`, writable. Its path has no symbolic links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Seconds from its last use until it expires.
    pub ttl_s: u64,
    /// Seconds without use after which it ends or hibernates, if that is earlier.
    #[serde(default)]
    pub idle_s: Option<u64>,
    /// Seconds without use after which large values are moved to disk; 0 means never; `None` means the server's
    /// setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill_s: Option<u64>,
    /// Bounds of the checkpoints that are taken after each execution; `None` means no checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
    /// Set by the caller and not interpreted.
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// How many checkpoints a session keeps, and how many bytes; the oldest are removed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoints {
    pub max: u64,
    pub max_bytes: u64,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Checkpoints { max: 20, max_bytes: 256 << 20 }
    }
}

impl SessionSpec {
    /// The environment variables of everything that runs in it, including those of the proxy.
    #[must_use]
    pub fn environment(&self) -> BTreeMap<String, String> {
        let mut environment: BTreeMap<_, _> = self.network.environment().into_iter().collect();
        environment.extend(self.env.clone());
        environment
    }
}
