//! The store that nodes and gateways share.

use std::sync::Arc;

use anyhow::{Result, bail};
use belljar_engine::store::Store;

use crate::settings::Settings;

/// Opens the store of a node; an empty id is for gateways.
pub(crate) async fn open(_settings: &Settings, _node: &str) -> Result<Arc<dyn Store>> {
    bail!("BELLJAR_DATABASE_URL is not supported yet")
}
