//! Opens the records of the server: SQLite files in the state directory, or a Postgres database.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use belljar_engine::in_full;
use belljar_engine::store::{
    ArtifactCatalog, ClusterRecords, DatabaseUrl, NewNode, NodeLoad, PostgresCatalog,
    PostgresStore, SqliteStore, Store, StoreError,
};
use belljar_sys::process;
use tokio::time::Instant;

use crate::home;
use crate::settings::Settings;

/// How long a node or a gateway waits for Postgres when it starts, and how often it tries.
const PATIENCE: Duration = Duration::from_secs(60);
const PACE: Duration = Duration::from_secs(1);

/// The store of this server, and the catalog of artifacts if it is not a SQLite file.
pub(crate) async fn open(
    settings: &Settings,
) -> Result<(Arc<dyn Store>, Option<Arc<dyn ArtifactCatalog>>)> {
    let Some(url) = &settings.database else {
        return Ok((Arc::new(SqliteStore::open(&home::database(settings))?), None));
    };
    let id = node_id(&settings.state_dir)?;
    let store = PostgresStore::open(url, &id).await?;
    // The only server of its sessions: no other one takes them over.
    let node = NewNode {
        id,
        address: String::new(),
        class: "single server".to_owned(),
        capacity: NodeLoad::default(),
    };
    store.register_node(node, Duration::MAX).await?;
    let catalog = PostgresCatalog::open(url).await?;
    Ok((Arc::new(store), Some(Arc::new(catalog))))
}

/// The store for commands that read and change shared records.
pub(crate) async fn open_shared(url: &DatabaseUrl) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(PostgresStore::open(url, "").await?))
}

/// The store of a node, or of a gateway, whose id is empty. Waits for Postgres, which may start at the same time.
pub(crate) async fn join_shared(url: &DatabaseUrl, node: &str) -> Result<Arc<dyn Store>> {
    let opened = when_reachable(async || PostgresStore::open(url, node).await).await;
    Ok(Arc::new(opened.context("BELLJAR_DATABASE_URL: failed to open the database")?))
}

/// Calls `open` again while the database cannot be reached, for [`PATIENCE`] at most.
async fn when_reachable<T>(open: impl AsyncFn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let begun = Instant::now();
    loop {
        let error = match open().await {
            Err(error) if error.is_unavailable() && begun.elapsed() < PATIENCE => error,
            done => return done,
        };
        let left = PATIENCE.saturating_sub(begun.elapsed()).as_secs();
        let why = in_full(&error);
        tracing::warn!("waiting for Postgres (BELLJAR_DATABASE_URL), {left} s at most: {why}");
        tokio::time::sleep(PACE).await;
    }
}

/// The catalog of artifacts that nodes share.
pub(crate) async fn open_shared_catalog(url: &DatabaseUrl) -> Result<Arc<dyn ArtifactCatalog>> {
    let catalog = PostgresCatalog::open(url).await;
    Ok(Arc::new(catalog.context("BELLJAR_DATABASE_URL: failed to open the catalog")?))
}

/// The database of a cluster.
pub(crate) fn shared_url(settings: &Settings) -> Result<&DatabaseUrl> {
    let url = settings.database.as_ref();
    url.context("BELLJAR_DATABASE_URL is not set; nodes and gateways share a Postgres database")
}

/// The id of this machine's node. A random one is chosen the first time and kept in the state
/// directory.
pub(crate) fn node_id(state_dir: &Path) -> Result<String> {
    let path = node_id_file(state_dir);
    match fs::read_to_string(&path) {
        Ok(id) if !id.trim().is_empty() => return Ok(id.trim().to_owned()),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("failed to read `{}`", path.display()));
        }
        _ => {}
    }
    let id = format!("node-{}", &process::random_name()[..12]);
    keep_node_id(state_dir, &id)?;
    Ok(id)
}

/// Makes `id` the id of this machine's node.
pub(crate) fn keep_node_id(state_dir: &Path, id: &str) -> Result<()> {
    let path = node_id_file(state_dir);
    let fresh = path.with_extension("new");
    fs::write(&fresh, format!("{id}\n"))
        .and_then(|()| fs::File::open(&fresh)?.sync_all())
        .and_then(|()| fs::rename(&fresh, &path))
        .with_context(|| format!("failed to write `{}`", path.display()))
}

fn node_id_file(state_dir: &Path) -> PathBuf {
    state_dir.join("node-id")
}

#[cfg(test)]
mod tests {
    use belljar_engine::store::{BackendError, BackendFailure};

    use super::*;

    #[test]
    fn the_id_of_a_node_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let id = node_id(directory.path()).unwrap();
        assert_eq!(node_id(directory.path()).unwrap(), id);
        keep_node_id(directory.path(), "srv1").unwrap();
        assert_eq!(node_id(directory.path()).unwrap(), "srv1");
    }

    fn refused(failure: BackendFailure) -> StoreError {
        let cause = BackendError::new(failure, std::io::Error::other("no"));
        StoreError::Open { path: "postgres://db/belljar".into(), cause }
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_for_the_database_but_not_for_ever() {
        let begun = Instant::now();
        let opened = when_reachable(async || match begun.elapsed().as_secs() {
            0..10 => Err(refused(BackendFailure::Unavailable)),
            _ => Ok(7),
        });
        assert_eq!(opened.await.unwrap(), 7);
        let begun = Instant::now();
        let away = when_reachable(async || Err::<(), _>(refused(BackendFailure::Unavailable)));
        assert!(away.await.unwrap_err().is_unavailable());
        assert_eq!(begun.elapsed().as_secs(), 60);
        let begun = Instant::now();
        let wrong = when_reachable(async || Err::<(), _>(refused(BackendFailure::Other)));
        assert!(!wrong.await.unwrap_err().is_unavailable());
        assert_eq!(begun.elapsed().as_secs(), 0, "such as a wrong password");
    }
}
