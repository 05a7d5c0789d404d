//! Periodic tasks while the engine is open: they count usage and remove old data.

use std::sync::Arc;
use std::time::Duration;

use belljar_runtime::VolumeKind;

use super::registry::Registry;
use crate::clock;
use crate::error::in_full;
use crate::session::{Session, too_large_on_disk};
use crate::usage;

const PACE: Duration = Duration::from_secs(3600);

/// How often a node looks for layers of other nodes.
const FETCH_PACE: Duration = Duration::from_secs(15);

/// How long rows of ended sessions are kept. Rows of sessions with files on disk are kept until the files are removed.
const REMEMBERED_MS: i64 = 7 * 86_400_000;

pub(super) async fn remove_old(registry: Arc<Registry>) {
    let state = &registry.state;
    loop {
        let before = clock::now_ms() - REMEMBERED_MS;
        if let Err(error) = state.store.prune_sessions(before).await {
            tracing::warn!("failed to remove old sessions: {}", in_full(&error));
        }
        registry.remove_expired().await;
        if let Err(error) = registry.end_expired().await {
            tracing::warn!("failed to end expired sessions: {}", in_full(&error));
        }
        registry.check_sizes().await;
        if let Err(error) = state.artifact_store.tidy().await {
            tracing::warn!("failed to tidy up artifacts: {}", in_full(&error));
        }
        if let Err(error) = registry.sweep_shared_layers(clock::now_ms()).await {
            tracing::warn!("failed to remove shared layers from S3: {}", in_full(&error));
        }
        let retention = state.config.disk.retention_s.map_or(PACE, Duration::from_secs);
        tokio::time::sleep(PACE.min(retention.max(Duration::from_secs(1)))).await;
    }
}

/// Fetches what most sessions of other nodes share, before one of them wakes here.
pub(super) async fn fetch_shared_layers(registry: Arc<Registry>) {
    let state = &registry.state;
    // A single server with S3 has only its own layers.
    let (Some(_), Some(remote)) = (state.cluster(), state.snapshot_store.remote()) else { return };
    loop {
        // Without it the next wake fetches the layer, and reports why it cannot.
        if let Err(error) = remote.fetch_zygote_layers().await {
            tracing::debug!("failed to fetch layers of other nodes: {}", in_full(&error));
        }
        tokio::time::sleep(FETCH_PACE).await;
    }
}

/// Reads the usage of all live sessions at a steady pace, and stores it.
pub(super) async fn count_usage(registry: Arc<Registry>) {
    loop {
        tokio::time::sleep(usage::PACE).await;
        let reader = Arc::clone(&registry);
        // Reading the files of control groups is quick, but there are many.
        let reading = tokio::task::spawn_blocking(move || {
            for session in reader.live() {
                if let Ok(sandbox) = session.sandbox() {
                    reader.state.usage.read(&session.id, &session.tenant, &sandbox);
                }
            }
        });
        let _ = reading.await;
        if let Err(error) = registry.state.usage.flush(&*registry.state.store).await {
            tracing::error!("failed to store usage: {}", in_full(&error));
        }
    }
}

impl Registry {
    /// If the size of files is not enforced, a session whose files are too large gets a warning.
    async fn check_sizes(&self) {
        let limit = self.state.config.disk.size;
        for session in self.live() {
            if is_too_large(&session, limit).await {
                session.warn(too_large_on_disk(limit));
            }
        }
    }
}

async fn is_too_large(session: &Session, limit: u64) -> bool {
    let Some(record) = session.record.clone() else { return false };
    let measuring = tokio::task::spawn_blocking(move || {
        let place = record.place().filter(|place| place.kind == VolumeKind::Directory)?;
        place.usage().ok()
    });
    let measured = measuring.await.ok().flatten();
    measured.is_some_and(|usage| usage.bytes > limit || usage.partial)
}
