//! The body of a request for a session.

use std::collections::BTreeMap;
use std::path::PathBuf;

use belljar_engine::spec::{Checkpoints, Datasets, SessionAsk, Storage};
use belljar_engine::volumes::VolumeMode;
use belljar_runtime::Limits;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::fields::{Size, parse_network, parse_volumes};

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSession {
    /// Your own name: of a conversation, a thread, a user. The same key finds the same session.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub key: Option<String>,
    /// The image: one that the server has and allows, or `host`, the server's own machine.
    pub image: Option<String>,
    /// Where the files of `/session` are: `TMPFS` (in memory) or `BIND` (on disk; they outlive the session).
    #[schema(value_type = Option<String>, example = "TMPFS")]
    pub storage: Option<Storage>,
    /// `NONE`, `LOCAL_RO` (the server's datasets at `/data`) or `API` (staged on demand).
    #[schema(value_type = Option<String>, example = "NONE")]
    pub datasets: Option<Datasets>,
    #[serde(default)]
    pub limits: AskedLimits,
    /// Which hosts its code may reach: `"none"`, `"open"` (every public address), or
    /// `{"allow": ["example.org", "*.example.com:443"], "inject": [...]}`.
    #[schema(value_type = Option<Object>)]
    pub network: Option<serde_json::Value>,
    /// Volumes below `/volumes`, by name: `rw`, or `ro` for read-only.
    #[schema(value_type = Option<BTreeMap<String, String>>, example = json!({"models": "ro"}))]
    pub volumes: Option<BTreeMap<String, VolumeMode>>,
    /// A directory of the server's machine to mount at `/workspace`, writable, if the operator allows it
    /// (`BELLJAR_WORKSPACES`). Code then starts there.
    #[schema(value_type = Option<String>, example = "/srv/projects/sales")]
    pub workspace: Option<PathBuf>,
    /// Seconds to live after its last use, at most `BELLJAR_MAX_TTL` of the server.
    #[schema(minimum = 1)]
    pub ttl: Option<u64>,
    /// Seconds without use after which it ends before `ttl`.
    #[schema(minimum = 1)]
    pub idle_timeout: Option<u64>,
    /// Seconds without use after which large values of its Python kernel are moved to disk; they are back
    /// before code runs again. 0: never. Default: a setting of the server.
    pub idle_hibernate_sec: Option<u64>,
    /// Environment variables of everything that runs in it.
    pub env: Option<BTreeMap<String, String>>,
    /// Take a checkpoint after every execution: `true`, or
    /// `{"max": 20, "max_bytes": "256M"}`.
    pub checkpoints: Option<AskedCheckpoints>,
    /// Your own data; the server does not read it.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AskedLimits {
    /// Bytes, or text such as `512M`.
    pub memory: Option<Size>,
    /// Processors, such as 0.5.
    #[schema(minimum = 0.01, maximum = 1024)]
    pub cpus: Option<f64>,
    /// Processes and threads.
    #[schema(minimum = 4, maximum = 100_000)]
    pub pids: Option<u64>,
    /// Bytes of files in memory. They count as `memory` and may take three quarters of it. If only this is
    /// given, `memory` is raised as needed; too little `memory` is an error.
    pub tmpfs: Option<Size>,
}

impl CreateSession {
    pub(crate) fn into_ask(self) -> Result<SessionAsk, ApiError> {
        Ok(SessionAsk {
            network: self.network.map(parse_network).transpose()?,
            volumes: parse_volumes(self.volumes)?,
            key: self.key,
            image: self.image,
            storage: self.storage,
            datasets: self.datasets,
            env: self.env,
            ttl_s: self.ttl,
            idle_s: self.idle_timeout,
            spill_s: self.idle_hibernate_sec,
            workspace: self.workspace,
            checkpoints: self.checkpoints.map(AskedCheckpoints::into_engine).transpose()?,
            metadata: self.metadata,
            ..self.limits.into_ask()?
        })
    }
}

impl AskedLimits {
    /// The limits as part of a request for a session.
    pub(crate) fn into_ask(self) -> Result<SessionAsk, ApiError> {
        let millicpus = |cpus| {
            let millicpus = Limits::millicpus_of(cpus);
            millicpus.ok_or_else(|| ApiError::invalid("limits.cpus: expected 0.01 to 1024"))
        };
        Ok(SessionAsk {
            memory: self.memory.map(|size| size.0),
            millicpus: self.cpus.map(millicpus).transpose()?,
            pids: self.pids,
            tmpfs: self.tmpfs.map(|size| size.0),
            ..SessionAsk::default()
        })
    }
}

/// The most checkpoints of a session. Each consists of a few files.
const MAX_CHECKPOINTS: u64 = 1000;

/// `true`, `"on"`, or bounds; `false` or `"off"` for none.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected true or false, or {\"max\": ..., \"max_bytes\": ...}")]
pub(crate) enum AskedCheckpoints {
    Whether(bool),
    Word(String),
    Bounds(CheckpointBounds),
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckpointBounds {
    /// How many are kept; the oldest are removed first. Default: 20.
    #[schema(minimum = 1, maximum = 1000)]
    pub max: Option<u64>,
    /// How many bytes of them are kept: a number, or text such as `256M`. Default: `256M`.
    pub max_bytes: Option<Size>,
}

impl AskedCheckpoints {
    fn into_engine(self) -> Result<Option<Checkpoints>, ApiError> {
        let bounds = match self {
            AskedCheckpoints::Whether(true) => return Ok(Some(Checkpoints::default())),
            AskedCheckpoints::Whether(false) => return Ok(None),
            AskedCheckpoints::Word(word) => match word.as_str() {
                "on" => return Ok(Some(Checkpoints::default())),
                "off" => return Ok(None),
                _ => return Err(ApiError::invalid("checkpoints: expected on, off or bounds")),
            },
            AskedCheckpoints::Bounds(bounds) => bounds,
        };
        let own = Checkpoints::default();
        let max = bounds.max.unwrap_or(own.max);
        if !(1..=MAX_CHECKPOINTS).contains(&max) {
            let message = format!("checkpoints.max: expected 1 to {MAX_CHECKPOINTS}");
            return Err(ApiError::invalid(message));
        }
        let max_bytes = bounds.max_bytes.map_or(own.max_bytes, |size| size.0);
        Ok(Some(Checkpoints { max, max_bytes }))
    }
}
