//! Stores the end of an execution: in the session's log, in the database and in the usage counters. Only then may the
//! guest drop the execution.

use std::sync::Arc;

use tokio::task::JoinError;

use super::{Driver, SandboxLease};
use crate::clock;
use crate::error::in_full;
use crate::exec::Exec;
use crate::exec::log::LogEntry;
use crate::exec::result::ExecResult;
use crate::session::{RETRY_PAUSE, STORE_RETRIES, Session};
use crate::state::EngineState;
use crate::store::{FinishedExec, StoreError};

/// The end of an execution that is being stored.
pub(super) struct Settling {
    exec: Arc<Exec>,
    /// Held until the end is stored, so that hibernation does not end the guest before.
    sandbox: Option<SandboxLease>,
    ended_ms: i64,
    expires_ms: Option<i64>,
    retries_left: u32,
}

/// The result of an attempt to store it.
pub(super) struct Settled {
    settling: Settling,
    /// The size of what was stored.
    stored: Result<usize, StoreError>,
    warning: Option<String>,
}

impl Driver {
    /// Stores the end of an execution. Without a sandbox, no call to the guest follows.
    pub(super) fn settle(&mut self, sandbox: Option<&SandboxLease>, exec: Arc<Exec>) {
        if exec.transcript.outcome().is_none() {
            return;
        }
        let may_be_logged = self.inherited.contains(&exec.id);
        let expires_ms = self.expiry_is_due().then(|| self.expires_ms());
        let (state, session) = (Arc::clone(&self.state), Arc::clone(&self.session));
        let settling = Settling {
            exec,
            sandbox: sandbox.cloned(),
            ended_ms: clock::now_ms(),
            expires_ms,
            retries_left: STORE_RETRIES,
        };
        self.settling.spawn(async move {
            count(&state, &session, &settling);
            let warning = log(&session, &settling.exec, may_be_logged).await;
            settling.store(&state, &session.id, warning).await
        });
    }

    pub(super) fn settled(&mut self, settled: Result<Settled, JoinError>) {
        let Settled { mut settling, stored, warning } = match settled {
            Ok(settled) => settled,
            Err(panic) => {
                tracing::error!(session.id = self.session.id, "failed to settle: {panic}");
                return;
            }
        };
        if let Some(warning) = warning {
            self.warn(warning);
        }
        let exec_id = settling.exec.id.clone();
        match self.session.noticed(stored) {
            Ok(bytes) => {
                self.not_stored = None;
                if let Some(sandbox) = settling.sandbox {
                    self.forget_in_guest(sandbox, &exec_id, bytes);
                }
            }
            Err(error) if settling.retries_left > 0 && self.is_retried(&error) => {
                // The disk may be full. Until there is room, this server and the guest keep the execution.
                settling.retries_left -= 1;
                self.not_stored = Some(error);
                self.store_again(settling);
                return;
            }
            // Another node owns the session, and says how the execution ended.
            Err(StoreError::Fenced { .. }) => self.not_stored = None,
            Err(error) => {
                self.not_stored = None;
                tracing::error!(
                    session.id = self.session.id,
                    exec.id = exec_id,
                    "failed to store the end of an execution: {}",
                    in_full(&error)
                );
                self.warn(format!("the end of {exec_id} could not be stored"));
            }
        }
        self.live.send_modify(|live| drop(live.remove(&exec_id)));
    }

    /// Waits until the end of every execution is stored, or storing it was given up.
    pub(super) async fn all_settled(&mut self) {
        while let Some(settled) = self.settling.join_next().await {
            self.settled(settled);
        }
    }

    fn store_again(&mut self, settling: Settling) {
        let (state, session) = (Arc::clone(&self.state), Arc::clone(&self.session));
        self.settling.spawn(async move {
            tokio::time::sleep(RETRY_PAUSE).await;
            settling.store(&state, &session.id, None).await
        });
    }

    /// Whether storing is tried again after this error. If the session is being stopped, that is done only for a
    /// database that cannot be reached: clients may have got the result already.
    fn is_retried(&self, error: &StoreError) -> bool {
        // The guest keeps the execution for the next server.
        let leaves = *self.state.leaving.borrow();
        let stops = self.session.stop.borrow().is_some();
        let waits = !stops || matches!(error, StoreError::Unavailable(_));
        !self.session.is_fenced() && !leaves && waits
    }
}

impl Settling {
    async fn store(self, state: &EngineState, session: &str, warning: Option<String>) -> Settled {
        let Some(outcome) = self.exec.transcript.outcome() else {
            return Settled { settling: self, stored: Ok(0), warning };
        };
        let finished = FinishedExec {
            session: session.to_owned(),
            id: self.exec.id.clone(),
            number: self.exec.number,
            ended_ms: self.ended_ms,
            status: outcome.status,
            transcript: self.exec.transcript.encode(),
            expires_ms: self.expires_ms,
        };
        let bytes = finished.transcript.len();
        let stored = state.store.finish_exec(finished).await.map(|()| bytes);
        Settled { settling: self, stored, warning }
    }
}

fn count(state: &EngineState, session: &Session, settling: &Settling) {
    let exec = &settling.exec;
    let Some(outcome) = exec.transcript.outcome() else { return };
    state.usage.add(&session.tenant, |delta| {
        delta.count(outcome.status);
        delta.bytes_in += exec.code.len() as u64;
        delta.bytes_out += exec.transcript.output_bytes();
    });
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of an execution")]
    let seconds = (settling.ended_ms - exec.accepted_ms).max(0) as f64 / 1000.0;
    state.metrics.finished(exec.request.language(), &outcome, seconds);
    tracing::debug!(
        session.id = session.id,
        exec.id = exec.id,
        language = exec.request.language(),
        duration_us = outcome.duration_us,
        "execution {} ended: {:?}",
        exec.id,
        outcome.status
    );
}

/// Appends an execution to the session's log. Returns a warning if that failed.
async fn log(session: &Session, exec: &Exec, may_be_logged: bool) -> Option<String> {
    let record = session.record.clone()?;
    let result = ExecResult::of(exec.id.clone(), &exec.transcript);
    let entry = LogEntry::new(exec.number, exec.accepted_ms, &exec.request, &exec.code, result);
    let exec_id = exec.id.clone();
    let appended =
        tokio::task::spawn_blocking(move || record.append_log(&exec_id, &entry, may_be_logged))
            .await;
    let error = appended.unwrap_or_else(|panic| Err(std::io::Error::other(panic))).err()?;
    tracing::error!(session.id = session.id, "failed to write to the session's log: {error}");
    Some(format!("{} is missing in session.log: {error}", exec.id))
}
