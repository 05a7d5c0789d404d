//! The artifacts of a server: their content, their catalog, and the key that signs links to them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;

use super::blobs::{BlobReader, Blobs, make_root};
use super::claim::{self, CatalogClaim, ClaimError, StoreClaim};
use super::ingest::{ArtifactPlace, own_directory};
use super::links;
use super::tokens::{Method, SigningKey};
use crate::clock;
use crate::error::EngineError;
use crate::metrics::ArtifactMetrics;
use crate::objects::{Objects, ObjectsConfig};
use crate::store::{
    ArtifactCatalog, ArtifactFilter, ArtifactQuotas, ArtifactRow, ArtifactTotal, Page,
    SqliteCatalog,
};
use crate::tenant_dir::TenantDir;

/// Artifacts that are removed from the catalog in one transaction.
const FORGOTTEN_AT_ONCE: u32 = 500;

#[derive(Debug, Clone)]
pub struct ArtifactStoreConfig {
    /// The content, or with `objects` copies of some of it.
    pub blobs_dir: PathBuf,
    /// S3, if the content is there.
    pub objects: Option<ObjectsConfig>,
    pub database: PathBuf,
    /// The catalog; `None` means the SQLite file `database`.
    pub catalog: Option<Arc<dyn ArtifactCatalog>>,
    /// The id of the catalog, which owns the content in S3; `None` means the one in the file beside `database`.
    pub catalog_id: Option<String>,
    pub key_file: PathBuf,
    /// The directories of sessions on disk, and of runs.
    pub sessions_root: PathBuf,
    pub outputs_dir: PathBuf,
    /// The directory for exported datasets.
    pub exports_dir: PathBuf,
    /// Whether artifacts of sessions in memory are also linked by name below `sessions_root`. A
    /// server without an address has no URLs, so users need paths.
    pub show_all: bool,
    pub quotas: ArtifactQuotas,
    /// Seconds after which an artifact is removed; `None` means never.
    pub retention_s: Option<u64>,
    /// Whether files are kept in the sandbox after they were copied.
    pub keep_originals: bool,
    /// Seconds until a link expires.
    pub link_ttl_s: u64,
}

#[derive(Debug)]
pub struct ArtifactStore {
    pub(super) config: ArtifactStoreConfig,
    pub(super) blobs: Blobs,
    /// S3, if the content is there.
    objects: Option<Objects>,
    pub(super) catalog: Arc<dyn ArtifactCatalog>,
    key: SigningKey,
    /// Per tenant, the artifacts that are copied but not in the catalog yet.
    pub(super) in_flight: Mutex<HashMap<String, ArtifactTotal>>,
    /// How often artifacts were removed. After a removal, the quotas may allow files that were
    /// refused before.
    pub(super) freed: AtomicU64,
    pub(super) metrics: ArtifactMetrics,
    _claims: (CatalogClaim, StoreClaim),
}

/// A signed token and its expiry.
#[derive(Debug, Clone)]
pub struct ArtifactLink {
    pub token: String,
    /// Seconds since 1970.
    pub expires_s: u64,
}

impl ArtifactStore {
    /// Opens the store, and creates missing files and directories. Only one server may use it at a
    /// time.
    pub fn open(
        config: ArtifactStoreConfig,
        metrics: ArtifactMetrics,
    ) -> Result<ArtifactStore, EngineError> {
        let at = |path: &PathBuf| {
            let path = path.clone();
            move |cause| EngineError::Directory { path, cause }
        };
        let catalog_claim = CatalogClaim::take(&config.database).map_err(at(&config.database))?;
        let catalog: Arc<dyn ArtifactCatalog> = match &config.catalog {
            Some(catalog) => Arc::clone(catalog),
            None => Arc::new(SqliteCatalog::open(&config.database)?),
        };
        let claim = make_root(&config.blobs_dir)
            .and_then(|root| StoreClaim::take(&root, &config.database))
            .map_err(at(&config.blobs_dir))?;
        let objects = config.objects.as_ref().map(Objects::open).transpose();
        let objects = objects.map_err(EngineError::from)?;
        let blobs = match &objects {
            Some(objects) => Blobs::open_objects(objects.clone(), &config.blobs_dir),
            None => Blobs::open(&config.blobs_dir),
        };
        let blobs = blobs.map_err(at(&config.blobs_dir))?;
        let key = SigningKey::load_or_create(&config.key_file).map_err(at(&config.key_file))?;
        Ok(ArtifactStore {
            config,
            blobs,
            objects,
            catalog,
            key,
            in_flight: Mutex::default(),
            freed: AtomicU64::new(0),
            metrics,
            _claims: (catalog_claim, claim),
        })
    }

