//! Nodes, their leases, and which node owns each session.
//!
//! ```text
//!   register_node ─▶ renew_lease … ─▶ set_node_state(Gone)
//!                        └── no renewal ─▶ take_over_expired: the node is Lost, its sessions have no owner
//!   claim_session ─▶ writes with owner and epoch … ─▶ release_session
//! ```
//!
//! Only the database's clock decides when a lease ends.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use crate::{SessionRow, StoreError, VolumeName};

/// Sessions and their memory, on a node or of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeLoad {
    pub sessions: u64,
    /// In bytes.
    pub memory: u64,
}

/// The limits of a tenant over all nodes; `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaLimit {
    pub sessions: Option<u64>,
    /// In bytes.
    pub memory: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// It accepts sessions.
    Ready,
    /// It accepts no further sessions.
    Draining,
    /// Its lease ended and its sessions were taken from it.
    Lost,
    /// It ended on purpose.
    Gone,
}

impl NodeState {
    pub const ALL: [NodeState; 4] =
        [NodeState::Ready, NodeState::Draining, NodeState::Lost, NodeState::Gone];

    /// The name, as the API and the database write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NodeState::Ready => "ready",
            NodeState::Draining => "draining",
            NodeState::Lost => "lost",
            NodeState::Gone => "gone",
        }
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<NodeState> {
        NodeState::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A node that is about to join the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNode {
    pub id: String,
    /// What gateways connect to.
    pub address: String,
    /// Where memory from its snapshots can be restored (`belljar_sys::wake_class::NodeClass`).
    pub class: String,
    pub capacity: NodeLoad,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    pub id: String,
    pub epoch: i64,
    pub address: String,
    pub class: String,
    pub state: NodeState,
    pub capacity: NodeLoad,
    pub used: NodeLoad,
    /// Milliseconds until its lease ends; negative after that.
    pub lease_left_ms: i64,
}

/// The result of [`ClusterRecords::claim_session`].
#[derive(Debug, Clone)]
pub enum Claim {
    /// This node owns the session now.
    Claimed(Box<SessionRow>),
    OwnedBy {
        node: String,
        address: String,
    },
    /// It has ended, or does not exist.
    NotClaimable,
}

/// A node that was found to be lost, and what became of its sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenOver {
    pub node: String,
    /// Sessions with a snapshot: any node can claim them.
    pub asleep: Vec<String>,
    /// Sessions without a snapshot: they have failed.
    pub lost: Vec<String>,
}

/// A session that expired. The default comes before all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    pub expires_ms: i64,
    pub id: String,
}

impl Default for Expired {
    fn default() -> Expired {
        Expired { expires_ms: i64::MIN, id: String::new() }
    }
}

/// Where requests for a session go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub tenant: String,
    /// The node that owns it, and the address of that node.
    pub owner: Option<(String, String)>,
    pub ended: bool,
    /// The only node that can have it, because its files or volumes are on that node.
    pub pinned: Option<String>,
}

/// The records that nodes and gateways share.
///
/// A store belongs to one node at most. [`register_node`](ClusterRecords::register_node) makes it
/// that node's store; a gateway's store is never registered and owns no sessions.
#[async_trait]
pub trait ClusterRecords: Debug + Send + Sync {
    /// Adds the node with a lease, and returns its epoch. A node that registers again gets a new
    /// epoch and keeps the sessions that it owned.
    async fn register_node(&self, node: NewNode, lease: Duration) -> Result<i64, StoreError>;

    /// Extends the lease from now on. Returns false if the node is fenced: its lease was taken
    /// over, or it registered again elsewhere.
    async fn renew_lease(&self, used: NodeLoad, lease: Duration) -> Result<bool, StoreError>;

    async fn set_node_state(&self, state: NodeState) -> Result<(), StoreError>;

    /// All nodes that are known, including lost ones.
    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError>;

    /// Takes the sessions of lost nodes, and of those whose lease ended more than `margin` ago. Expires no lease until the
    /// database has run for as long as the longest lease, because nodes could not renew theirs
    /// while it was away.
    async fn take_over_expired(&self, margin: Duration) -> Result<Vec<TakenOver>, StoreError>;

    /// Marks a node as lost whose processes have certainly ended, before the end of its lease.
    /// [`take_over_expired`](Self::take_over_expired) then takes its sessions.
    async fn lose_node(&self, id: &str) -> Result<(), StoreError>;

    /// Makes this node the owner of a session without an owner that has not ended, with a higher
    /// epoch.
    async fn claim_session(&self, id: &str) -> Result<Claim, StoreError>;

    /// Ends the ownership of a session, whose phase becomes hibernated. `snapshot` replaces the
    /// snapshot from which it can go on.
    async fn release_session(
        &self,
        id: &str,
        snapshot: Option<serde_json::Value>,
    ) -> Result<(), StoreError>;

    /// Sets the snapshot from which the session goes on if its node is lost. A snapshot with a lower `number` than the
    /// stored one is refused like the write of a node that does not own the session: it is a late write, whose node had
    /// no answer and has stored another one since.
    async fn set_snapshot(
        &self,
        id: &str,
        number: i64,
        snapshot: serde_json::Value,
    ) -> Result<(), StoreError>;

    async fn snapshot_of(&self, id: &str) -> Result<Option<serde_json::Value>, StoreError>;

    /// The snapshots of all sessions that have not ended, with the ids of their sessions, in the
    /// order of the ids: those after the id `after`, at most `limit`.
    async fn snapshots(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Vec<(String, serde_json::Value)>, StoreError>;

    /// Hibernated sessions that no node owns, that this node can claim, and that expired before
    /// this time, in the order of their expiry: those after `after`, at most `limit`.
    async fn expired_sessions(
        &self,
        before_ms: i64,
        after: &Expired,
        limit: u32,
    ) -> Result<Vec<Expired>, StoreError>;

    /// How many hibernated sessions the tenant has, with and without an owner. Counts up to `most`.
    async fn sleeping_sessions(&self, tenant: &str, most: u64) -> Result<u64, StoreError>;

    /// Whether this node does the task with this name now. Of all calls within `every`, one
    /// returns true.
    async fn begin_task(&self, name: &str, every: Duration) -> Result<bool, StoreError>;

    async fn route(&self, id: &str) -> Result<Option<Route>, StoreError>;

    /// The id and route of the newest session with this key.
    async fn route_by_key(
        &self,
        tenant: &str,
        key: &str,
    ) -> Result<Option<(String, Route)>, StoreError>;

    /// The node that has the files of a volume.
    async fn volume_node(
        &self,
        tenant: &str,
        name: &VolumeName,
    ) -> Result<Option<String>, StoreError>;

    /// The secret with this name, which is `fresh` if there was none.
    async fn shared_secret(&self, name: &str, fresh: Vec<u8>) -> Result<Vec<u8>, StoreError>;

    /// Spends `amount` of what a key may use in a window, if that does not exceed `limit`.
    /// `window` is a number that grows with time, such as the minute since 1970.
    async fn spend_rate(
        &self,
        key: &str,
        window: i64,
        amount: u32,
        limit: u32,
    ) -> Result<bool, StoreError>;

    /// Adds to what the tenant uses on this node, if its total over all nodes stays in `limit`.
    async fn reserve_quota(
        &self,
        tenant: &str,
        add: NodeLoad,
        limit: QuotaLimit,
    ) -> Result<bool, StoreError>;

    /// Subtracts from what the tenant uses on this node.
    async fn release_quota(&self, tenant: &str, less: NodeLoad) -> Result<(), StoreError>;
}
