//! What a node of a cluster does with all its sessions: freezes them, drops them, or moves them to other nodes.

use std::sync::Arc;
use std::time::Duration;

use belljar_runtime::SandboxSpec;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use super::Engine;
use crate::admission::Quota;
use crate::error::{EngineError, in_full};
use crate::pool::warm_sandbox;
use crate::session::Session;
use crate::spec::{SessionSpec, Storage};

/// A session that was hibernated has until the end of the drain to be uploaded and released, and at least this long.
const RELEASE_PATIENCE: Duration = Duration::from_secs(15);

/// The pause between two attempts to hibernate a session that is in use.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// How long interrupted executions may take to end.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(10);

/// The result of a drain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drained {
    /// Sessions that other nodes can wake now.
    pub released: Vec<String>,
    /// Those of them that lost something: what, in sentences for people.
    pub lost: Vec<(String, Vec<String>)>,
    /// Sessions that stay on this node, and why.
    pub kept: Vec<(String, String)>,
}

enum Outcome {
    Released(Vec<String>),
    Kept(String),
    /// It ended, or another node has it.
    Gone,
}

impl Engine {
    /// Builds a sandbox with a kernel and removes it. An error means that this machine cannot run sessions.
    pub async fn try_sandbox(&self) -> Result<(), EngineError> {
        let runtime = &self.state.runtime;
        runtime.warmed_up().await;
        let spec = SessionSpec { storage: Storage::Tmpfs, ..self.state.config.defaults.clone() };
        let spec = self.state.sandbox_spec(&spec, &crate::new_id("try"))?;
        // The sandbox ends with this server.
        let spec = SandboxSpec { alone_for_s: 0, ..spec };
        warm_sandbox(runtime, &spec).await?.destroy().await;
        Ok(())
    }

    /// Freezes or thaws all sandboxes. While they are frozen, work is refused and time limits do not count.
    pub async fn freeze(&self, frozen: bool) -> Result<(), EngineError> {
        if frozen {
            self.state.availability.set_frozen(true);
        }
        let switched = Arc::clone(&self.state.runtime).freeze_all(frozen).await;
        if !frozen && switched.is_ok() {
            self.state.availability.set_frozen(false);
        }
        switched.map_err(EngineError::FreezeAll)
    }

    /// The lease of this node is lost: all its sandboxes are killed and its sessions dropped, without a write. Returns
    /// when none is left. Then the node may register again, and call [`Engine::recover_owned`].
    pub async fn fence(&self) {
        self.state.availability.set_fencing(true);
        for session in self.registry.live() {
            session.fence();
        }
        // A killed process in a frozen cgroup of version 1 ends when it is thawed.
        if self.state.availability.is_frozen()
            && let Err(error) = self.freeze(false).await
        {
            tracing::error!("failed to thaw the sandboxes: {}", in_full(&error));
        }
        self.registry.empty().await;
        self.state.availability.set_fencing(false);
    }

    /// Moves all sessions to other nodes: hibernates, uploads and releases them. Busy ones are waited for until the
    /// deadline, then interrupted. From now on, new sessions are refused.
    pub async fn drain(&self, deadline: Instant) -> Drained {
        self.state.availability.set_draining(true);
        let mut sessions = self.registry.live();
        // Those that can go at once go first.
        sessions.sort_by_key(|session| (session.view().running, session.memory_used()));
        let draining = sessions.into_iter().map(|session| async move {
            let outcome = self.drain_session(&session, deadline).await;
            (session.id.clone(), outcome)
        });
        // Busy sessions wait, so they must not take the place of others. Permits bound what is written at a time.
        let mut outcomes: FuturesUnordered<_> = draining.collect();
        let mut drained = Drained::default();
        while let Some((id, outcome)) = outcomes.next().await {
            match outcome {
                Outcome::Released(lost) => {
                    if !lost.is_empty() {
                        drained.lost.push((id.clone(), lost));
                    }
                    drained.released.push(id);
                }
                Outcome::Kept(why) => drained.kept.push((id, why)),
                Outcome::Gone => {}
            }
        }
        drained
    }

    /// Accepts new sessions again after a drain.
    pub fn end_drain(&self) {
        self.state.availability.set_draining(false);
    }

    async fn drain_session(&self, session: &Arc<Session>, deadline: Instant) -> Outcome {
        if let Some(why) = session.pinned_by() {
            return Outcome::Kept(why.to_owned());
        }
        if self.state.snapshot_store.remote().is_none() {
            return Outcome::Kept("this node has no S3 for snapshots".to_owned());
        }
        let lost = match self.hibernate_for_drain(session, deadline).await {
            Ok(lost) => lost,
            // It was released just now, or another node has it.
            Err(EngineError::Unavailable(_)) if !session.is_fenced() => {
                return Outcome::Released(Vec::new());
            }
            Err(EngineError::Unavailable(_) | EngineError::NotNow { .. }) => return Outcome::Gone,
            Err(error) => return Outcome::Kept(in_full(&error)),
        };
        let until = deadline.max(Instant::now() + RELEASE_PATIENCE);
        match timeout_at(until, self.registry.removed(&session.id)).await {
            Ok(()) => Outcome::Released(lost),
            Err(_) => Outcome::Kept("its snapshot could not be uploaded in time".to_owned()),
        }
    }

    /// Returns what could not be kept.
    async fn hibernate_for_drain(
        &self,
        session: &Arc<Session>,
        deadline: Instant,
    ) -> Result<Vec<String>, EngineError> {
        // A drain is not limited by what a tenant may have asleep.
        let quota = Quota { sleeping: Some(u64::MAX), ..Quota::default() };
        while session.view().running > 0 || session.is_attached() {
            if Instant::now() >= deadline {
                session.interrupt(None).await?;
                let until = Instant::now() + INTERRUPT_PATIENCE;
                let _ = timeout_at(until, session.until_idle()).await;
                break;
            }
            let pause = (Instant::now() + BUSY_PAUSE).min(deadline);
            let _ = timeout_at(pause, session.until_idle()).await;
            if session.is_attached() {
                tokio::time::sleep_until(pause).await;
            }
        }
        let _permit = self.state.draining.acquire().await;
        loop {
            match session.hibernate(false, quota).await {
                // An execution came in between, or a client just looked at a file.
                Err(EngineError::NotAtRest { .. }) if session.view().running > 0 => {}
                Err(EngineError::NotAtRest { .. } | EngineError::NotKept { .. }) => {
                    return session.hibernate(true, quota).await;
                }
                other => return other,
            }
            if Instant::now() >= deadline {
                session.interrupt(None).await?;
            }
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }
}
