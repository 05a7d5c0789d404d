//! Where a server keeps artifacts: their content, what is known of them, and the key that links to
//! them are signed with.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;

use super::blobs::{BlobReader, Blobs, make_root};
use super::claim::{Claim, ListClaim};
use super::ingest::{Place, own_directory};
use super::links;
use super::tokens::{Method, SigningKey};
use crate::clock;
use crate::error::EngineError;
use crate::metrics::ArtifactMetrics;
use crate::store::{
    ArtifactCatalog, ArtifactFilter, ArtifactRow, ArtifactTotal, Page, Quotas, SqliteCatalog,
};
use crate::tenant_dir::TenantDir;

/// Artifacts that are forgotten in one transaction.
const FORGOTTEN_AT_ONCE: u32 = 500;

#[derive(Debug, Clone)]
pub struct ArtifactStoreConfig {
    pub blobs_dir: PathBuf,
    pub database: PathBuf,
    pub key_file: PathBuf,
    /// Where sessions on disk have their directories, and runs theirs.
    pub sessions_root: PathBuf,
    pub outputs_dir: PathBuf,
    /// Where exported datasets go.
    pub exports_dir: PathBuf,
    /// Whether artifacts of sessions in memory are shown by name too, below `sessions_root`: where
    /// links have no address, a path is all that people can open.
    pub show_all: bool,
    pub quotas: Quotas,
    /// Seconds after which an artifact is forgotten; none: never.
    pub retention_s: Option<u64>,
    /// Whether files stay in the sandbox after they were taken.
    pub keep_originals: bool,
    /// Seconds that a link is good for.
    pub link_ttl_s: u64,
}

#[derive(Debug)]
pub struct ArtifactStore {
    pub(super) config: ArtifactStoreConfig,
    pub(super) blobs: Blobs,
    pub(super) catalog: Arc<dyn ArtifactCatalog>,
    key: SigningKey,
    /// Per tenant, what is on its way to the catalog.
    pub(super) in_flight: Mutex<HashMap<String, ArtifactTotal>>,
    /// How often artifacts were forgotten: there may be room then for what had none.
    pub(super) freed: AtomicU64,
    pub(super) metrics: ArtifactMetrics,
    _claims: (ListClaim, Claim),
}

/// What a token may be used for, and until when.
#[derive(Debug, Clone)]
pub struct Link {
    pub token: String,
    /// Seconds since 1970.
    pub expires_s: u64,
}

impl ArtifactStore {
    /// Opens what is there and makes what is not. Only one server may use it at a time.
    pub fn open(
        config: ArtifactStoreConfig,
        metrics: ArtifactMetrics,
    ) -> Result<ArtifactStore, EngineError> {
        let at = |path: &PathBuf| {
            let path = path.clone();
            move |cause| EngineError::Directory { path, cause }
        };
        let list_claim = ListClaim::take(&config.database).map_err(at(&config.database))?;
        let catalog = Arc::new(SqliteCatalog::open(&config.database)?);
        let claim = make_root(&config.blobs_dir)
            .and_then(|root| Claim::take(&root, &config.database))
            .map_err(at(&config.blobs_dir))?;
        let blobs = Blobs::open(&config.blobs_dir).map_err(at(&config.blobs_dir))?;
        let key = SigningKey::load_or_create(&config.key_file).map_err(at(&config.key_file))?;
        Ok(ArtifactStore {
            config,
            blobs,
            catalog,
            key,
            in_flight: Mutex::default(),
            freed: AtomicU64::new(0),
            metrics,
            _claims: (list_claim, claim),
        })
    }

    /// Whether the artifacts of every session are shown by name.
    pub(crate) fn shows_all(&self) -> bool {
        self.config.show_all
    }

    pub(crate) async fn close(&self) {
        self.catalog.close().await;
    }

    pub async fn list(&self, filter: ArtifactFilter) -> Result<Page<ArtifactRow>, EngineError> {
        Ok(self.catalog.list(filter).await?)
    }

    /// An artifact, whoever's it is: for whoever has a link to it.
    pub async fn find(&self, id: &str) -> Result<Option<ArtifactRow>, EngineError> {
        Ok(self.catalog.find(id).await?)
    }

    /// A link that anybody can use, for a while.
    #[must_use]
    pub fn link(&self, method: Method, id: &str) -> Link {
        let expires_s = now_s().saturating_add(self.config.link_ttl_s);
        Link { token: self.key.sign(method, id, expires_s), expires_s }
    }

    /// Whether this token opens this artifact, now.
    #[must_use]
    pub fn opens(&self, method: Method, id: &str, token: &str) -> bool {
        self.key.verify(method, id, token, now_s())
    }

