//! API keys. Only their hashes are stored.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::StoreError;

#[derive(Debug, Clone)]
pub struct KeyRow {
    pub id: String,
    pub name: String,
    pub tenant: String,
    pub hash: Vec<u8>,
    pub limits: KeyLimits,
    pub created_ms: i64,
    pub revoked_ms: Option<i64>,
}

/// The rights and limits of a key; `None` means that the key sets no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyLimits {
    /// Requests per minute with this key.
    pub requests_per_minute: Option<u32>,
    /// Sessions of the key's tenant at the same time.
    pub sessions: Option<u64>,
    /// Hibernated sessions of the tenant; `None` means as many as `sessions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleeping: Option<u64>,
    pub memory: Option<u64>,
    pub pids: Option<u64>,
    /// An operator's key: it reads metrics and usage of all tenants, and has no sessions.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub operator: bool,
}

/// All writes survive a power cut.
#[async_trait]
pub trait KeyRecords {
    async fn put_key(&self, row: KeyRow) -> Result<(), StoreError>;

    /// Returns whether there was such a key that was not revoked yet.
    async fn revoke_key(&self, id: &str, now_ms: i64) -> Result<bool, StoreError>;

    /// Deletes all keys if every key is revoked, and returns how many. A server without keys
    /// accepts requests without a key.
    async fn forget_revoked_keys(&self) -> Result<usize, StoreError>;

    /// All keys, the oldest first.
    async fn keys(&self) -> Result<Vec<KeyRow>, StoreError>;

    /// A number that changes whenever another process has written to the store.
    async fn data_version(&self) -> Result<i64, StoreError>;
}
