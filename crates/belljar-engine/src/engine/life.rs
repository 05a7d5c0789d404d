//! Starts ended sessions again, extends the life of sessions, and stops them.

use std::time::Instant;

use super::create::expiry;
use super::{Engine, Principal, SessionInfo};
use crate::audit::AuditEntry;
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::rules::{self, Phase, Request};
use crate::session::Origin;
use crate::spec::{SessionAsk, Storage};
use crate::store::SessionRow;

impl Engine {
    /// Starts an ended session again whose files still exist.
    pub async fn start_again(&self, who: &Principal, id: &str) -> Result<SessionInfo, EngineError> {
        let restarted = self.start_again_unnoted(who, id).await;
        let outcome =
            restarted.as_ref().map_or_else(|error| in_full(error), |_| "restarted".into());
        self.audit.note(
            who,
            &AuditEntry {
                action: "start",
                outcome: &outcome,
                session: Some(id),
                ..AuditEntry::default()
            },
        );
        restarted
    }

    /// Extends the life of a session.
    pub async fn extend(
        &self,
        who: &Principal,
        id: &str,
        ttl_s: u64,
    ) -> Result<SessionInfo, EngineError> {
        self.check(&SessionAsk { ttl_s: Some(ttl_s), ..SessionAsk::default() })?;
        let session = self.live_session(who, id).await?;
        session.extend(ttl_s).await?;
        Ok(self.info(&session))
    }

    /// Ends a session and waits until it is gone. An ended session is not changed.
    pub async fn stop(&self, who: &Principal, id: &str) -> Result<SessionInfo, EngineError> {
        let stopped = match self.held_if_alive(who, id).await {
            Ok(Some(session)) => {
                session.stop("it was stopped");
                session.ended().await.map(|_| self.info(&session))
            }
            Ok(None) => self.row(who, id).await.map(|row| self.info_of_row(row)),
            Err(error) => Err(error),
        };
        let outcome = stopped.as_ref().map_or_else(|error| in_full(error), |_| "stopped".into());
        self.audit.note(
            who,
            &AuditEntry {
                action: "stop",
                outcome: &outcome,
                session: Some(id),
                ..AuditEntry::default()
            },
        );
        stopped
    }

    async fn start_again_unnoted(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<SessionInfo, EngineError> {
        let key = self.row(who, id).await?.key;
        // No key contains a NUL, so this is a lock for the session itself.
        let name = key.clone().unwrap_or_else(|| format!("\0{id}"));
        let full_key = (who.tenant.clone(), name);
        let guard = self.registry.lock_key(&full_key);
        let _guard = guard.lock().await;
        if let Ok(session) = self.session(who, id) {
            // The session may be stopping; then its files are free in a moment.
            if session.phase() == Phase::Stopping {
                session.ended().await?;
            }
            rules::allows(session.phase(), Request::Start)
                .map_err(|refusal| EngineError::not_now(id, refusal, None))?;
        }
        if let Some(other) = key.and_then(|_| self.registry.find_by_key(&full_key))
            && !other.phase().is_over()
        {
            return Err(EngineError::KeyTaken { session: other.id.clone() });
        }
        let row = self.row(who, id).await?;
        if row.ended_ms.is_none() && self.state.cluster().is_some() {
            return Err(EngineError::not_now(id, rules::Refusal::Alive, None));
        }
        self.must_have_files(&row).await?;
        if row.spec.storage != Storage::Bind {
            return Err(EngineError::Invalid(format!(
                "session `{id}` kept its files in memory, and they are gone; only one with \
                 storage BIND can be started again"
            )));
        }
        self.restart(who, row, Instant::now()).await
    }

    /// Starts a session again from its row, with its original time to live.
    pub(super) async fn restart(
        &self,
        who: &Principal,
        row: SessionRow,
        begun: Instant,
    ) -> Result<SessionInfo, EngineError> {
        self.state.check_volumes(&who.tenant, &row.spec.volumes).await?;
        // The operator may have changed which directories are allowed.
        self.state.find_workspace(row.spec.workspace.as_deref()).await?;
        let reservation = self.state.reserve(who, &row.spec).await?;
        let now = clock::now_ms();
        let row = SessionRow {
            phase: Phase::Creating,
            handle: None,
            used_ms: now,
            expires_ms: expiry(now, row.spec.ttl_s),
            ended_ms: None,
            ended_because: None,
            ..row
        };
        let session = self.settle_in(row, reservation, Origin::Cold).await?;
        self.state.metrics.created("restarted");
        self.state.metrics.create_seconds.observe(begun.elapsed().as_secs_f64());
        Ok(session)
    }
}
