//! A session as clients see it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use belljar_engine::network::Policy;
use belljar_engine::spec::{Checkpoints, Datasets, Storage};
use belljar_engine::volumes::AskedVolumes;
use belljar_engine::{SessionInfo, clock};
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionBody {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// creating, ready, busy, hibernating, hibernated, waking, stopping, stopped or failed.
    pub state: &'static str,
    pub image: String,
    #[schema(value_type = String)]
    pub storage: Storage,
    #[schema(value_type = String)]
    pub datasets: Datasets,
    pub limits: LimitsBody,
    /// Which limits this machine enforces, as tested at the start of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforced: Option<BTreeMap<String, bool>>,
    /// As requested.
    #[schema(value_type = Object)]
    pub network: Policy,
    /// By name: `rw` or `ro`.
    #[schema(value_type = BTreeMap<String, String>)]
    #[serde(skip_serializing_if = "AskedVolumes::is_empty")]
    pub volumes: AskedVolumes,
    /// The directory of the server's machine that is at `/workspace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub workspace: Option<PathBuf>,
    pub ttl: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<u64>,
    /// If requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_hibernate_sec: Option<u64>,
    /// How many checkpoints are kept, and how many bytes, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub checkpoints: Option<Checkpoints>,
    pub created: String,
    pub last_used: String,
    pub expires: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_because: Option<String>,
    /// Executions: running, waiting, and accepted in all.
    pub running: usize,
    pub queued: usize,
    pub execs: u64,
    /// The execution whose end state the session has now: the last foreground execution to end, or the
    /// one that the session was restored to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Bytes of memory in use, without the page cache of files on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<u64>,
    /// The directory of its files on the server, with storage BIND.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    #[schema(value_type = Object)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// When an ended session is removed with its files, unless it is started again
    /// (`BELLJAR_SESSION_RETENTION`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<String>,
    /// Problems that did not end the session, and limits that the server's machine does not enforce.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What was lost, in the answer to `hibernate` and `fork`. Without `force` nothing is lost except the variables of
    /// kernels that had died before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LimitsBody {
    pub memory: u64,
    pub cpus: f64,
    pub pids: u64,
    pub tmpfs: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CreatedBody {
    /// created, found, or restarted with its files.
    pub how: &'static str,
    /// The earlier session with this key, which has ended and is lost with everything in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<ReplacedBody>,
    #[serde(flatten)]
    pub session: SessionBody,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReplacedBody {
    pub id: String,
    pub because: String,
}

impl App {
    pub(crate) fn session_body(&self, info: SessionInfo) -> SessionBody {
        let SessionInfo {
            id,
            key,
            spec,
            created_ms,
            view,
            memory_used,
            directory,
            kept_until_ms,
            lost,
            ..
        } = info;
        SessionBody {
            id,
            key,
            state: view.phase.name(),
            image: spec.image,
            storage: spec.storage,
            datasets: spec.datasets,
            limits: LimitsBody {
                memory: spec.limits.memory,
                cpus: f64::from(spec.limits.millicpus) / 1000.0,
                pids: spec.limits.pids,
                tmpfs: spec.limits.effective_tmpfs(),
            },
            enforced: self.enforced().cloned(),
            network: spec.network,
            volumes: spec.volumes,
            ttl: spec.ttl_s,
            idle_timeout: spec.idle_s,
            idle_hibernate_sec: spec.spill_s,
            workspace: spec.workspace,
            checkpoints: spec.checkpoints,
            created: clock::rfc3339(created_ms),
            last_used: clock::rfc3339(view.used_ms),
            expires: clock::rfc3339(view.expires_ms),
            ended: view.ended_ms.map(clock::rfc3339),
            ended_because: view.ended_because,
            running: view.running,
            queued: view.queued,
            execs: view.execs,
            at: view.at,
            memory_used,
            directory: directory.map(|path| path.display().to_string()),
            metadata: spec.metadata,
            kept_until: kept_until_ms.map(clock::rfc3339),
            warnings: match view.ended_ms {
                None => self.limit_warnings().into_iter().chain(view.warnings).collect(),
                Some(_) => view.warnings,
            },
            lost,
        }
    }
}
