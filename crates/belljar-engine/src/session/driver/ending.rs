//! The end of a session: stopped, lost, or left to the next server.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Status;
use belljar_proto::guest::KernelVariables;
use belljar_runtime::Sandbox;

use super::Driver;
use super::metadata_files::{snapshot, write_state};
use super::sleep::Aside;
use crate::clock;
use crate::engine::durability;
use crate::error::in_full;
use crate::exec::Exec;
use crate::exec::outcome::{end_of_lost, ran_out_of_memory};
use crate::lock;
use crate::session::perform::Performed;
use crate::session::rules::{self, Happening, Phase};

/// The last snapshot, on the way to the end, is not waited for any longer.
const LAST_SNAPSHOT: Duration = Duration::from_secs(2);

/// Why a session is to end.
pub(super) enum Why {
    Stop(String),
    SandboxLost,
    /// The server ends; the sandbox stays for its successor.
    Left,
    /// It does not: something is to be done with it while it rests.
    Aside(Aside),
}

impl Driver {
    pub(super) async fn end(&mut self, sandbox: Arc<Sandbox>, why: Why) {
        let (phase, because) = match why {
            Why::Left | Why::Aside(_) => return self.leave(sandbox).await,
            Why::Stop(because) => {
                self.happen(Happening::StopAsked);
                self.republish();
                let id = &self.session.id;
                let durability = durability(&self.session.spec);
                let written =
                    self.shared.store.set_phase(id, Phase::Stopping, None, durability).await;
                if let Err(error) = written {
                    // It ends all the same: whoever asked wants its resources back.
                    tracing::error!(session.id = id, "failed to write down: {}", in_full(&error));
                }
                if self.session.record.is_some() && !self.works() {
                    let taking = snapshot(Arc::clone(&self.session), Arc::clone(&sandbox));
                    let _ = tokio::time::timeout(LAST_SNAPSHOT, taking).await;
                }
                (Phase::Stopped, because)
            }
            Why::SandboxLost => {
                let oom = ran_out_of_memory(&sandbox).await;
                let because = if oom { "it ran out of memory" } else { "its sandbox ended" };
                // Its variables are gone with it.
                write_state(Arc::clone(&self.session), KernelVariables::default()).await;
                (Phase::Failed, because.to_owned())
            }
        };
        self.end_execs(&sandbox, phase, &because).await;
        *lock(&self.session.sandbox) = None;
        self.shared.usage.close(&self.session.id, &self.session.tenant, &sandbox);
        match Arc::try_unwrap(sandbox) {
            Ok(sandbox) => sandbox.destroy().await,
            // Somebody is still asking it something; its end is theirs.
            Err(shared) => {
                shared.kill();
                drop(shared);
            }
        }
        let happening = match phase {
            Phase::Stopped => Happening::SandboxGone,
            _ => Happening::SandboxLost,
        };
        self.over(happening, &because).await;
        self.write_metadata();
    }

    /// Ends the executions of a session that will not come back.
    pub(super) async fn finish_unfinished(&mut self, because: &str) {
        let Ok(rows) = self.shared.store.unfinished_execs(&self.session.id).await else { return };
        for row in rows {
            self.inherited.push(row.id.clone());
            let exec = Exec::new(row.id, row.number, row.request, row.code.into(), row.accepted_ms);
            exec.end(Status::Crashed, &format!("the sandbox was lost: {because}"));
            self.settle(None, Arc::new(exec));
        }
        while self.settling.join_next().await.is_some() {}
    }

    /// Writes down that the session has ended, gives its room back, and publishes it: in this order,
    /// so that whoever hears of it can have a new one with the same key, in the same place.
    pub(super) async fn over(&mut self, happening: Happening, because: &str) {
        let now = clock::now_ms();
        let id = &self.session.id;
        let phase = rules::next(self.session.phase(), happening).unwrap_or_else(|| {
            let phase = self.session.phase().name();
            tracing::error!(session.id = id, "{happening:?} happened to a session that is {phase}");
            Phase::Failed
        });
        self.session.write_end(&self.shared, phase, now, because).await;
        tracing::info!(session.id = id, "session {id} {}: {because}", phase.name());
        (self.reservation, self.sleeping) = (None, None);
        self.shared.snapshot_store.remove(id);
        self.session.publish_end(phase, now, because);
    }

    /// Gives everything that runs or waits an end that says why.
    async fn end_execs(&mut self, sandbox: &Arc<Sandbox>, phase: Phase, because: &str) {
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
        while let Some(performed) = self.performing.join_next().await {
            if let Ok((exec, performed)) = performed
                && !matches!(performed, Performed::Never)
            {
                self.settle(None, exec);
            }
        }
        // Those whose performer had returned already when the sandbox was found to be lost.
        let settling_later = self.session.live_execs();
        while self.settling.join_next().await.is_some() {}
        for exec in settling_later {
            if self.session.live_exec(&exec.id).is_some() {
                self.settle(None, exec);
            }
        }
        while self.settling.join_next().await.is_some() {}
    }

    /// The server ends and the session does not: what runs goes on in the sandbox.
    async fn leave(&mut self, sandbox: Arc<Sandbox>) {
        while self.settling.join_next().await.is_some() {}
        self.performing.abort_all();
        while self.performing.join_next().await.is_some() {}
        *lock(&self.session.sandbox) = None;
        self.shared.usage.close(&self.session.id, &self.session.tenant, &sandbox);
        match Arc::try_unwrap(sandbox) {
            Ok(sandbox) => sandbox.leave(),
            Err(shared) => std::mem::forget(shared),
        }
    }
}
