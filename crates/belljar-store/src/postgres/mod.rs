//! The store in Postgres, which many servers share.
//!
//! A [`PostgresStore`] belongs to one node. Every write about a session is done only if this node
//! still owns the session, in the epoch that it knows; otherwise it fails with
//! [`StoreError::Fenced`]. A write whose answer was lost fails with [`StoreError::Unavailable`]: it
//! may be stored or not, and the same call can be repeated.

mod artifacts;
mod cluster;
mod datasets;
mod execs;
mod finish;
mod keys;
mod pool;
mod schema;
mod sessions;
mod url;
mod usage;
mod volumes;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use artifacts::PostgresCatalog;
use finish::Finisher;
use pool::{Failed, Pool, Side, Work};
pub use url::{BadDatabaseUrl, DatabaseUrl};
use volumes::RunVolumes;

use crate::{ClusterRecords, NodeLoad, Store, StoreError, lock_unpoisoned};

/// The [`Store`] in a Postgres database.
#[derive(Debug)]
pub struct PostgresStore {
    pool: Pool,
    node: Arc<Node>,
    finisher: Finisher,
    runs: RunVolumes,
    /// What each tenant uses on this node. Locked while its row is written.
    reserved: Arc<tokio::sync::Mutex<HashMap<String, NodeLoad>>>,
    /// New sessions whose write failed in a way that it may be stored nevertheless.
    doubtful: Arc<Mutex<HashSet<String>>>,
}

/// The node that a store belongs to, and the sessions that it owns.
#[derive(Debug)]
struct Node {
    id: String,
    /// 0 before it is registered.
    epoch: AtomicI64,
    sessions: Mutex<HashMap<String, i64>>,
}

/// An epoch that no session has.
const NO_EPOCH: i64 = -1;

impl Node {
    fn epoch(&self) -> i64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// The epoch in which this node owns the session.
    fn epoch_of(&self, session: &str) -> Option<i64> {
        lock_unpoisoned(&self.sessions).get(session).copied()
    }

    fn epoch_or_none(&self, session: &str) -> i64 {
        self.epoch_of(session).unwrap_or(NO_EPOCH)
    }

    fn owns(&self, session: &str, epoch: i64) {
        lock_unpoisoned(&self.sessions).insert(session.to_owned(), epoch);
    }

    fn disown(&self, session: &str) {
        lock_unpoisoned(&self.sessions).remove(session);
    }
}

impl PostgresStore {
    /// Connects, and creates or migrates the tables. `node` is the id of the node that the store
    /// belongs to, which can write sessions after
    /// [`register_node`](ClusterRecords::register_node). A gateway's id is empty.
    pub async fn open(url: &DatabaseUrl, node: &str) -> Result<PostgresStore, StoreError> {
        let pool = Pool::open(url.clone()).await?;
        schema::migrate(&pool).await?;
        let node = Arc::new(Node {
            id: node.to_owned(),
            epoch: AtomicI64::new(0),
            sessions: Mutex::default(),
        });
        let finisher = Finisher::start(pool.clone(), Arc::clone(&node));
        Ok(PostgresStore {
            pool,
            node,
            finisher,
            runs: RunVolumes::default(),
            reserved: Arc::default(),
            doubtful: Arc::default(),
        })
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn owner(&self) -> &str {
        &self.node.id
    }

    fn cluster(&self) -> Option<&dyn ClusterRecords> {
        Some(self)
    }

    async fn check(&self) -> Result<(), StoreError> {
        // A standby, which can only be read, has no number for a new transaction.
        self.pool
            .write(Side::Quick, |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    connection.query("SELECT pg_current_xact_id()::text", &[]).await?;
                    Ok(())
                })
            })
            .await
    }

    async fn close(&self) {
        self.finisher.close().await;
        self.pool.close().await;
    }
}

fn to_json(value: &impl Serialize) -> Result<String, Failed> {
    serde_json::to_string(value).map_err(|error| Failed::Value(error.to_string()))
}

fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, Failed> {
    serde_json::from_str(text)
        .map_err(|error| Failed::Value(format!("a stored value is not valid: {error}")))
}

/// A number as Postgres can store it.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Text without zero bytes, which Postgres cannot store. For messages only.
fn storable(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}
