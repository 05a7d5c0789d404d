//! The registry of live sessions: by id, and by the key of their caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::views::view_of;
use crate::admission::Reservation;
use crate::error::EngineError;
use crate::lock;
use crate::rules::Phase;
use crate::session::{self, DriverStart, Origin, Session, SessionOwner, View};
use crate::state::EngineState;
use crate::store::SessionRow;

/// How long sessions may take to end when the server ends.
const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

/// A tenant and a key that it chose for a session.
pub(super) type TenantKey = (String, String);

#[derive(Debug)]
pub(super) struct Registry {
    pub(super) state: Arc<EngineState>,
    /// Locked for single lookups and changes, never across an await.
    entries: Mutex<Entries>,
    /// How many sessions are registered.
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Entries {
    sessions: HashMap<String, Arc<Session>>,
    by_key: HashMap<TenantKey, String>,
    /// Held while a session with this key is looked up or created.
    key_locks: HashMap<TenantKey, Arc<tokio::sync::Mutex<()>>>,
}

/// A session that was just registered, and a receiver of the error if it cannot be created.
pub(super) struct Entered {
    pub(super) session: Arc<Session>,
    pub(super) failure: oneshot::Receiver<EngineError>,
}

impl Registry {
    pub(super) fn new(state: Arc<EngineState>) -> Registry {
        Registry { state, entries: Mutex::default(), count: watch::Sender::new(0) }
    }

    /// Registers a session and starts its driver.
    pub(super) fn enter(
        self: &Arc<Self>,
        row: SessionRow,
        reservation: Reservation,
        origin: Origin,
    ) -> Result<Entered, EngineError> {
        self.state.availability.must_not_be_closed()?;
        let (session, mut owner) = self.register(row);
        let failure = owner.on_failure();
        let begin = DriverStart { reservation: Some(reservation), origin, permit: None };
        self.drive(Arc::clone(&session), owner, async { begin });
        Ok(Entered { session, failure })
    }

    /// Registers a session. The caller must start its driver.
    pub(super) fn register(&self, row: SessionRow) -> (Arc<Session>, SessionOwner) {
        let view = View { phase: Phase::Creating, ..view_of(&row) };
        let traffic = self.state.traffic(&row.tenant, Some(&row.id), None);
        let root = &self.state.config.sessions_root;
        let (session, owner) = Session::new(row, view, traffic, root);
        let mut entries = lock(&self.entries);
        entries.sessions.insert(session.id.clone(), Arc::clone(&session));
        if let Some(key) = &session.key {
            let full_key = (session.tenant.clone(), key.clone());
            entries.by_key.insert(full_key, session.id.clone());
        }
        self.count.send_replace(entries.sessions.len());
        (session, owner)
    }

    /// Starts the driver of a session. The session leaves the registry when the driver returns, even if it panics: a
    /// session without a driver could not be stopped.
    pub(super) fn drive(
        self: &Arc<Self>,
        session: Arc<Session>,
        owner: SessionOwner,
        begin: impl Future<Output = DriverStart> + Send + 'static,
    ) {
        let registry = Arc::clone(self);
        let after_panic = owner.after_panic();
        let state = Arc::clone(&self.state);
        let driver = tokio::spawn(async move {
            let begin = begin.await;
            session::drive(state, owner, begin).await;
        });
        tokio::spawn(async move {
            if driver.await.is_err() {
                let id = &session.id;
                tracing::error!(
                    session.id = id,
                    "the driver of session {id} panicked; it is ended"
                );
                after_panic.end(&registry.state).await;
            }
            registry.remove(&session);
        });
    }

    /// The lock to hold while a session with this key is looked up or created.
    pub(super) fn lock_key(&self, key: &TenantKey) -> Arc<tokio::sync::Mutex<()>> {
        let mut entries = lock(&self.entries);
        entries.key_locks.retain(|known, guard| known == key || Arc::strong_count(guard) > 1);
        Arc::clone(entries.key_locks.entry(key.clone()).or_default())
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Session>> {
        lock(&self.entries).sessions.get(id).cloned()
    }

    pub(super) fn find_by_key(&self, key: &TenantKey) -> Option<Arc<Session>> {
        let entries = lock(&self.entries);
        entries.sessions.get(entries.by_key.get(key)?).cloned()
    }

    pub(super) fn live(&self) -> Vec<Arc<Session>> {
        lock(&self.entries).sessions.values().cloned().collect()
    }

    pub(super) fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits until this session is no longer registered.
    pub(super) async fn removed(&self, id: &str) {
        let mut count = self.count.subscribe();
        while self.find(id).is_some() {
            // The sender is in `self`, so waiting cannot fail.
            let _ = count.changed().await;
        }
    }

    /// Waits until no session is registered, with a time limit.
    pub(super) async fn empty(&self) {
        let mut count = self.count.subscribe();
        if tokio::time::timeout(CLOSE_PATIENCE, count.wait_for(|count| *count == 0)).await.is_err()
        {
            tracing::error!("some sessions did not end in time; the next start cleans up");
        }
    }

    /// Removes a session that has ended, or is left to the next server. From now on it is described by its row in the
    /// database.
    fn remove(&self, session: &Arc<Session>) {
        let mut entries = lock(&self.entries);
        let is_it = |known: &Arc<Session>| Arc::ptr_eq(known, session);
        if !entries.sessions.get(&session.id).is_some_and(is_it) {
            // The session was started again: id and key belong to the new handle.
            return;
        }
        entries.sessions.remove(&session.id);
        if let Some(key) = &session.key {
            let full_key = (session.tenant.clone(), key.clone());
            if entries.by_key.get(&full_key) == Some(&session.id) {
                entries.by_key.remove(&full_key);
            }
        }
        self.count.send_replace(entries.sessions.len());
    }
}