    /// Fails if the content is in S3, and S3 cannot be reached, refuses access, or has content of another catalog.
    pub async fn check(&self) -> Result<(), ClaimError> {
        let Some(objects) = &self.objects else { return Ok(()) };
        objects.check().await?;
        self.claim(objects).await
    }

    /// Content in S3 belongs to one catalog: a server with another one would remove all of it.
    async fn claim(&self, objects: &Objects) -> Result<(), ClaimError> {
        let id = match &self.config.catalog_id {
            Some(id) => id.clone(),
            None => claim::catalog_id(&self.config.database).map_err(ClaimError::Id)?,
        };
        claim::claim_objects(objects, &id).await
    }

    /// `s3://bucket/prefix`, if the content is in S3.
    #[must_use]
    pub fn objects_place(&self) -> Option<&str> {
        self.objects.as_ref().map(Objects::place)
    }

    /// Signs links with this secret, which all nodes of a cluster share.
    pub(crate) fn sign_links_with(&mut self, secret: &[u8]) {
        self.key = SigningKey::of_secret(secret);
    }

    /// Whether the artifacts of every session are linked by name.
    pub(crate) fn shows_all(&self) -> bool {
        self.config.show_all
    }

    pub(crate) async fn close(&self) {
        self.catalog.close().await;
    }

    pub async fn list(&self, filter: ArtifactFilter) -> Result<Page<ArtifactRow>, EngineError> {
        Ok(self.catalog.list(filter).await?)
    }

    /// An artifact of any tenant. The caller must have checked a link to it, or its tenant.
    pub async fn find(&self, id: &str) -> Result<Option<ArtifactRow>, EngineError> {
        Ok(self.catalog.find(id).await?)
    }

    /// A link that works without an API key until it expires.
    #[must_use]
    pub fn link(&self, method: Method, id: &str) -> ArtifactLink {
        let expires_s = now_s().saturating_add(self.config.link_ttl_s);
        ArtifactLink { token: self.key.sign(method, id, expires_s), expires_s }
    }

    /// Whether this token is valid for this artifact now.
    #[must_use]
    pub fn opens(&self, method: Method, id: &str, token: &str) -> bool {
        self.key.verify(method, id, token, now_s())
    }

    /// The path of each artifact on the host: its link by name if there is one, else the path of
    /// its content.
    pub async fn host_paths(&self, rows: &[ArtifactRow]) -> Vec<PathBuf> {
        let places: Vec<(PathBuf, Vec<PathBuf>)> = rows
            .iter()
            .map(|row| {
                let shown = [ArtifactPlace::Session, ArtifactPlace::Run]
                    .map(|place| self.shown_at(row, place));
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

    /// Removes an artifact. The next sweep deletes its content, if no other artifact has it.
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

    /// Removes the links by name of removed artifacts, if they still point to the removed content.
    async fn hide(&self, mut rows: Vec<ArtifactRow>) -> Result<(), EngineError> {
        self.freed.fetch_add(1, Ordering::Relaxed);
        // Another artifact with the same path and content has the same link.
        let mut shown = self.catalog.have_twins(rows.clone()).await?.into_iter();
        rows.retain(|_| shown.next() == Some(false));
        let names: Vec<_> = rows
            .iter()
            .flat_map(|row| {
                let blob = self.blobs.path(&row.tenant, &row.sha256);
                let places = [ArtifactPlace::Session, ArtifactPlace::Run]
                    .map(|place| self.shown_at(row, place));
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

    /// Removes artifacts that are too old, and content without artifacts.
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

    /// Deletes content that no artifact has.
    pub(crate) async fn sweep(&self) -> Result<(), EngineError> {
        if !self.may_sweep().await? {
            return Ok(());
        }
        let (blobs, catalog) = (self.blobs.clone(), Arc::clone(&self.catalog));
        let runtime = Handle::current();
        let sweeping = tokio::task::spawn_blocking(move || {
            let mut tenants: HashMap<TenantDir, String> = HashMap::new();
            blobs.sweep(|directory, contents| {
                if !tenants.contains_key(&directory) {
                    // The tenant may be newer than the list, so the list is read again.
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

impl ArtifactStore {
    /// Whether this server may sweep now.
    ///
    /// If several servers share the catalog, only one of them may sweep at a time; a lock of the database for that
    /// belongs here.
    async fn may_sweep(&self) -> Result<bool, EngineError> {
        let Some(objects) = &self.objects else { return Ok(true) };
        let claimed = self.claim(objects).await;
        claimed.map_err(|error| EngineError::KeepArtifacts(io::Error::other(error)))?;
        Ok(true)
    }
}

fn now_s() -> u64 {
    u64::try_from(clock::now_ms() / 1000).unwrap_or(0)
}
