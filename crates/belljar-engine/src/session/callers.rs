//! Counts the requests that use a session, so that a hibernated session is not given to other nodes under them.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use super::Session;
use crate::lock;

#[derive(Debug, Default)]
pub(super) struct Callers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    count: usize,
    /// The driver releases the session, or has released it.
    closed: bool,
}

impl Callers {
    fn enter(&self) -> bool {
        let mut state = lock(&self.0);
        if !state.closed {
            state.count += 1;
        }
        !state.closed
    }

    fn leave(&self) {
        lock(&self.0).count -= 1;
    }

    /// Refuses callers from now on. False if there are any.
    pub(super) fn close(&self) -> bool {
        let mut state = lock(&self.0);
        state.closed = state.count == 0;
        state.closed
    }

    pub(super) fn reopen(&self) {
        lock(&self.0).closed = false;
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.0).closed
    }
}

/// A session that this node does not release while this exists.
#[derive(Debug)]
pub(crate) struct HeldSession(Arc<Session>);

impl HeldSession {
    /// `None` if the session is being released.
    pub(crate) fn of(session: &Arc<Session>) -> Option<HeldSession> {
        session.callers.enter().then(|| HeldSession(Arc::clone(session)))
    }
}

impl Deref for HeldSession {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.0
    }
}

impl Drop for HeldSession {
    fn drop(&mut self) {
        self.0.callers.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_released_only_without_callers_and_then_refuses_them() {
        let callers = Callers::default();
        assert!(callers.enter() && callers.enter());
        assert!(!callers.close() && !callers.is_closed());
        callers.leave();
        callers.leave();
        assert!(callers.close() && !callers.enter());
        callers.reopen();
        assert!(callers.enter());
    }
}
