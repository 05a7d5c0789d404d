//! Work without urgency, for which the driver does not wait: writes the readable files of a session on disk, and sends
//! the guest the ids of executions that it may drop.

use std::sync::Arc;

use belljar_proto::exec::Language;
use belljar_proto::guest::{Call, KernelVariables, RefusalCode};
use belljar_runtime::{RuntimeError, Sandbox};
use serde_json::json;

use super::{Driver, SandboxLease};
use crate::clock;
use crate::session::{Session, View};
use crate::session_directory::SessionDirectory;

/// How many executions are collected for one call that lets the guest drop them, unless they are large.
const FORGET_AT_ONCE: usize = 16;

/// The guest may drop a transcript of this size at once.
const LARGE_TRANSCRIPT: usize = 64 * 1024;

impl Driver {
    pub(super) fn chore_done(&self, warning: Option<String>) {
        if let Some(warning) = warning {
            self.warn(warning);
        }
    }

    /// Writes the variables of the Python kernel to `python_state.json`, for people to read.
    pub(super) fn write_variables(&mut self, sandbox: &SandboxLease) {
        self.variables_at = None;
        let (session, sandbox) = (Arc::clone(&self.session), sandbox.clone());
        self.chores.spawn(async move { write_variables(&session, &sandbox).await });
    }

    /// Brings `session_metadata.json` up to date.
    pub(super) fn write_metadata(&mut self) {
        if let Some(record) = self.session.record.clone() {
            let session = Arc::clone(&self.session);
            self.chores.spawn_blocking(move || write_metadata(&session, &record, &session.view()));
        }
    }

    /// The same at the end of the session, when nothing else writes. A session that is started again writes its own
    /// metadata.
    pub(super) async fn write_last_metadata(&mut self, end: &View) {
        while self.chores.join_next().await.is_some() {}
        if let Some(record) = self.session.record.clone() {
            let (session, end) = (Arc::clone(&self.session), end.clone());
            let write = move || write_metadata(&session, &record, &end);
            let _ = tokio::task::spawn_blocking(write).await;
        }
    }

    /// The execution is stored in the database, so the guest may drop it. Several executions are collected for one
    /// call.
    pub(super) fn forget_in_guest(&mut self, sandbox: SandboxLease, exec_id: &str, bytes: usize) {
        self.forgettable.push(exec_id.to_owned());
        if self.forgettable.len() < FORGET_AT_ONCE && bytes < LARGE_TRANSCRIPT {
            return;
        }
        let exec_ids = std::mem::take(&mut self.forgettable);
        self.chores.spawn(async move {
            // If this fails, the guest drops them later by itself.
            let _ = sandbox.link().call(Call::Forget { exec_ids }, &[]).await;
            None
        });
    }
}

fn write_metadata(session: &Session, record: &SessionDirectory, view: &View) -> Option<String> {
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
    let written = record.write_metadata(&metadata);
    // After the end of this session, another session may have the same key.
    if let Some(key) = session.key.as_deref().filter(|_| view.ended_ms.is_none())
        && let Err(error) = record.show_by_key(&session.tenant, key)
    {
        tracing::warn!(session.id = session.id, "failed to link by key: {error}");
    }
    let error = written.err()?;
    tracing::warn!(session.id = session.id, "failed to write metadata: {error}");
    Some(format!("session_metadata.json is out of date: {error}"))
}

/// Returns a warning if the file could not be written.
pub(super) async fn write_variables(session: &Session, sandbox: &Sandbox) -> Option<String> {
    session.record.as_ref()?;
    match sandbox.kernel_state(Language::Python).await {
        Ok(variables) => store_variables(session, variables).await,
        // The kernel was never started, has crashed or ran out of memory, so there are no variables.
        Err(RuntimeError::Refused(refusal)) if refusal.code == RefusalCode::NoKernel => {
            store_variables(session, KernelVariables::default()).await
        }
        // The kernel is busy or does not answer. The variables are written when the running execution has ended.
        Err(_) => None,
    }
}

pub(super) async fn store_variables(
    session: &Session,
    variables: KernelVariables,
) -> Option<String> {
    let record = session.record.clone()?;
    let writing = tokio::task::spawn_blocking(move || {
        let text = serde_json::to_vec_pretty(&variables)?;
        record.write_state(&text)
    });
    let error = writing.await.ok()?.err()?;
    tracing::warn!(session.id = session.id, "failed to write python_state.json: {error}");
    Some(format!("python_state.json is out of date: {error}"))
}
