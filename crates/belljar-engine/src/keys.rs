//! API keys: shown once when they are made, and stored as a hash.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use sha2::{Digest, Sha256};

use crate::clock;
use crate::principal::Principal;
use crate::store::{KeyLimits, KeyRow, Store, StoreError};

/// The prefix of every key, so that people and secret scanners recognise a key.
const PREFIX: &str = "bjk_";

/// A key that was just made. The secret is not stored.
#[derive(Debug)]
pub struct NewKey {
    pub row: KeyRow,
    pub secret: String,
}

/// Makes a key and stores its hash.
pub async fn create(
    store: &dyn Store,
    name: String,
    tenant: String,
    limits: KeyLimits,
) -> Result<NewKey, StoreError> {
    // 256 random bits cannot be guessed, so a plain hash is as good as a slow one.
    let secret = format!(
        "{PREFIX}{}{}",
        belljar_sys::process::random_name(),
        belljar_sys::process::random_name()
    );
    let row = KeyRow {
        id: crate::new_id("key"),
        name,
        tenant,
        hash: hash(&secret),
        limits,
        created_ms: clock::now_ms(),
        revoked_ms: None,
    };
    store.put_key(row.clone()).await?;
    Ok(NewKey { row, secret })
}

fn hash(secret: &str) -> Vec<u8> {
    Sha256::digest(secret.as_bytes()).to_vec()
}

/// The keys of a server, in memory. [`KeyRing::refresh`] notices changes by other processes.
#[derive(Debug)]
pub struct KeyRing {
    store: Arc<dyn Store>,
    keys: RwLock<Arc<LoadedKeys>>,
}

#[derive(Debug, Default)]
struct LoadedKeys {
    by_hash: HashMap<Vec<u8>, Principal>,
    /// Whether there is any key, revoked ones included.
    any: bool,
    version: Option<i64>,
}

impl KeyRing {
    pub async fn open(store: Arc<dyn Store>) -> Result<KeyRing, StoreError> {
        let ring = KeyRing { store, keys: RwLock::default() };
        ring.refresh().await?;
        Ok(ring)
    }

    /// Reads the keys again if another process has written to the database.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        let version = self.store.data_version().await?;
        if self.current().version == Some(version) {
            return Ok(());
        }
        let rows = self.store.keys().await?;
        let any = !rows.is_empty();
        let by_hash = rows
            .into_iter()
            .filter(|row| row.revoked_ms.is_none())
            .map(|row| {
                let KeyRow { id, tenant, limits, hash, .. } = row;
                (hash, Principal { tenant, key_id: Some(id), limits })
            })
            .collect();
        let fresh = Arc::new(LoadedKeys { by_hash, any, version: Some(version) });
        *self.keys.write().unwrap_or_else(std::sync::PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// Whether no key was ever made. Then every client that can reach the server may use it. A server whose keys are
    /// all revoked still requires a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.current().any
    }

    /// The principal of a key. The lookup is by hash, so its duration reveals nothing about the key.
    #[must_use]
    pub fn recognise(&self, secret: &str) -> Option<Principal> {
        self.current().by_hash.get(&hash(secret)).cloned()
    }

    /// Whether there is a key with this id that is not revoked.
    #[must_use]
    pub fn has(&self, key_id: &str) -> bool {
        let keys = self.current();
        keys.by_hash.values().any(|principal| principal.key_id.as_deref() == Some(key_id))
    }

    fn current(&self) -> Arc<LoadedKeys> {
        Arc::clone(&self.keys.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SqliteStore;

    #[tokio::test]
    async fn a_key_is_recognised_until_it_is_revoked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.db");
        let open = || -> Arc<dyn Store> { Arc::new(SqliteStore::open(&path).unwrap()) };
        let store = open();
        let ring = KeyRing::open(Arc::clone(&store)).await.unwrap();
        assert!(ring.is_empty());
        // Made by another process, as `belljar key` does.
        let other = open();
        let made = create(&*other, "ci".into(), "acme".into(), KeyLimits::default()).await.unwrap();
        ring.refresh().await.unwrap();
        assert_eq!(ring.recognise(&made.secret).unwrap().tenant, "acme");
        // The version stays the same, whichever connection answers.
        let version = store.data_version().await.unwrap();
        for _ in 0..20 {
            assert_eq!(store.data_version().await.unwrap(), version);
        }
        assert_eq!(ring.recognise("bjk_wrong"), None);
        let stored = format!("{:?}", store.keys().await.unwrap());
        assert!(!stored.contains(&made.secret), "only its hash is stored");
        assert!(other.revoke_key(&made.row.id, 1).await.unwrap());
        assert!(!other.revoke_key(&made.row.id, 2).await.unwrap());
        ring.refresh().await.unwrap();
        assert_eq!(ring.recognise(&made.secret), None);
        assert!(!ring.is_empty(), "keys are still needed");
    }
}
