//! Sessions: one row each, from creation until the row is deleted.

use async_trait::async_trait;
use belljar_runtime::Handle;
use serde::{Deserialize, Serialize};

use crate::{Durability, SessionSpec, StoreError};

/// The phase of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its sandbox is being created, or looked for after a restart of the server.
    Creating,
    Ready,
    /// Something is being executed.
    Busy,
    /// A snapshot of it is being taken, or it is being restored from one.
    Hibernating,
    /// It has a snapshot and no sandbox.
    Hibernated,
    Waking,
    Stopping,
    /// Ended on purpose. A session whose files are on disk can be started again.
    Stopped,
    /// Its sandbox could not be created, or was lost.
    Failed,
}

impl Phase {
    pub const ALL: [Phase; 9] = [
        Phase::Creating,
        Phase::Ready,
        Phase::Busy,
        Phase::Hibernating,
        Phase::Hibernated,
        Phase::Waking,
        Phase::Stopping,
        Phase::Stopped,
        Phase::Failed,
    ];

    /// The name, as the API and the database write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Creating => "creating",
            Phase::Ready => "ready",
            Phase::Busy => "busy",
            Phase::Hibernating => "hibernating",
            Phase::Hibernated => "hibernated",
            Phase::Waking => "waking",
            Phase::Stopping => "stopping",
            Phase::Stopped => "stopped",
            Phase::Failed => "failed",
        }
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<Phase> {
        Phase::ALL.into_iter().find(|phase| phase.name() == name)
    }

    /// Whether the session has ended, on purpose or not.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Phase::Stopped | Phase::Failed)
    }

    /// Whether a session stored with this phase is restored from its snapshot, not from its sandbox.
    #[must_use]
    pub fn is_asleep(self) -> bool {
        matches!(self, Phase::Hibernated | Phase::Waking)
    }

    /// Whether its sandbox is gone, or about to be.
    #[must_use]
    pub fn is_away(self) -> bool {
        matches!(self, Phase::Hibernating | Phase::Hibernated | Phase::Waking)
    }
}

#[derive(Debug, Clone)]
pub struct SessionRow {
    pub id: String,
    pub tenant: String,
    pub key: Option<String>,
    pub phase: Phase,
    pub spec: SessionSpec,
    /// With this, the runtime finds the sandbox again.
    pub handle: Option<Handle>,
    pub created_ms: i64,
    pub used_ms: i64,
    pub expires_ms: i64,
    pub ended_ms: Option<i64>,
    pub ended_because: Option<String>,
    /// The number of its last execution. Filled in by reads and ignored by writes.
    pub execs: u64,
}

/// Which sessions to list, the newest first.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// `None` means all tenants.
    pub tenant: Option<String>,
    pub phase: Option<Phase>,
    pub key: Option<String>,
    /// Only sessions created before the session with this id.
    pub before: Option<String>,
    pub limit: u32,
}

#[async_trait]
pub trait SessionRecords {
    /// Adds a session, or replaces everything but its id, tenant, key and time of creation. Fails if
    /// another session of the tenant that has not ended has the same key.
    async fn put_session(&self, row: SessionRow, durability: Durability) -> Result<(), StoreError>;

    /// Changes the phase. `ended` is when and why the session ended; the handle is removed then.
    async fn set_phase(
        &self,
        id: &str,
        phase: Phase,
        ended: Option<(i64, String)>,
        durability: Durability,
    ) -> Result<(), StoreError>;

    /// Changes the phase and the sandbox.
    async fn set_sandbox(
        &self,
        id: &str,
        phase: Phase,
        handle: Option<Handle>,
        durability: Durability,
    ) -> Result<(), StoreError>;

    async fn set_expiry(&self, id: &str, used_ms: i64, expires_ms: i64) -> Result<(), StoreError>;

    async fn session(&self, id: &str) -> Result<Option<SessionRow>, StoreError>;

    /// The newest session with this key, ended or not.
    async fn session_by_key(
        &self,
        tenant: &str,
        key: &str,
    ) -> Result<Option<SessionRow>, StoreError>;

    async fn sessions(&self, filter: SessionFilter) -> Result<Vec<SessionRow>, StoreError>;

    /// Sessions of all tenants that have not ended.
    async fn unended_sessions(&self) -> Result<Vec<SessionRow>, StoreError>;

    /// Sessions with files on disk that ended before this time, the oldest first, at most 1000.
    async fn sessions_to_remove(&self, ended_before_ms: i64)
    -> Result<Vec<SessionRow>, StoreError>;

    /// Deletes a session that has ended, with its executions and datasets. Returns whether it existed. Survives a power
    /// cut, because the caller removes the session's files next.
    async fn forget_session(&self, id: &str) -> Result<bool, StoreError>;

    /// Deletes sessions without files on disk that ended before this time, with their executions
    /// and datasets. Returns how many.
    async fn prune_sessions(&self, ended_before_ms: i64) -> Result<usize, StoreError>;
}
