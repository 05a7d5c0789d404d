//! The records of a server: sessions, executions, artifacts, datasets, volumes, API keys and usage.
//!
//! ```text
//!   engine ──▶ dyn Store            sessions, executions, datasets, volumes, keys, usage
//!          ──▶ dyn ArtifactCatalog  one row per artifact
//!                  ├── SqliteStore, SqliteCatalog: a database file each
//!                  └── PostgresStore, PostgresCatalog: a database that many servers share
//! ```
//!
//! Each table has a module with its row types and a trait with its operations; [`Store`] is all of
//! these traits together. This crate does not store the content of artifacts, datasets or
//! volumes, and it does not decide which change of a record is allowed.

#![forbid(unsafe_code)]

mod artifacts;
mod cluster;
mod datasets;
mod error;
mod exec_request;
mod execs;
mod keys;
mod lock;
mod migrate;
mod postgres;
mod sessions;
mod spec;
mod sqlite;
mod usage;
mod volume_name;
mod volumes;

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
pub use belljar_proto::digest::{Digest, NotADigest};

pub use artifacts::{
    ArtifactCatalog, ArtifactFilter, ArtifactQuota, ArtifactQuotas, ArtifactRow, ArtifactTotal,
};
pub use cluster::{
    Claim, ClusterRecords, Expired, NewNode, NodeLoad, NodeRow, NodeState, QuotaLimit, Route,
    TakenOver,
};
pub use datasets::{DatasetRecords, DatasetRow, DatasetStatus};
pub use error::{BackendError, BackendFailure, StoreError};
pub use exec_request::ExecRequest;
pub use execs::{
    ExecFilter, ExecRecords, ExecRow, ExecVisitor, FinishedExec, STATUSES, status_name,
};
pub use keys::{KeyLimits, KeyRecords, KeyRow};
pub use lock::StateLock;
pub use migrate::{
    MigrateError, MigratedSessions, MigratedTable, MigrationSource, SleepingSession,
    StayingSessions, migrate,
};
pub use postgres::{BadDatabaseUrl, DatabaseUrl, PostgresCatalog, PostgresStore};
pub use sessions::{Phase, SessionFilter, SessionRecords, SessionRow};
pub use spec::{Checkpoints, Datasets, SessionSpec, Storage};
pub use sqlite::{SqliteCatalog, SqliteStore};
pub use usage::{UsageDelta, UsageRecords, UsageRow};
pub use volume_name::{BadVolumeName, VolumeName};
pub use volumes::{
    AskedVolumes, VolumeAdded, VolumeHold, VolumeMode, VolumeQuota, VolumeRecords, VolumeRetired,
    VolumeRow, VolumeUser, VolumesLeft,
};

/// How durable a write must be before its caller gets the result, and how soon it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Survives the end of this process. It waits a few milliseconds for other writes, to share a
    /// transaction with them.
    Soon,
    /// Survives the end of this process.
    Process,
    /// Survives a power cut.
    Power,
}

/// A part of a list.
#[derive(Debug)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Whether there are more items after the last one.
    pub more: bool,
}

/// The records of one server. The engine uses it as `Arc<dyn Store>`.
///
/// A write is stored when its future resolves. Unless a method takes a [`Durability`] or says
/// otherwise, the write survives the end of this process.
#[async_trait]
pub trait Store:
    SessionRecords
    + ExecRecords
    + DatasetRecords
    + VolumeRecords
    + KeyRecords
    + UsageRecords
    + Debug
    + Send
    + Sync
{
    /// The name that identifies the sandboxes of this server across restarts.
    fn owner(&self) -> &str;

    /// The records of nodes and leases, if this store is shared by many servers.
    fn cluster(&self) -> Option<&dyn ClusterRecords> {
        None
    }

    /// Fails if nothing can be written at present.
    async fn check(&self) -> Result<(), StoreError>;

    /// Completes waiting writes and closes the store. Later calls fail with [`StoreError::Closed`].
    async fn close(&self);
}

/// Locks a value that stays valid when a thread panics while it holds the lock.
fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
