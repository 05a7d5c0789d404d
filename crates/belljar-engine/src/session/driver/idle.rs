//! What becomes of a session that nobody uses for a while: its large values go to disk.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_proto::guest::{RefusalCode, SpillAsk, SpillReport};
use belljar_runtime::{RuntimeError, Sandbox};
use tokio::time::Instant;

use super::{Driver, later};
use crate::engine::SpillPolicy;
use crate::exec::Stage;
use crate::lock;
use crate::session::Session;

/// A kernel that could not now is asked again after this.
const SPILL_PACE: Duration = Duration::from_secs(10);

/// How far we are with the values of a session.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spilling {
    /// Since this use of the session everything that can go has gone.
    done_since: Option<Instant>,
    /// Not before this.
    again_at: Option<Instant>,
}

/// How large a value must be that goes to disk, where only the session says that any should.
const SPILL_BYTES: u64 = 1 << 20;

impl Driver {
    /// When values of this session go to disk: what it asked for, else what the server says.
    fn spill_policy(&self) -> Option<SpillPolicy> {
        let own = self.shared.config.spill;
        match self.session.spec.spill_s {
            None => own,
            Some(0) => None,
            Some(seconds) => {
                let after = Duration::from_secs(seconds);
                let alone =
                    SpillPolicy { after, frame_bytes: SPILL_BYTES, array_bytes: SPILL_BYTES };
                Some(own.map_or(alone, |own| SpillPolicy { after, ..own }))
            }
        }
    }

    /// When to move the values of this session to disk, should nobody use it until then.
    pub(super) fn spill_at(&self) -> Option<Instant> {
        let idle = self.spill_policy()?.after;
        if self.spilling.done_since == Some(self.used) {
            return None;
        }
        let due = later(self.used, idle);
        Some(self.spilling.again_at.map_or(due, |again| again.max(due)))
    }

    /// Whether nothing runs, not even in the background.
    pub(super) fn rests(&self) -> bool {
        lock(&self.session.live).values().all(|exec| exec.stage() == Stage::Finished)
    }

    /// Asks the kernel to move its large values, and looks again later whether it did.
    pub(super) fn spill(&mut self, sandbox: &Arc<Sandbox>) {
        let Some(policy) = self.spill_policy() else { return };
        let used = self.used;
        self.spilling.again_at = Some(Instant::now() + SPILL_PACE);
        let (session, sandbox) = (Arc::clone(&self.session), Arc::clone(sandbox));
        self.spillers.spawn(async move { spill(&session, &sandbox, policy).await.then_some(used) });
    }

    /// An attempt is over; with the use of the session since which nothing is left to be moved.
    pub(super) fn spilled(&mut self, done_since: Option<Instant>) {
        if done_since.is_some() {
            self.spilling = Spilling { done_since, again_at: None };
        }
    }
}

/// True if there is nothing more to do until the session is used again.
async fn spill(session: &Session, sandbox: &Sandbox, policy: SpillPolicy) -> bool {
    let ask = SpillAsk { frame_bytes: policy.frame_bytes, array_bytes: policy.array_bytes };
    match sandbox.spill(Language::Python, ask).await {
        Ok(Some(report)) => settled(session, &report),
        // Its guest was made by an older version, and does not know how.
        Ok(None) => true,
        // There are no values, or nobody who could move them.
        Err(RuntimeError::Refused(refusal)) if refusal.code == RefusalCode::NoKernel => true,
        Err(error) => {
            tracing::debug!(session.id = session.id, "failed to move values to disk: {error}");
            false
        }
    }
}

fn settled(session: &Session, report: &SpillReport) -> bool {
    let id = &session.id;
    if !report.spilled.is_empty() {
        let (values, bytes) = (report.spilled.len(), report.bytes);
        tracing::info!(
            session.id = id,
            values,
            bytes,
            "session {id} is idle: {bytes} bytes on disk"
        );
    }
    for stayed in &report.stayed {
        let (name, reason) = (&stayed.name, &stayed.reason);
        tracing::debug!(session.id = id, "`{name}` stays in memory: {reason}");
    }
    if report.full {
        let because = "there is no room for idle values below /session/data: they stay in memory";
        tracing::warn!(session.id = id, "{because}");
        session.warn_once(because);
    }
    // Busy, with threads of its own perhaps, or disturbed: it is asked again.
    report.reason.is_empty() && !report.disturbed
}
