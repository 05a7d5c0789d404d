//! Ends a session that is stopped or lost, or leaves it to the next server.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Status;
use belljar_proto::guest::KernelVariables;
use belljar_runtime::Sandbox;
use tokio::time::timeout;

use super::chores::{store_variables, write_variables};
use super::{Driver, SandboxLease};
use crate::error::in_full;
use crate::exec::Exec;
use crate::exec::outcome::{end_of_lost, ran_out_of_memory};
use crate::rules::{self, Happening, Phase};
use crate::session::perform::Performed;
use crate::session::{View, ended};
use crate::state::durability;

/// How long writing the variables may take when a session is stopped.
const LAST_VARIABLES: Duration = Duration::from_secs(2);

/// How long leases may delay the end of a session. Its sandbox is killed by then, so calls that use it fail at once.
/// The remaining leases belong to clients that do not read their response.
const LEASE_PATIENCE: Duration = Duration::from_secs(1);

/// How long chores may delay handing the session to the next server.
const CHORE_PATIENCE: Duration = Duration::from_secs(2);

/// Why the driver ends a session, or leaves it.
pub(super) enum EndReason {
    Stop(String),
    SandboxLost,
    /// The server ends; the sandbox keeps running for the next server.
    ServerLeaving,
}

impl Driver {
    pub(super) async fn end(&mut self, sandbox: SandboxLease, reason: EndReason) {
        let (phase, because) = match reason {
            EndReason::ServerLeaving => return self.leave().await,
            EndReason::Stop(because) => {
                self.begin_stop(&sandbox).await;
                (Phase::Stopped, because)
            }
            EndReason::SandboxLost => {
                let oom = ran_out_of_memory(&sandbox).await;
                let because = if oom { "it ran out of memory" } else { "its sandbox ended" };
                // The variables are lost with the sandbox.
                store_variables(&self.session, KernelVariables::default()).await;
                (Phase::Failed, because.to_owned())
            }
        };
        self.end_execs(&sandbox, phase, &because).await;
        self.state.usage.close(&self.session.id, &self.session.tenant, &sandbox);
        self.destroy(sandbox).await;
        let happening = match phase {
            Phase::Stopped => Happening::SandboxGone,
            _ => Happening::SandboxLost,
        };
        let end = self.final_view(happening, &because);
        self.write_last_metadata(&end).await;
        self.over(end).await;
    }

    async fn begin_stop(&mut self, sandbox: &Sandbox) {
        self.apply(Happening::StopAsked);
        self.publish();
        let (id, durability) = (&self.session.id, durability(&self.session.spec));
        let stored = self.state.store.set_phase(id, Phase::Stopping, None, durability).await;
        if let Err(error) = self.session.noticed(stored) {
            // The session ends anyway, because the caller wants its resources back.
            tracing::error!(session.id = id, "failed to store the phase: {}", in_full(&error));
        }
        if self.session.record.is_some() && !self.works() {
            let _ = timeout(LAST_VARIABLES, write_variables(&self.session, sandbox)).await;
        }
    }

    /// Destroys the sandbox when its leases are returned. A lease that is not returned does not delay the end of the
    /// session: the sandbox is dead, and the rest of it is removed later.
    pub(super) async fn destroy(&mut self, sandbox: SandboxLease) {
        let gate = Arc::clone(&self.session.sandbox);
        gate.close();
        sandbox.kill();
        drop(sandbox);
        self.spillers.shutdown().await;
        match timeout(LEASE_PATIENCE, gate.returned()).await {
            Ok(Some(sandbox)) => sandbox.destroy().await,
            Ok(None) => {}
            Err(_) => {
                let id = self.session.id.clone();
                tracing::warn!(session.id = id, "a request still uses the sandbox of session {id}");
                tokio::spawn(async move {
                    if let Some(sandbox) = gate.returned().await {
                        sandbox.destroy().await;
                    }
                });
            }
        }
    }

