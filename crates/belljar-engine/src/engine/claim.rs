//! Finds sessions in a cluster: this node serves those that it owns, claims those that no node owns, and says which node
//! owns the others.

use std::sync::Arc;
use std::time::Duration;

use super::registry::Registry;
use super::{Engine, Principal};
use crate::clock;
use crate::error::EngineError;
use crate::rules;
use crate::session::{HeldSession, Session};
use crate::state::EngineState;
use crate::store::{Claim, Expired, SessionRow, Storage};

/// How often a session is looked up again that this node has just released or lost, and how long one attempt waits.
const ATTEMPTS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(1);

/// How many expired sessions are read at once.
const PAGE: u32 = 1000;

const BUSY: &str = "this node is about to give the session to another one";

impl Engine {
    /// A live session, which stays on this node while the result exists. For an ended session, the error contains the
    /// reason of its end.
    pub(super) async fn live_session(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<HeldSession, EngineError> {
        self.state.availability.must_work()?;
        for _ in 0..ATTEMPTS {
            if let Ok(session) = self.session(who, id) {
                match self.hold(&session).await {
                    Some(held) => return Ok(held),
                    None => continue,
                }
            }
            let row = self.stored_row(who, id).await?;
            if row.ended_ms.is_some() || self.state.cluster().is_none() {
                return Err(EngineError::not_now(id, rules::Refusal::Ended, row.ended_because));
            }
            self.claim(&row).await?;
        }
        Err(EngineError::Unavailable(BUSY))
    }

    /// Keeps the session on this node. If the session is being released, waits until that is done and returns `None`.
    pub(super) async fn hold(&self, session: &Arc<Session>) -> Option<HeldSession> {
        let held = HeldSession::of(session);
        if held.is_none() {
            let _ = tokio::time::timeout(PATIENCE, self.registry.removed(&session.id)).await;
        }
        held
    }

    /// A session that this node owns or can own, live or ended. In a cluster, one that no node owns is claimed.
    pub(super) async fn held_if_alive(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<Option<HeldSession>, EngineError> {
        match self.live_session(who, id).await {
            Ok(held) => Ok(Some(held)),
            Err(EngineError::NotNow { refusal: rules::Refusal::Ended, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The row of a session. Fails if another node has the session.
    pub(super) async fn row(&self, who: &Principal, id: &str) -> Result<SessionRow, EngineError> {
        let row = self.stored_row(who, id).await?;
        let Some((cluster, node)) = self.state.cluster() else { return Ok(row) };
        if row.ended_ms.is_none() && self.registry.find(id).is_none() {
            let owner = cluster.route(id).await?.and_then(|route| route.owner);
            if let Some((other, address)) = owner.filter(|(owner, _)| *owner != node.id) {
                return Err(EngineError::Elsewhere { node: other, address });
            }
        }
        Ok(row)
    }

    async fn stored_row(&self, who: &Principal, id: &str) -> Result<SessionRow, EngineError> {
        let row = self.state.store.session(id).await?;
        row.filter(|row| row.tenant == who.tenant)
            .ok_or_else(|| EngineError::NoSession(id.to_owned()))
    }

    /// Fails if the files of an ended session are on another node.
    pub(super) async fn must_have_files(&self, row: &SessionRow) -> Result<(), EngineError> {
        let Some(node) = self.state.pinned_elsewhere(row).await? else { return Ok(()) };
        let Some((cluster, _)) = self.state.cluster() else { return Ok(()) };
        let other = cluster.nodes().await?.into_iter().find(|other| other.id == node);
        let address = other.map(|other| other.address).unwrap_or_default();
        Err(EngineError::Elsewhere { node, address })
    }

    /// Takes up a session that no node owns. Concurrent requests claim it once.
    async fn claim(&self, row: &SessionRow) -> Result<(), EngineError> {
        self.state.availability.must_be_open()?;
        // No key contains a NUL, so this is a lock for claims of this session.
        let name = format!("\0claim\0{}", row.id);
        let lock = self.registry.lock_key(&(row.tenant.clone(), name));
        let guard = lock.lock_owned().await;
        if self.registry.find(&row.id).is_some() {
            return Ok(());
        }
        let (registry, id) = (Arc::clone(&self.registry), row.id.clone());
        // A separate task: the caller may disconnect, and a claimed session must have a driver.
        let claiming = tokio::spawn(async move {
            let _guard = guard;
            registry.claim(&id).await
        });
        claiming.await.map_err(|_| EngineError::Stopping)?
    }

    /// Takes up sessions that the store says this node owns and that have no driver, such as after
    /// [`Engine::fence`] and a new registration.
    pub async fn recover_owned(&self) -> Result<(), EngineError> {
        for row in self.state.store.unended_sessions().await? {
            if self.registry.find(&row.id).is_none() {
                self.claim(&row).await?;
            }
        }
        Ok(())
    }
}

impl EngineState {
    /// The other node that has the files of this session, if there is one.
    pub(super) async fn pinned_elsewhere(
        &self,
        row: &SessionRow,
    ) -> Result<Option<String>, EngineError> {
        let Some((cluster, node)) = self.cluster() else { return Ok(None) };
        if row.spec.storage != Storage::Bind {
            return Ok(None);
        }
        let pinned = cluster.route(&row.id).await?.and_then(|route| route.pinned);
        Ok(pinned.filter(|pinned| *pinned != node.id))
    }
}

impl Registry {
    /// Ends hibernated sessions that have expired and that no node owns.
    pub(super) async fn end_expired(self: &Arc<Self>) -> Result<(), EngineError> {
        let Some((cluster, _)) = self.state.cluster() else { return Ok(()) };
        let (now, mut after) = (clock::now_ms(), Expired::default());
        loop {
            let page = cluster.expired_sessions(now, &after, PAGE).await?;
            for expired in &page {
                self.end_if_expired(&expired.id).await?;
            }
            match page.into_iter().last() {
                Some(last) => after = last,
                None => return Ok(()),
            }
        }
    }

    async fn end_if_expired(self: &Arc<Self>, id: &str) -> Result<(), EngineError> {
        self.state.availability.must_be_open()?;
        if self.find(id).is_some() {
            return Ok(());
        }
        match self.claim(id).await {
            // Another node has it, and ends it.
            Err(EngineError::Elsewhere { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                if let Some(session) = self.find(id) {
                    session.stop("it expired");
                }
                Ok(())
            }
        }
    }

    async fn claim(self: &Arc<Self>, id: &str) -> Result<(), EngineError> {
        let Some((cluster, _)) = self.state.cluster() else { return Ok(()) };
        match cluster.claim_session(id).await? {
            Claim::Claimed(row) if row.phase.is_asleep() && row.handle.is_none() => {
                tracing::info!(session.id = id, "session {id} is claimed");
                self.adopt_claimed(*row);
                Ok(())
            }
            // This node owned it already, and had to drop it when it lost its lease.
            Claim::Claimed(row) => {
                self.adopt_own(*row);
                Ok(())
            }
            Claim::OwnedBy { node, address } => Err(EngineError::Elsewhere { node, address }),
            // It has ended meanwhile; the caller reads why.
            Claim::NotClaimable => Ok(()),
        }
    }
}