    /// Where the host finds each of these: by its name where it is shown, else its content.
    pub async fn host_paths(&self, rows: &[ArtifactRow]) -> Vec<PathBuf> {
        let places: Vec<(PathBuf, Vec<PathBuf>)> = rows
            .iter()
            .map(|row| {
                let shown = [Place::Session, Place::Run].map(|place| self.shown_at(row, place));
                let blob = self.blobs.path(&row.tenant, &row.sha256);
                (blob, shown.into_iter().flatten().collect())
            })
            .collect();
        let blobs = places.iter().map(|(blob, _)| blob.clone()).collect();
        let looking = tokio::task::spawn_blocking(move || {
            let find = |(blob, places): (PathBuf, Vec<PathBuf>)| {
                places.into_iter().find(|place| links::is_shown(&blob, place)).unwrap_or(blob)
            };
            places.into_iter().map(find).collect()
        });
        looking.await.unwrap_or(blobs)
    }

    /// Opens the content of an artifact.
    pub async fn content(&self, row: &ArtifactRow) -> io::Result<BlobReader> {
        let (blobs, tenant, sha256) = (self.blobs.clone(), row.tenant.clone(), row.sha256);
        let opening = tokio::task::spawn_blocking(move || blobs.open_blob(&tenant, &sha256));
        opening.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }

    /// Forgets an artifact. Its content goes with the next sweep, if no other has the same.
    pub async fn remove(&self, tenant: &str, id: &str) -> Result<bool, EngineError> {
        let removed = self.catalog.remove(tenant, id).await?;
        Ok(match removed {
            Some(row) => {
                self.hide(vec![row]).await?;
                true
            }
            None => false,
        })
    }

    /// After artifacts were forgotten: removes their names where they are still theirs.
    async fn hide(&self, mut rows: Vec<ArtifactRow>) -> Result<(), EngineError> {
        self.freed.fetch_add(1, Ordering::Relaxed);
        // Saved again as it was, it is shown by the same name.
        let mut shown = self.catalog.have_twins(rows.clone()).await?.into_iter();
        rows.retain(|_| shown.next() == Some(false));
        let names: Vec<_> = rows
            .iter()
            .flat_map(|row| {
                let blob = self.blobs.path(&row.tenant, &row.sha256);
                let places = [Place::Session, Place::Run].map(|place| self.shown_at(row, place));
                places.into_iter().flatten().map(move |place| (blob.clone(), place))
            })
            .collect();
        let outputs = rows.iter().map(|row| own_directory(&self.config.outputs_dir, &row.tenant));
        let roots: Vec<PathBuf> = outputs
            .chain([self.config.sessions_root.clone()])
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        let hiding = tokio::task::spawn_blocking(move || {
            names.iter().for_each(|(blob, place)| {
                links::unlink(blob, place);
                links::remove_empty_directories(place, &roots);
            });
        });
        let _ = hiding.await;
        Ok(())
    }

    /// Forgets what is too old, and deletes content that nobody refers to.
    pub(crate) async fn tidy(&self) -> Result<(), EngineError> {
        if let Some(retention_s) = self.config.retention_s {
            let retention = i64::try_from(retention_s).unwrap_or(i64::MAX).saturating_mul(1000);
            let before = clock::now_ms().saturating_sub(retention);
            loop {
                let forgotten = self.catalog.remove_before(before, FORGOTTEN_AT_ONCE).await?;
                if forgotten.is_empty() {
                    break;
                }
                self.hide(forgotten).await?;
            }
        }
        self.sweep().await
    }

    /// Deletes content that no artifact refers to.
    pub(crate) async fn sweep(&self) -> Result<(), EngineError> {
        let (blobs, catalog) = (self.blobs.clone(), Arc::clone(&self.catalog));
        let runtime = Handle::current();
        let sweeping = tokio::task::spawn_blocking(move || {
            let mut tenants: HashMap<TenantDir, String> = HashMap::new();
            blobs.sweep(|directory, contents| {
                if !tenants.contains_key(&directory) {
                    // The tenant may be newer than the list.
                    let all = runtime.block_on(catalog.tenants()).map_err(io::Error::other)?;
                    tenants.extend(all.into_iter().map(|tenant| (TenantDir::of(&tenant), tenant)));
                }
                match tenants.get(&directory) {
                    Some(tenant) => {
                        let referenced = runtime.block_on(catalog.referenced(tenant, contents));
                        referenced.map_err(io::Error::other)
                    }
                    None => Ok(vec![false; contents.len()]),
                }
            })
        });
        let swept = sweeping.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        let swept = swept.map_err(EngineError::KeepArtifacts)?;
        if swept.blobs > 0 {
            tracing::info!("deleted {} artifact contents, {} bytes", swept.blobs, swept.bytes);
        }
        Ok(())
    }
}

fn now_s() -> u64 {
    u64::try_from(clock::now_ms() / 1000).unwrap_or(0)
}
