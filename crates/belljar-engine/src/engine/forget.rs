//! Removes sessions with all their data, on request or when they are old.
//!
//! ```text
//!   ended ─▶ directory marked ─▶ row deleted ─▶ directory removed
//!               └ killed: the session is there    └ killed: the next start removes the directory
//! ```
//!
//! Artifacts are not removed: they have names, links and a retention of their own.

use std::sync::Arc;

use super::registry::Registry;
use super::{Engine, Principal, SessionInfo};
use crate::audit::AuditEntry;
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::session_directory::SessionDirectory;
use crate::state::EngineState;
use crate::store::SessionRow;

impl Engine {
    /// Removes a session with its files, snapshots, executions and log. A live session is stopped first.
    pub async fn purge(&self, who: &Principal, id: &str) -> Result<SessionInfo, EngineError> {
        let purged = self.purge_unnoted(who, id).await;
        let outcome = purged.as_ref().map_or_else(|error| in_full(error), |_| "removed".into());
        self.audit.note(
            who,
            &AuditEntry {
                action: "remove",
                outcome: &outcome,
                session: Some(id),
                ..AuditEntry::default()
            },
        );
        purged
    }

    async fn purge_unnoted(&self, who: &Principal, id: &str) -> Result<SessionInfo, EngineError> {
        let row = self.row(who, id).await?;
        self.must_have_files(&row).await?;
        let key = row.key;
        let full_key = (who.tenant.clone(), key.unwrap_or_else(|| format!("\0{id}")));
        let guard = self.registry.lock_key(&full_key);
        let guard = guard.lock_owned().await;
        if let Some(session) = self.held_if_alive(who, id).await? {
            session.stop("it was removed");
            session.ended().await?;
            self.registry.removed(id).await;
        }
        // Another request may have removed it meanwhile.
        let row = self.row(who, id).await?;
        let info = self.info_of_row(row.clone());
        let state = Arc::clone(&self.state);
        // A separate task: the caller may disconnect, and the session must not stay half removed.
        let removing = tokio::spawn(async move {
            let _guard = guard;
            state.forget_with_files(&row).await
        });
        removing.await.map_err(|_| EngineError::Stopping)??;
        Ok(info)
    }
}

impl Registry {
    /// Removes sessions on disk that ended before the retention time.
    pub(super) async fn remove_expired(&self) {
        let Some(retention_s) = self.state.config.disk.retention_s else { return };
        let before_ms = clock::now_ms().saturating_sub(clock::seconds_to_ms(retention_s));
        let expired = match self.state.store.sessions_to_remove(before_ms).await {
            Ok(expired) => expired,
            Err(error) => {
                tracing::warn!("failed to look for old sessions: {}", in_full(&error));
                return;
            }
        };
        for row in expired {
            let removed = self.remove_if_expired(&row, before_ms).await;
            let outcome = match removed {
                Ok(false) => continue,
                Ok(true) => format!("removed {retention_s} s after its end"),
                Err(error) => in_full(&error),
            };
            tracing::info!(session.id = row.id, "session {}: {outcome}", row.id);
            let who = Principal { tenant: row.tenant, ..Principal::default() };
            let entry = AuditEntry {
                action: "remove",
                outcome: &outcome,
                session: Some(&row.id),
                detail: Some("BELLJAR_SESSION_RETENTION"),
                ..AuditEntry::default()
            };
            self.state.note(&who, &entry);
        }
    }

    async fn remove_if_expired(
        &self,
        row: &SessionRow,
        before_ms: i64,
    ) -> Result<bool, EngineError> {
        let name = row.key.clone().unwrap_or_else(|| format!("\0{}", row.id));
        let guard = self.lock_key(&(row.tenant.clone(), name));
        let _guard = guard.lock().await;
        // The session may be in use again by now.
        let is_expired = |row: &SessionRow| row.ended_ms.is_some_and(|ended| ended < before_ms);
        match self.state.store.session(&row.id).await?.filter(is_expired) {
            Some(row) if self.find(&row.id).is_none() => {
                self.state.forget_with_files(&row).await.map(|()| true)
            }
            _ => Ok(false),
        }
    }
}

impl EngineState {
    /// Removes the row and the files of a session that has ended. The caller must hold the lock of its key.
    async fn forget_with_files(&self, row: &SessionRow) -> Result<(), EngineError> {
        let record = SessionDirectory::of(&self.config.sessions_root, &row.id);
        let path = record.directory().to_owned();
        let owner = self.store.owner().to_owned();
        let marked = record.clone();
        blocking(move || marked.mark_removed(&owner))
            .await
            .map_err(|cause| EngineError::Directory { path: path.clone(), cause })?;
        match self.store.forget_session(&row.id).await {
            Ok(true) => {}
            Ok(false) => return Err(EngineError::NoSession(row.id.clone())),
            Err(error) => {
                let _ = blocking(move || {
                    record.unmark_removed();
                    Ok(())
                })
                .await;
                return Err(error.into());
            }
        }
        self.snapshot_store.remove(&row.id).await;
        let session = row.id.clone();
        blocking(move || record.remove()).await.map_err(|cause| EngineError::RemoveFiles {
            session,
            path,
            cause,
        })
    }
}

async fn blocking(
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> std::io::Result<()> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(std::io::Error::other(panic)))
}
