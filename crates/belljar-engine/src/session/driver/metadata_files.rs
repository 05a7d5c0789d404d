//! What a session with files writes beside them, for people: its metadata and its variables.

use std::sync::Arc;

use belljar_proto::exec::Language;
use belljar_proto::guest::{KernelVariables, RefusalCode};
use belljar_runtime::{RuntimeError, Sandbox};
use serde_json::json;

use super::Driver;
use crate::clock;
use crate::session::Session;

impl Driver {
    pub(super) fn take_snapshot(&mut self, sandbox: &Arc<Sandbox>) {
        self.settling.spawn(snapshot(Arc::clone(&self.session), Arc::clone(sandbox)));
    }

    /// Keeps `session_metadata.json` up to date.
    pub(super) fn write_metadata(&self) {
        let Some(record) = self.session.record.clone() else { return };
        let session = Arc::clone(&self.session);
        tokio::task::spawn_blocking(move || {
            let view = session.view();
            let metadata = json!({
                "session_id": session.id,
                "key": session.key,
                "tenant": session.tenant,
                "created": clock::rfc3339(session.created_ms),
                "last_used": clock::rfc3339(view.used_ms),
                "expires": clock::rfc3339(view.expires_ms),
                "ended": view.ended_ms.map(clock::rfc3339),
                "ended_because": view.ended_because,
                "state": view.phase.name(),
                "image": session.spec.image,
                "storage": session.spec.storage,
                "datasets": session.spec.datasets,
                "limits": session.spec.limits,
                "metadata": session.spec.metadata,
                "statistics": { "execs": view.execs },
            });
            if let Err(error) = record.write_metadata(&metadata) {
                tracing::warn!(session.id = session.id, "failed to write metadata: {error}");
                session.warn(format!("session_metadata.json is out of date: {error}"));
            }
            // A session that has ended may have a successor with the same key.
            if let Some(key) = session.key.as_deref().filter(|_| view.ended_ms.is_none())
                && let Err(error) = record.show_by_key(&session.tenant, key)
            {
                tracing::warn!(session.id = session.id, "failed to link by key: {error}");
            }
        });
    }
}

/// Writes the variables of the Python kernel to `python_state.json`, for people.
pub(super) async fn snapshot(session: Arc<Session>, sandbox: Arc<Sandbox>) {
    if session.record.is_none() {
        return;
    }
    match sandbox.kernel_state(Language::Python).await {
        Ok(state) => write_state(session, state).await,
        // It was never started, or it has crashed or run out of memory: there are no variables.
        Err(RuntimeError::Refused(refusal)) if refusal.code == RefusalCode::NoKernel => {
            write_state(session, KernelVariables::default()).await;
        }
        // Busy, or silent: the end of what runs now is another occasion.
        Err(_) => {}
    }
}

pub(super) async fn write_state(session: Arc<Session>, state: KernelVariables) {
    let Some(record) = session.record.clone() else { return };
    let written = tokio::task::spawn_blocking(move || {
        let text = serde_json::to_vec_pretty(&state)?;
        record.write_state(&text)
    });
    if let Ok(Err(error)) = written.await {
        tracing::warn!(session.id = session.id, "failed to write python_state.json: {error}");
        session.warn(format!("python_state.json is out of date: {error}"));
    }
}