    /// Ends the stored executions of a session whose sandbox is gone for good.
    pub(super) async fn end_unfinished_execs(&mut self, because: &str) {
        let Ok(rows) = self.state.store.unfinished_execs(&self.session.id).await else { return };
        for row in rows {
            self.inherited.insert(row.id.clone());
            let exec = Exec::new(row.id, row.number, row.request, row.code.into(), row.accepted_ms);
            exec.end(Status::Crashed, &format!("the sandbox was lost: {because}"));
            self.settle(None, Arc::new(exec));
        }
        self.all_settled().await;
    }

    /// What clients see of the session after its end.
    pub(super) fn final_view(&self, happening: Happening, because: &str) -> View {
        let id = &self.session.id;
        let phase = rules::next(self.phase(), happening).unwrap_or_else(|| {
            let phase = self.phase().name();
            tracing::error!(session.id = id, "{happening:?} happened to a session that is {phase}");
            Phase::Failed
        });
        ended(self.session.view(), phase, because)
    }

    /// Stores that the session has ended, releases its capacity and publishes its end. The order matters: a client that
    /// sees the end can create a session with the same key and the same capacity.
    pub(super) async fn over(&mut self, end: View) {
        let (id, phase) = (&self.session.id, end.phase.name());
        self.uploads.cancel().await;
        self.session.store_end(&self.state, &end).await;
        if self.session.is_fenced() {
            return self.end_fenced(None).await;
        }
        let because = end.ended_because.as_deref().unwrap_or_default();
        tracing::info!(session.id = id, "session {id} {phase}: {because}");
        self.sleeping = None;
        if let Some(reservation) = self.reservation.take() {
            reservation.give_back().await;
        }
        self.state.snapshot_store.remove(id).await;
        self.remove_remote();
        self.view.send_replace(end);
    }

    /// Removes the snapshots in S3 of a session that has ended.
    fn remove_remote(&self) {
        let remote = self.state.snapshot_store.remote().filter(|_| self.can_move());
        let Some(remote) = remote.cloned() else { return };
        let id = self.session.id.clone();
        tokio::spawn(async move {
            if let Err(error) = remote.remove(&id).await {
                let why = in_full(&error);
                tracing::warn!(session.id = id, "failed to remove its snapshots in S3: {why}");
            }
        });
    }

    /// Ends every running or waiting execution, with a reason.
    async fn end_execs(&mut self, sandbox: &Sandbox, phase: Phase, because: &str) {
        let (status, reason) = match phase {
            Phase::Stopped => (Status::Interrupted, format!("the session was ended: {because}")),
            _ => {
                let (status, reason) = end_of_lost(sandbox).await;
                (status, reason.to_owned())
            }
        };
        sandbox.kill();
        for exec in self.session.live_execs() {
            exec.end(status, &reason);
        }
        self.lanes.clear();
        self.aftermath.close().await;
        while let Some(performed) = self.performing.join_next().await {
            if let Ok((exec, Performed::Never)) = performed {
                self.live.send_modify(|live| drop(live.remove(&exec.id)));
            }
        }
        // First those whose end is being stored already, then all others.
        self.all_settled().await;
        for exec in self.session.live_execs() {
            self.settle(None, exec);
        }
        self.all_settled().await;
    }

    /// The server ends and the session does not: running executions continue in the sandbox.
    async fn leave(&mut self) {
        self.all_settled().await;
        let _ = timeout(CHORE_PATIENCE, async { while self.chores.join_next().await.is_some() {} })
            .await;
        self.performing.shutdown().await;
        self.aftermath.running.shutdown().await;
        let Some(sandbox) = self.session.sandbox.take() else { return };
        self.state.usage.close(&self.session.id, &self.session.tenant, &sandbox);
        // Requests may still have leases. The sandbox must not be destroyed with the last lease, because the next
        // server takes it over.
        std::mem::forget(sandbox);
    }
}
