//! Removes layers in S3 that no session of any node refers to. One node per hour does it.

use std::collections::HashSet;
use std::time::Duration;

use super::registry::Registry;
use crate::error::EngineError;
use crate::snapshots::RemoteSnapshots;
use crate::store::ClusterRecords;

/// The name of the task in the database.
const TASK: &str = "sweep shared layers";

const PACE: Duration = Duration::from_secs(3600);

/// A sweep ends before another node can begin the next one.
const LIMIT: Duration = Duration::from_secs(3000);

/// How many snapshots are read at once.
const PAGE: u32 = 200;

impl Registry {
    /// Removes old shared layers, unless another node did so within the last hour. `now_ms` is the present time.
    pub(super) async fn sweep_shared_layers(&self, now_ms: i64) -> Result<(), EngineError> {
        let Some((cluster, _)) = self.state.cluster() else { return Ok(()) };
        let Some(remote) = self.state.snapshot_store.remote() else { return Ok(()) };
        if !cluster.begin_task(TASK, PACE).await? {
            return Ok(());
        }
        let sweeping = async {
            let used = used_layers(cluster).await?;
            remote.sweep_common(now_ms, &used).await
        };
        let swept = tokio::time::timeout(LIMIT, sweeping).await;
        let removed = swept.unwrap_or(Err(EngineError::Unavailable("the sweep took too long")))?;
        if removed > 0 {
            tracing::info!("removed {removed} shared layer(s) from S3 that no session needs");
        }
        Ok(())
    }
}

/// The shared layers of all sessions. There are few, because many sessions share each.
async fn used_layers(cluster: &dyn ClusterRecords) -> Result<HashSet<String>, EngineError> {
    let (mut used, mut after) = (HashSet::new(), String::new());
    loop {
        let page = cluster.snapshots(&after, PAGE).await?;
        for (_, pointer) in &page {
            used.extend(RemoteSnapshots::common_layers(pointer)?);
        }
        match page.into_iter().last() {
            Some((last, _)) => after = last,
            None => return Ok(used),
        }
    }
}
