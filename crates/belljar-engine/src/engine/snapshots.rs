//! Sessions as files: put to sleep, made into several, taken back to what they were.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::create::new_row;
use super::{Engine, EngineState, Principal, SessionInfo};
use crate::admission::Reservation;
use crate::audit::Entry;
use crate::error::{EngineError, in_full};
use crate::session::rules::Phase;
use crate::session::{Origin, Session};
use crate::snapshots::ForkSource;
use crate::spec::{SessionSpec, Storage};
use crate::store::Durability;

/// Sessions that one fork may make.
pub const MAX_FORKS: usize = 100;

/// A point that a session can go back to.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    pub exec_id: String,
    pub made_ms: i64,
    /// What it added to what was there before it.
    pub bytes: u64,
}

impl Engine {
    /// Makes files of a session; it wakes when somebody needs it.
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

    /// Makes sessions that are what this one is, or was after an execution: all that were asked
    /// for, or none.
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
        // Before anything is written: there may be no room for them.
        let reserve = |_| self.shared.reserve(who, &session.spec);
        let reservations = (0..count).map(reserve).collect::<Result<Vec<_>, _>>()?;
        if session.spec.storage == Storage::Bind && from.is_none() {
            // What it is while it sleeps has no files: they are on disk, and only a guest reads them.
            session.awake(who.quota()).await?;
        }
        let branch = Arc::new(session.branch(force, from).await?);
        let mut making = JoinSet::new();
        for reservation in reservations {
            let (shared, branch) = (Arc::clone(&self.shared), Arc::clone(&branch));
            let (tenant, spec) = (who.tenant.clone(), session.spec.clone());
            making.spawn(async move { shared.begin(tenant, spec, reservation, &branch).await });
        }
        let mut children = Vec::new();
        let mut failure = None;
        while let Some(made) = making.join_next().await {
            match made {
                Ok(Ok(child)) => children.push(child),
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(EngineError::Stopping),
            }
        }
        if let Some(error) = failure {
            for child in children {
                child.stop("another of the same fork could not be made");
                child.ended().await;
            }
            return Err(error);
        }
        self.shared.usage.add(&who.tenant, |delta| delta.sessions += count as u64);
        for _ in 0..count {
            self.shared.metrics.created("forked");
        }
        let lost = branch.manifest.left_out();
        let info = |child: &Arc<Session>| SessionInfo { lost: lost.clone(), ..self.info(child) };
        Ok(children.iter().map(info).collect())
    }

    /// What a session can go back to, the oldest first.
    pub async fn checkpoints(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<Vec<Checkpoint>, EngineError> {
        let row = self.row(who, id).await?;
        let snapshots = self.shared.snapshot_store.of_session(&row.id).list();
        let checkpoints = snapshots.into_iter().filter_map(|snapshot| {
            let (made_ms, bytes) = (snapshot.made_ms, snapshot.bytes);
            Some(Checkpoint { exec_id: snapshot.exec?, made_ms, bytes })
        });
        Ok(checkpoints.collect())
    }

    /// Takes a session back to what it was after an execution.
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
        let entry = Entry { action, outcome: &outcome, session: Some(id), ..Entry::default() };
        self.audit.note(who, &entry);
    }
}

impl EngineState {
    /// A session that begins as the snapshot of another, and is awake.
    async fn begin(
        self: &Arc<Self>,
        tenant: String,
        spec: SessionSpec,
        reservation: Reservation,
        branch: &ForkSource,
    ) -> Result<Arc<Session>, EngineError> {
        let row = new_row(tenant, spec, Phase::Hibernated);
        let snapshots = self.snapshot_store.of_session(&row.id);
        branch.snapshots.share(&branch.manifest, &snapshots).map_err(EngineError::KeepSnapshot)?;
        self.snapshot_store.count(&row.id, &row.tenant);
        let id = row.id.clone();
        let entered = match self.store.put_session(row.clone(), Durability::Process).await {
            Ok(()) => self.enter(row, reservation, Origin::ForkSource),
            Err(error) => Err(error.into()),
        };
        let session = match entered {
            Ok(session) => session,
            Err(error) => {
                self.snapshot_store.remove(&id);
                return Err(error);
            }
        };
        // It has its room already.
        match session.awake(Default::default()).await {
            Ok(_) => Ok(session),
            Err(error) => {
                session.stop("it could not be made");
                session.ended().await;
                Err(error)
            }
        }
    }
}
