//! Moves large values of an idle session to disk.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_proto::guest::{RefusalCode, SpillAsk, SpillReport};
use belljar_runtime::{RuntimeError, Sandbox};
use tokio::time::Instant;

use super::{Driver, SandboxLease, later};
use crate::config::SpillPolicy;
use crate::exec::Stage;
use crate::session::Session;

/// The pause before a kernel that refused to move its values is asked again.
const SPILL_PACE: Duration = Duration::from_secs(10);

/// The smallest value that is moved to disk if only the session, and not the server, enables it.
const SPILL_BYTES: u64 = 1 << 20;

/// When the values of a session are moved next.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spilling {
    /// The last use of the session after which everything movable was moved.
    done_since: Option<Instant>,
    /// The earliest time of the next attempt.
    again_at: Option<Instant>,
}

/// An attempt to move values.
#[derive(Debug)]
pub(super) struct Spilled {
    /// The last use of the session before the attempt.
    used: Instant,
    /// Nothing is left to move until the session is used again.
    done: bool,
    warning: Option<String>,
}

impl Driver {
    /// When values of this session are moved to disk: the setting of the session, else the setting of the server.
    fn spill_policy(&self) -> Option<SpillPolicy> {
        let own = self.state.config.spill;
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

    /// When to move the values of this session to disk, if it is not used until then.
    pub(super) fn spill_at(&self) -> Option<Instant> {
        let idle = self.spill_policy()?.after;
        if self.spilling.done_since == Some(self.used) {
            return None;
        }
        let due = later(self.used, idle);
        Some(self.spilling.again_at.map_or(due, |again| again.max(due)))
    }

    /// Whether nothing runs, not even in the background.
    pub(super) fn is_idle(&self) -> bool {
        self.live.borrow().values().all(|exec| exec.stage() == Stage::Finished)
    }

    /// Asks the kernel to move its large values.
    pub(super) fn spill(&mut self, sandbox: &SandboxLease) {
        let Some(policy) = self.spill_policy() else { return };
        let used = self.used;
        self.spilling.again_at = Some(Instant::now() + SPILL_PACE);
        let (session, sandbox) = (Arc::clone(&self.session), sandbox.clone());
        self.spillers.spawn(async move {
            let (done, warning) = spill(&session, &sandbox, policy).await;
            Spilled { used, done, warning }
        });
    }

    /// An attempt is over; `None` if it panicked.
    pub(super) fn spilled(&mut self, spilled: Option<Spilled>) {
        let Some(Spilled { used, done, warning }) = spilled else { return };
        if done {
            self.spilling = Spilling { done_since: Some(used), again_at: None };
        }
        if let Some(warning) = warning {
            self.warn(warning);
        }
    }
}

/// Returns whether nothing is left to do until the session is used again, and a warning, if any.
async fn spill(
    session: &Session,
    sandbox: &Sandbox,
    policy: SpillPolicy,
) -> (bool, Option<String>) {
    let ask = SpillAsk { frame_bytes: policy.frame_bytes, array_bytes: policy.array_bytes };
    match sandbox.spill(Language::Python, ask).await {
        Ok(Some(report)) => {
            // A kernel that was busy, or was used meanwhile, is asked again.
            let done = report.reason.is_empty() && !report.disturbed;
            (done, log_report(session, &report))
        }
        // The guest is of an older version, which does not support this.
        Ok(None) => (true, None),
        // There is no kernel, so there are no values.
        Err(RuntimeError::Refused(refusal)) if refusal.code == RefusalCode::NoKernel => {
            (true, None)
        }
        Err(error) => {
            tracing::debug!(session.id = session.id, "failed to move values to disk: {error}");
            (false, None)
        }
    }
}

fn log_report(session: &Session, report: &SpillReport) -> Option<String> {
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
    if !report.full {
        return None;
    }
    let because = "there is no room for idle values below /session/data: they stay in memory";
    tracing::warn!(session.id = id, "{because}");
    Some(because.to_owned())
}
