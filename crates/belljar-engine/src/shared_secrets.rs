//! Secrets and names that all servers of one database share. The first server that stores one decides; it stores its
//! own, if it has one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::artifacts;
use crate::error::EngineError;
use crate::network::new_authority;
use crate::store::ClusterRecords;

/// Signs links to artifacts.
const LINKS: &str = "artifact-links";

/// The name of the catalog of artifacts, by which S3 knows the owner of its content.
const CATALOG: &str = "artifact-catalog";

/// Certificate and key of the authority that the sandboxes trust.
const AUTHORITY: &str = "network-authority";

/// Where a server has its own.
#[derive(Debug, Clone)]
pub struct OwnSecrets {
    pub link_key: PathBuf,
    /// The SQLite file of the catalog of artifacts. The name is in a file beside it.
    pub catalog: PathBuf,
    pub authority: PathBuf,
}

/// Stores those that a server has, so that its links, its content in S3 and the certificates in its sandboxes stay valid.
/// Returns the name of the catalog of artifacts.
pub async fn share(cluster: &dyn ClusterRecords, own: &OwnSecrets) -> Result<String, EngineError> {
    if own.link_key.exists() {
        link_key(cluster, &own.link_key).await?;
    }
    if own.authority.exists() {
        network_authority(cluster, &own.authority).await?;
    }
    catalog_id(cluster, &own.catalog).await
}

/// The name of the catalog of artifacts.
pub async fn catalog_id(
    cluster: &dyn ClusterRecords,
    database: &Path,
) -> Result<String, EngineError> {
    let own = artifacts::catalog_id(database).map_err(at(database))?;
    text(cluster.shared_secret(CATALOG, own.into_bytes()).await?)
}

/// Certificate and key of the authority, in PEM. A session trusts it on every node, also in connections that its kernel
/// prepared before it moved.
pub async fn network_authority(
    cluster: &dyn ClusterRecords,
    path: &Path,
) -> Result<String, EngineError> {
    let own = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => new_authority(),
        own => own,
    };
    let own = own.map_err(at(path))?;
    text(cluster.shared_secret(AUTHORITY, own.into_bytes()).await?)
}

pub(crate) async fn link_key(
    cluster: &dyn ClusterRecords,
    path: &Path,
) -> Result<Vec<u8>, EngineError> {
    let own = artifacts::read_key(path).map_err(at(path))?;
    let own = own.unwrap_or_else(|| belljar_sys::process::random_bytes::<32>().to_vec());
    Ok(cluster.shared_secret(LINKS, own).await?)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> EngineError {
    let path = path.to_owned();
    move |cause| EngineError::Directory { path, cause }
}

fn text(secret: Vec<u8>) -> Result<String, EngineError> {
    String::from_utf8(secret)
        .map_err(|_| EngineError::Internal("a shared secret in the database is not text".into()))
}
