//! Opens the records of the server: SQLite files in the state directory, or a Postgres database.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use belljar_engine::store::{
    ArtifactCatalog, ClusterRecords, DatabaseUrl, NewNode, NodeLoad, PostgresCatalog,
    PostgresStore, SqliteStore, Store,
};
use belljar_sys::process;

use crate::home;
use crate::settings::Settings;

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

/// The store that nodes, gateways and commands share. `node` is the id of the node that it belongs to; gateways and commands
/// have none.
pub(crate) async fn open_shared(url: &DatabaseUrl, node: &str) -> Result<Arc<dyn Store>> {
    let store = PostgresStore::open(url, node).await;
    Ok(Arc::new(store.context("BELLJAR_DATABASE_URL: failed to open the database")?))
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
    use super::*;

    #[test]
    fn the_id_of_a_node_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let id = node_id(directory.path()).unwrap();
        assert_eq!(node_id(directory.path()).unwrap(), id);
        keep_node_id(directory.path(), "srv1").unwrap();
        assert_eq!(node_id(directory.path()).unwrap(), "srv1");
    }
}
