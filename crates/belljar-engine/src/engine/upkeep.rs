//! What is done now and then, for as long as the engine lives: what is old is forgotten.

use std::sync::Arc;
use std::time::Duration;

use super::shared::Shared;
use crate::clock;
use crate::error::in_full;

const PACE: Duration = Duration::from_secs(3600);

/// Ended sessions are remembered this long; those with files on disk for ever.
const REMEMBERED_MS: i64 = 7 * 86_400_000;

pub(super) async fn keep_up(shared: Arc<Shared>) {
    loop {
        let before = clock::now_ms() - REMEMBERED_MS;
        if let Err(error) = shared.store.prune_sessions(before).await {
            tracing::warn!("failed to forget old sessions: {}", in_full(&error));
        }
        if let Err(error) = shared.shelf.tidy().await {
            tracing::warn!("failed to tidy up artifacts: {}", in_full(&error));
        }
        tokio::time::sleep(PACE).await;
    }
}
