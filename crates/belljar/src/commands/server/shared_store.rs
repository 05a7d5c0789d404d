//! The records that nodes and gateways share, in Postgres.

use std::sync::Arc;

use anyhow::{Context, Result};
use belljar_engine::store::{ArtifactCatalog, DatabaseUrl, PostgresCatalog, PostgresStore, Store};

use crate::settings::Settings;

/// Opens the store of a node; an empty id is for gateways.
pub(crate) async fn open(settings: &Settings, node: &str) -> Result<Arc<dyn Store>> {
    let store = PostgresStore::open(url(settings)?, node).await;
    Ok(Arc::new(store.context("BELLJAR_DATABASE_URL: failed to open the database")?))
}

/// Opens the catalog of artifacts.
pub(crate) async fn catalog(settings: &Settings) -> Result<Arc<dyn ArtifactCatalog>> {
    let catalog = PostgresCatalog::open(url(settings)?).await;
    Ok(Arc::new(catalog.context("BELLJAR_DATABASE_URL: failed to open the catalog")?))
}

fn url(settings: &Settings) -> Result<&DatabaseUrl> {
    let url = settings.database.as_ref();
    url.context("BELLJAR_DATABASE_URL is not set; nodes and gateways share a Postgres database")
}
