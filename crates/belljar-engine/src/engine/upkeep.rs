//! What is done now and then, for as long as the engine lives: what is old is forgotten.

use std::sync::Arc;
use std::time::Duration;

use belljar_runtime::VolumeKind;

use super::state::EngineState;
use crate::clock;
use crate::error::in_full;
use crate::record::Record;

const PACE: Duration = Duration::from_secs(3600);

/// Ended sessions are remembered this long; those with files on disk until they are removed.
const REMEMBERED_MS: i64 = 7 * 86_400_000;

pub(super) async fn keep_up(shared: Arc<EngineState>) {
    loop {
        let before = clock::now_ms() - REMEMBERED_MS;
        if let Err(error) = shared.store.prune_sessions(before).await {
            tracing::warn!("failed to forget old sessions: {}", in_full(&error));
        }
        shared.remove_expired().await;
        shared.look_at_sizes().await;
        if let Err(error) = shared.artifact_store.tidy().await {
            tracing::warn!("failed to tidy up artifacts: {}", in_full(&error));
        }
        let retention = shared.config.disk.retention_s.map_or(PACE, Duration::from_secs);
        tokio::time::sleep(PACE.min(retention.max(Duration::from_secs(1)))).await;
    }
}

impl EngineState {
    /// All that can be done about sizes that are not enforced: a session that holds too much is
    /// said to.
    async fn look_at_sizes(&self) {
        let limit = self.config.disk.size;
        for session in self.live() {
            let Some(place) = session.record.as_ref().and_then(Record::place) else { continue };
            if place.kind != VolumeKind::Directory {
                continue;
            }
            let measured = tokio::task::spawn_blocking(move || place.usage()).await;
            if let Ok(Ok(usage)) = measured
                && (usage.bytes > limit || usage.partial)
            {
                session.warn_once(&too_large(limit));
            }
        }
    }
}

/// What is said of a session whose files take more than they should.
pub(super) fn too_large(limit: u64) -> String {
    format!("its files on disk take more than {limit} bytes (BELLJAR_SESSION_SIZE)")
}
