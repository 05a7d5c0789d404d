//! The steps between the end of an execution in the guest and the end that clients see: its artifacts are stored and,
//! if the session has checkpoints, a checkpoint is taken. Several executions may end at the same moment, so they are
//! handled one at a time.
//!
//! ```text
//!   performer ── artifacts? ──▶ waiting ──▶ task ──▶ answer ── checkpoint? ──▶ waiting ──▶ task ──▶ answer
//! ```

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};

use super::{Driver, SandboxLease};
use crate::artifacts::{ArtifactMemory, ArtifactOrigin, ArtifactPlace, Artifacts};
use crate::exec::{Exec, Stage};
use crate::session::Session;
use crate::session::checkpoint::{CheckpointDone, CheckpointOutcome, CheckpointTask};
use crate::snapshots::SnapshotManifest;
use crate::state::EngineState;

/// How many requests may wait for the driver; more than a session has executions.
const REQUESTS: usize = 256;

/// An execution that has ended in the guest.
#[derive(Debug, Clone)]
pub(in crate::session) struct EndedExec {
    pub(in crate::session) exec: Arc<Exec>,
    pub(in crate::session) sandbox: SandboxLease,
    /// An earlier server started it.
    pub(in crate::session) joined: bool,
}

#[derive(Debug)]
pub(in crate::session) struct AftermathRequest {
    ended: EndedExec,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Artifacts { fingerprint: Option<u64>, answer: oneshot::Sender<Artifacts> },
    Checkpoint { answer: oneshot::Sender<CheckpointOutcome> },
}

/// Sends requests of performers to the driver. If the session ends meanwhile, nothing is stored.
#[derive(Debug, Clone)]
pub(in crate::session) struct AftermathSender(mpsc::Sender<AftermathRequest>);

impl AftermathSender {
    /// Stores the artifacts of an execution. `fingerprint` is that of the artifacts directory at its end.
    pub(in crate::session) async fn artifacts(
        &self,
        ended: EndedExec,
        fingerprint: Option<u64>,
    ) -> Artifacts {
        if fingerprint.is_none() && ended.sandbox.tells_artifacts() {
            return Artifacts::default();
        }
        self.ask(ended, |answer| Step::Artifacts { fingerprint, answer }).await.unwrap_or_default()
    }

    /// Takes a checkpoint, if the session has checkpoints, and records that the session is now at this execution.
    pub(in crate::session) async fn checkpoint(&self, ended: EndedExec) -> CheckpointOutcome {
        self.ask(ended, |answer| Step::Checkpoint { answer }).await.flatten()
    }

    async fn ask<T>(
        &self,
        ended: EndedExec,
        step: impl FnOnce(oneshot::Sender<T>) -> Step,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.0.send(AftermathRequest { ended, step: step(answer) }).await.ok()?;
        answered.await.ok()
    }
}

/// The driver's side.
pub(super) struct AftermathQueue {
    sender: AftermathSender,
    pub(super) requests: mpsc::Receiver<AftermathRequest>,
    waiting: VecDeque<AftermathRequest>,
    /// At most one task.
    pub(super) running: JoinSet<AftermathDone>,
    /// What is known of the artifacts directory. While a task uses it, the task owns it.
    memory: ArtifactMemory,
    /// Executions that have ended in the guest and wait for these steps. They no longer change the session.
    ended: HashSet<String>,
}

/// The result of a task for the driver, with the answer for the performer.
pub(super) enum AftermathDone {
    Artifacts {
        memory: ArtifactMemory,
        artifacts: Artifacts,
        answer: oneshot::Sender<Artifacts>,
    },
    Checkpoint {
        exec: Arc<Exec>,
        base: Option<u64>,
        outcome: CheckpointOutcome,
        /// The checkpoint, if a new one was taken.
        taken: Option<Box<SnapshotManifest>>,
        answer: oneshot::Sender<CheckpointOutcome>,
    },
}

impl AftermathQueue {
    pub(super) fn new() -> AftermathQueue {
        let (sender, requests) = mpsc::channel(REQUESTS);
        AftermathQueue {
            sender: AftermathSender(sender),
            requests,
            waiting: VecDeque::new(),
            running: JoinSet::new(),
            memory: ArtifactMemory::default(),
            ended: HashSet::new(),
        }
    }

    pub(super) fn sender(&self) -> AftermathSender {
        self.sender.clone()
    }

    /// The performer of an execution has returned.
    pub(super) fn forget(&mut self, exec_id: &str) {
        self.ended.remove(exec_id);
    }

    /// Refuses requests from now on, so that no performer waits for an answer, and waits for the running task.
    pub(super) async fn close(&mut self) {
        self.requests.close();
        while self.requests.try_recv().is_ok() {}
        self.waiting.clear();
        while self.running.join_next().await.is_some() {}
    }
}

