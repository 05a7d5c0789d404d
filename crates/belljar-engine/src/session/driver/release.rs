//! Ends the driver of a session that goes on elsewhere: a hibernated one is released to all nodes, and one that another
//! node owns is dropped without a trace here.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Status;
use tokio::time::Instant;

use super::sleep::SleepEnd;
use super::{Driver, SandboxLease};
use crate::error::in_full;
use crate::store::StoreError;

/// How long a hibernated session stays on its node, for callers that are about to use it.
const LINGER: Duration = Duration::from_secs(1);

/// The pause before the next attempt if a caller uses the session, or the database does not answer.
const CALLER_PAUSE: Duration = Duration::from_millis(100);
const STORE_PAUSE: Duration = Duration::from_secs(2);

/// The reason of executions whose node lost the session.
pub(super) const FENCED: &str = "the node lost the session while it ran";

impl Driver {
    /// When to release this hibernated session; `None` if it cannot be released now.
    pub(super) fn release_at(&self) -> Option<Instant> {
        let is_in_s3 = match &self.unfetched {
            Some(_) => true,
            None => self.uploads.pointer_to(self.hibernated_as?).is_some(),
        };
        if !self.can_move() || !is_in_s3 {
            return None;
        }
        let linger = if self.state.availability.is_draining() { Duration::ZERO } else { LINGER };
        let due = self.asleep_since + linger;
        Some(self.release_again_at.map_or(due, |again| again.max(due)))
    }

    /// Gives the session to the node that claims it next. If a caller uses it, or the database does not answer, it stays.
    pub(super) async fn release(&mut self) -> Option<SleepEnd> {
        let pointer = match (&self.unfetched, self.hibernated_as) {
            (Some(pointer), _) => pointer.clone(),
            // Nothing is lost, unless the client does not know yet that the session went back.
            (None, Some(snapshot)) => {
                let pointer = self.uploads.pointer_to(snapshot)?.clone();
                if self.went_back.is_none() { pointer.clean() } else { pointer }
            }
            (None, None) => return None,
        };
        if !self.session.callers.close() {
            self.release_again_at = Some(Instant::now() + CALLER_PAUSE);
            return None;
        }
        let state = Arc::clone(&self.state);
        let (cluster, node) = state.cluster()?;
        let (id, pointer) = (self.session.id.clone(), pointer.kept_on(&node.id));
        let released = cluster.release_session(&id, Some(pointer.value().clone())).await;
        match self.session.noticed(released) {
            Ok(()) => {
                tracing::info!(session.id = id, "session {id} is released");
                (self.reservation, self.sleeping) = (None, None);
                self.state.snapshot_store.keep_as_cache(&id).await;
                Some(SleepEnd::Released)
            }
            Err(StoreError::Fenced { .. }) => Some(SleepEnd::Fenced),
            Err(error) => {
                tracing::warn!(session.id = id, "failed to release it: {}", in_full(&error));
                self.release_again_at = Some(Instant::now() + STORE_PAUSE);
                self.release_unanswered = true;
                self.session.callers.reopen();
                None
            }
        }
    }

    /// Another node owns the session: the sandbox is killed, local snapshots are removed, and nothing is written.
    pub(super) async fn end_fenced(&mut self, sandbox: Option<SandboxLease>) {
        if let Some(sandbox) = &sandbox {
            sandbox.kill();
        }
        for exec in self.session.live_execs() {
            exec.end(Status::Crashed, FENCED);
        }
        self.lanes.clear();
        self.uploads.cancel().await;
        self.aftermath.close().await;
        self.performing.shutdown().await;
        self.settling.shutdown().await;
        self.chores.shutdown().await;
        self.network = None;
        if let Some(sandbox) = sandbox {
            self.state.usage.close(&self.session.id, &self.session.tenant, &sandbox);
            self.destroy(sandbox).await;
        }
        self.live.send_modify(|live| live.clear());
        (self.reservation, self.sleeping) = (None, None);
        self.state.snapshot_store.remove(&self.session.id).await;
        let id = &self.session.id;
        tracing::warn!(session.id = id, "session {id} is dropped: this node no longer owns it");
    }
}
