//! Hibernate, fork, checkpoints and restore.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::create::new_row;
use super::registry::Registry;
use super::{Engine, Principal, SessionInfo};
use crate::admission::Reservation;
use crate::audit::AuditEntry;
use crate::error::{EngineError, in_full};
use crate::rules::Phase;
use crate::session::{Origin, Session};
use crate::snapshots::{ForkSource, SnapshotManifest, checkpoints_of};
use crate::spec::{SessionSpec, Storage};
use crate::store::Durability;

/// The most sessions that one fork may create.
pub const MAX_FORKS: usize = 100;

/// A state to which a session can be restored.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    pub exec_id: String,
    pub made_ms: i64,
    /// Bytes that it added to those of earlier snapshots.
    pub bytes: u64,
}

impl Engine {
    /// Writes a session to files and ends its sandbox; the next call that needs it wakes it.
    pub async fn hibernate(
        &self,
        who: &Principal,
        id: &str,
        force: bool,
    ) -> Result<SessionInfo, EngineError> {
        let slept = match self.live_session(who, id).await {
            Ok(session) => {
                let slept = session.hibernate(force, who.quota()).await;
                slept.map(|lost| SessionInfo { lost, ..self.info(&session) })
            }
            Err(error) => Err(error),
        };
        self.note_life(who, id, "hibernate", "hibernated", &slept);
        slept
    }

    /// Creates sessions with the state that this one has now, or had after an execution. Either all are created, or
    /// none.
    pub async fn fork(
        &self,
        who: &Principal,
        id: &str,
        count: usize,
        force: bool,
        from: Option<String>,
    ) -> Result<Vec<SessionInfo>, EngineError> {
        let forked = self.fork_unnoted(who, id, count, force, from).await;
        self.note_life(who, id, "fork", &format!("forked {count} times"), &forked);
        forked
    }

    async fn fork_unnoted(
        &self,
        who: &Principal,
        id: &str,
        count: usize,
        force: bool,
        from: Option<String>,
    ) -> Result<Vec<SessionInfo>, EngineError> {
        if !(1..=MAX_FORKS).contains(&count) {
            return Err(EngineError::Invalid(format!("count: expected 1 to {MAX_FORKS}")));
        }
        let session = self.live_session(who, id).await?;
        // Capacity is reserved before anything is written, because there may be none.
        let mut reservations = Vec::with_capacity(count);
        for _ in 0..count {
            reservations.push(self.state.reserve(who, &session.spec).await?);
        }
        if session.spec.storage == Storage::Bind && from.is_none() {
            // The snapshot of a hibernated session on disk has no files: they are on disk, and only a guest may read
            // them.
            session.awake(who.quota()).await?;
        }
        let source = Arc::new(session.fork(force, from).await?);
        let mut creating = JoinSet::new();
        for reservation in reservations {
            let (registry, source) = (Arc::clone(&self.registry), Arc::clone(&source));
            let (tenant, spec) = (who.tenant.clone(), session.spec.clone());
            creating.spawn(async move { registry.fork(tenant, spec, reservation, &source).await });
        }
        let children = all_or_none(creating).await?;
        self.state.usage.add(&who.tenant, |delta| delta.sessions += count as u64);
        for _ in 0..count {
            self.state.metrics.created("forked");
        }
        let lost = source.manifest.left_out();
        let info = |child: &Arc<Session>| SessionInfo { lost: lost.clone(), ..self.info(child) };
        Ok(children.iter().map(info).collect())
    }

    /// The checkpoints of a session, the oldest first.
    pub async fn checkpoints(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<Vec<Checkpoint>, EngineError> {
        let row = self.row(who, id).await?;
        let mut snapshots = self.state.snapshot_store.of_session(&row.id).current().await;
        if let Some((cluster, _)) = self.state.cluster()
            && let Some(pointer) = cluster.snapshot_of(&row.id).await?
        {
            // Those that other nodes took.
            let others = checkpoints_of(&pointer).into_iter();
            let others: Vec<SnapshotManifest> =
                others.filter(|other| !snapshots.iter().any(|own| own.id == other.id)).collect();
            snapshots.extend(others);
            snapshots.sort_by_key(|snapshot| snapshot.id);
        }
        let checkpoints = snapshots.into_iter().filter_map(|snapshot| {
            let (made_ms, bytes) = (snapshot.made_ms, snapshot.bytes);
            Some(Checkpoint { exec_id: snapshot.exec?, made_ms, bytes })
        });
        Ok(checkpoints.collect())
    }

    /// Restores a session to its state after an execution.
    pub async fn restore(
        &self,
        who: &Principal,
        id: &str,
        exec_id: &str,
    ) -> Result<SessionInfo, EngineError> {
        let restored = match self.live_session(who, id).await {
            Ok(session) => session.restore(exec_id.to_owned()).await.map(|()| self.info(&session)),
            Err(error) => Err(error),
        };
        self.note_life(who, id, "restore", &format!("restored to {exec_id}"), &restored);
        restored
    }

    fn note_life<T>(
        &self,
        who: &Principal,
        id: &str,
        action: &'static str,
        done: &str,
        outcome: &Result<T, EngineError>,
    ) {
        let outcome = outcome.as_ref().map_or_else(|error| in_full(error), |_| done.to_owned());
        let entry =
            AuditEntry { action, outcome: &outcome, session: Some(id), ..AuditEntry::default() };
        self.audit.note(who, &entry);
    }
}

/// Waits for all sessions of a fork. If one could not be created, the others are ended.
async fn all_or_none(
    mut creating: JoinSet<Result<Arc<Session>, EngineError>>,
) -> Result<Vec<Arc<Session>>, EngineError> {
    let mut children = Vec::new();
    let mut failure = None;
    while let Some(created) = creating.join_next().await {
        match created {
            Ok(Ok(child)) => children.push(child),
            Ok(Err(error)) => failure = Some(error),
            Err(_) => failure = Some(EngineError::Stopping),
        }
    }
    let Some(error) = failure else { return Ok(children) };
    for child in children {
        child.stop("another of the same fork could not be made");
        let _ = child.ended().await;
    }
    Err(error)
}

impl Registry {
    /// Creates a session from the snapshot of another, and wakes it.
    async fn fork(
        self: &Arc<Self>,
        tenant: String,
        spec: SessionSpec,
        reservation: Reservation,
        source: &ForkSource,
    ) -> Result<Arc<Session>, EngineError> {
        let row = new_row(tenant, spec, Phase::Hibernated);
        let (id, store) = (row.id.clone(), &self.state.snapshot_store);
        source.share(&store.of_session(&id)).await.map_err(EngineError::KeepSnapshot)?;
        store.count(&id, &row.tenant).await;
        let entered = match self.state.store.put_session(row.clone(), Durability::Process).await {
            Ok(()) => self.enter(row, reservation, Origin::Fork),
            Err(error) => Err(error.into()),
        };
        let session = match entered {
            Ok(entered) => entered.session,
            Err(error) => {
                store.remove(&id).await;
                return Err(error);
            }
        };
        // Its capacity is reserved already.
        match session.awake(Default::default()).await {
            Ok(_) => Ok(session),
            Err(error) => {
                session.stop("it could not be made");
                let _ = session.ended().await;
                Err(error)
            }
        }
    }
}