impl Driver {
    pub(super) fn aftermath_requested(&mut self, request: AftermathRequest) {
        self.aftermath.ended.insert(request.ended.exec.id.clone());
        self.aftermath.waiting.push_back(request);
        self.next_aftermath();
    }

    pub(super) fn aftermath_done(&mut self, done: Result<AftermathDone, JoinError>) {
        match done {
            Ok(AftermathDone::Artifacts { memory, artifacts, answer }) => {
                self.aftermath.memory = memory;
                let _ = answer.send(artifacts);
            }
            Ok(AftermathDone::Checkpoint { exec, base, outcome, taken, answer }) => {
                self.base = base;
                if let Some(manifest) = taken {
                    self.upload(&manifest);
                }
                self.answer_checkpoint(&exec, outcome, answer);
            }
            // This is a bug. The performer continues without an answer.
            Err(panic) => {
                tracing::error!(session.id = self.session.id, "failed to store artifacts: {panic}");
            }
        }
        self.next_aftermath();
    }

    fn next_aftermath(&mut self) {
        while self.aftermath.running.is_empty()
            && let Some(AftermathRequest { ended, step }) = self.aftermath.waiting.pop_front()
        {
            match step {
                Step::Artifacts { fingerprint, answer } => {
                    self.store_artifacts(ended, fingerprint, answer);
                }
                Step::Checkpoint { answer } => self.take_checkpoint(ended, answer),
            }
        }
    }

    fn store_artifacts(
        &mut self,
        ended: EndedExec,
        fingerprint: Option<u64>,
        answer: oneshot::Sender<Artifacts>,
    ) {
        let store = &self.state.artifact_store;
        if !ended.joined && !store.is_news(&self.aftermath.memory, fingerprint) {
            let _ = answer.send(Artifacts::default());
            return;
        }
        let mut memory = std::mem::take(&mut self.aftermath.memory);
        let (state, session) = (Arc::clone(&self.state), Arc::clone(&self.session));
        self.aftermath.running.spawn(async move {
            let artifacts = ingest(&state, &session, &ended, fingerprint, &mut memory).await;
            AftermathDone::Artifacts { memory, artifacts, answer }
        });
    }

    fn take_checkpoint(&mut self, ended: EndedExec, answer: oneshot::Sender<CheckpointOutcome>) {
        let EndedExec { exec, sandbox, joined } = ended;
        let bounds = match self.session.spec.checkpoints {
            // There is no checkpoint after background work, because it can end while other executions run.
            Some(bounds) if !exec.request.background => bounds,
            _ => return self.answer_checkpoint(&exec, None, answer),
        };
        let task = CheckpointTask {
            state: Arc::clone(&self.state),
            session: Arc::clone(&self.session),
            sandbox,
            exec: Arc::clone(&exec),
            bounds,
            joined,
            is_newest: self.next_number - 1 <= exec.number,
            running: self.running_exec(),
            base: self.base,
        };
        self.aftermath.running.spawn(async move {
            let CheckpointDone { base, outcome, taken } = task.run().await;
            let taken = taken.map(Box::new);
            AftermathDone::Checkpoint { exec, base, outcome: Some(outcome), taken, answer }
        });
    }

    fn answer_checkpoint(
        &mut self,
        exec: &Exec,
        outcome: CheckpointOutcome,
        answer: oneshot::Sender<CheckpointOutcome>,
    ) {
        // Published before the answer is sent, so that a client that sees the end of the execution also sees the session
        // at it, and ready.
        if !exec.request.background {
            self.is_at(&exec.id);
        }
        self.release_kernel(exec);
        let _ = answer.send(outcome);
    }

    /// An execution that may still change the session.
    fn running_exec(&self) -> Option<String> {
        let live = self.live.borrow();
        let runs = |exec: &&Arc<Exec>| {
            exec.stage() == Stage::Running
                && !self.aftermath.ended.contains(&exec.id)
                && !self.ended_before.contains(&exec.id)
        };
        live.values().find(runs).map(|exec| exec.id.clone())
    }
}

async fn ingest(
    state: &EngineState,
    session: &Session,
    ended: &EndedExec,
    fingerprint: Option<u64>,
    memory: &mut ArtifactMemory,
) -> Artifacts {
    let origin = ArtifactOrigin {
        tenant: &session.tenant,
        session: &session.id,
        exec: &ended.exec.id,
        place: match session.record.is_some() || state.artifact_store.shows_all() {
            true => ArtifactPlace::Session,
            false => ArtifactPlace::Nowhere,
        },
    };
    let (store, sandbox) = (&state.artifact_store, &ended.sandbox);
    if ended.joined {
        return store.ingest_again(sandbox, origin, fingerprint, memory).await;
    }
    store.ingest(sandbox, origin, fingerprint, memory).await
}
