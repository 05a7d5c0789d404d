//! From the settings to the configuration of the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, bail};
use belljar_api::About;
use belljar_engine::artifacts::ArtifactStoreConfig;
use belljar_engine::datasets::source::Sources;
use belljar_engine::network::Network;
use belljar_engine::spec::{SessionSpec, Storage};
use belljar_engine::workspaces::WorkspacesConfig;
use belljar_engine::{EngineConfig, NodeConfig, clock};
use belljar_runtime::VolumeKind;
use belljar_sys::procfs;

use crate::home;
use crate::settings::{Listen, Settings};

pub(crate) fn engine_config(
    settings: &Settings,
    image: String,
    dataset_sources: Arc<Sources>,
    network: Arc<Network>,
    node: Option<NodeConfig>,
) -> EngineConfig {
    let server = &settings.server;
    let mut snapshots = server.snapshots.clone();
    if let (Some(remote), Some(node)) = (&mut snapshots.remote, &node) {
        remote.class.clone_from(&node.class);
    }
    EngineConfig {
        defaults: SessionSpec {
            image,
            storage: server.storage,
            datasets: server.datasets,
            limits: settings.limits,
            network: settings.network.default.clone(),
            volumes: BTreeMap::new(),
            workspace: None,
            env: BTreeMap::new(),
            ttl_s: server.ttl_s,
            idle_s: server.idle_s,
            spill_s: None,
            checkpoints: None,
            metadata: serde_json::Map::new(),
        },
        images: settings.backend.images.clone(),
        sessions_root: server.sessions_root.clone(),
        datasets_dir: server.datasets_dir.clone(),
        dataset_sources,
        dataset_cache: server.dataset_cache.clone(),
        dataset_cache_bytes: server.dataset_cache_bytes,
        dataset_bytes: server.dataset_bytes,
        network,
        disk: server.disk(settings.strict),
        volumes: settings.volumes.config(settings.strict),
        workspaces: workspaces(settings),
        artifact_store: artifact_store_config(settings),
        pool: server.pool,
        total: server.total,
        alone_for_s: server.alone_for_s,
        spill: server.spill,
        snapshots,
        max_ttl_s: server.max_ttl_s,
        node,
        snapshot_every: settings.cluster.snapshot_every,
    }
}

/// Directories that sessions may mount at `/workspace`, and the server's own, which they may not.
fn workspaces(settings: &Settings) -> WorkspacesConfig {
    let (server, artifacts) = (&settings.server, &settings.artifacts);
    let own = [
        &settings.home,
        &settings.state_dir,
        &settings.run_dir,
        &server.sessions_root,
        &server.dataset_cache,
        &server.snapshots.directory,
        &settings.volumes.root,
        &artifacts.blobs_dir,
        &artifacts.database,
        &settings.backend.socket_dir,
    ];
    WorkspacesConfig {
        allowed: settings.workspaces.clone(),
        own: own.into_iter().cloned().collect(),
    }
}

fn artifact_store_config(settings: &Settings) -> ArtifactStoreConfig {
    let artifacts = &settings.artifacts;
    ArtifactStoreConfig {
        blobs_dir: artifacts.blobs_dir.clone(),
        objects: artifacts.objects.clone(),
        database: artifacts.database.clone(),
        catalog: None,
        catalog_id: None,
        key_file: home::link_key(settings),
        sessions_root: settings.server.sessions_root.clone(),
        outputs_dir: settings.outputs_dir.clone(),
        exports_dir: artifacts.exports_dir.clone(),
        // Behind a socket, links are paths, which no other program can open.
        show_all: matches!(settings.server.listen, Listen::Unix(_))
            && artifacts.public_url.is_none(),
        quotas: artifacts.quotas,
        retention_s: artifacts.retention_s,
        keep_originals: artifacts.keep_originals,
        link_ttl_s: artifacts.link_ttl_s,
    }
}

pub(crate) fn about(settings: &Settings) -> About {
    let directories = [
        ("state", &settings.state_dir),
        ("home", &settings.home),
        ("files", &settings.server.sessions_root),
        ("artifacts", &settings.artifacts.blobs_dir),
        ("volumes", &settings.volumes.root),
        ("run", &settings.run_dir),
    ];
    let own_memory = || {
        let kib = procfs::status_field(std::process::id(), "VmRSS")?;
        Some(kib * 1024)
    };
    About {
        started_ms: clock::now_ms(),
        directories: directories.map(|(name, path)| (name, path.clone())).into(),
        memory: own_memory,
    }
}

/// With BELLJAR_STRICT, fails if the size of sessions' files on disk is not enforced: every session would be refused.
pub(crate) fn insist_on_disk(settings: &Settings) -> Result<()> {
    let disk = settings.server.disk(settings.strict);
    if settings.strict
        && settings.server.storage == Storage::Bind
        && disk.new_kind().0 == VolumeKind::Directory
    {
        bail!("{}; BELLJAR_STRICT=1 forbids that", disk.why_not_enforced());
    }
    Ok(())
}
