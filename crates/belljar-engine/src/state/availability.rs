//! Whether this server accepts work: not while it ends, is drained, or waits for its lease.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::error::EngineError;

const FROZEN: &str = "this node could not renew its lease in time and accepts no work";
const FENCED: &str = "this node lost its lease and ends its sessions";
const DRAINING: &str = "this node is being drained";

#[derive(Debug)]
pub(crate) struct Availability {
    /// Set when the server ends: from then on new sessions and runs are refused.
    closed: AtomicBool,
    draining: AtomicBool,
    /// Set while all sessions of this node are ended because it lost its lease.
    fencing: AtomicBool,
    /// Whether all sandboxes are frozen.
    frozen: watch::Sender<bool>,
}

impl Availability {
    pub(crate) fn new() -> Availability {
        Availability {
            closed: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            fencing: AtomicBool::new(false),
            frozen: watch::Sender::new(false),
        }
    }

    /// Refuses new sessions and runs from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Refuses new sessions and claims from now on, or accepts them again.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::SeqCst);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    pub(crate) fn set_fencing(&self, fencing: bool) {
        self.fencing.store(fencing, Ordering::SeqCst);
    }

    pub(crate) fn set_frozen(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    pub(crate) fn frozen(&self) -> watch::Receiver<bool> {
        self.frozen.subscribe()
    }

    pub(crate) fn is_frozen(&self) -> bool {
        *self.frozen.borrow()
    }

    pub(crate) fn must_not_be_closed(&self) -> Result<(), EngineError> {
        if self.closed.load(Ordering::SeqCst) { Err(EngineError::Stopping) } else { Ok(()) }
    }

    /// Refuses work in existing sessions.
    pub(crate) fn must_work(&self) -> Result<(), EngineError> {
        match () {
            () if self.fencing.load(Ordering::SeqCst) => Err(EngineError::Unavailable(FENCED)),
            () if self.is_frozen() => Err(EngineError::Unavailable(FROZEN)),
            () => Ok(()),
        }
    }

    /// Refuses new sessions, runs and claims.
    pub(crate) fn must_be_open(&self) -> Result<(), EngineError> {
        self.must_not_be_closed()?;
        self.must_work()?;
        self.must_not_drain()
    }

    /// Refuses to wake sessions that are about to move.
    pub(crate) fn must_not_drain(&self) -> Result<(), EngineError> {
        if self.is_draining() { Err(EngineError::Unavailable(DRAINING)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draining_node_serves_the_sessions_that_it_has_and_a_frozen_one_none() {
        let node = Availability::new();
        assert!(node.must_be_open().is_ok());
        node.set_draining(true);
        assert!(matches!(node.must_be_open(), Err(EngineError::Unavailable(DRAINING))));
        assert!(node.must_work().is_ok());
        node.set_draining(false);
        node.set_frozen(true);
        assert!(matches!(node.must_work(), Err(EngineError::Unavailable(FROZEN))));
        node.set_fencing(true);
        assert!(matches!(node.must_work(), Err(EngineError::Unavailable(FENCED))));
        node.set_fencing(false);
        node.set_frozen(false);
        assert!(node.must_be_open().is_ok());
        node.close();
        assert!(matches!(node.must_be_open(), Err(EngineError::Stopping)));
    }
}
