//! Lends the sandbox of a session to tasks and requests, and gets it back.
//!
//! ```text
//!   open ──▶ leases are lent and returned ──▶ close: no new leases ──▶ all returned: the driver owns it
//!     ▲                                         │ not in time                  │ hibernate, restore, end
//!     ├───────────────── reopen ◀───────────────┘                              │
//!     └────────────────────────────────────────────────────────────────────────┘
//! ```

use std::ops::Deref;
use std::sync::Arc;

use belljar_runtime::Sandbox;
use tokio::sync::watch;

/// The right to use a session's sandbox until this is dropped.
pub(crate) type SandboxLease = Lease<Sandbox>;

/// Only the driver of a session puts a value in and takes it out. The number of leases changes wherever one is taken or
/// dropped, so it is in a `watch`, on which the driver waits for zero.
#[derive(Debug)]
pub(crate) struct LeaseGate<T> {
    lending: watch::Sender<Lending<T>>,
}

#[derive(Debug)]
struct Lending<T> {
    value: Option<Arc<T>>,
    closed: bool,
    leases: usize,
}

#[derive(Debug)]
pub(crate) struct Lease<T> {
    // Fields are dropped in this order: when the count is zero, no lease refers to the value any more.
    value: Arc<T>,
    counted: LeaseCount<T>,
}

/// Counts one lease until it is dropped.
#[derive(Debug)]
struct LeaseCount<T>(Arc<LeaseGate<T>>);

impl<T> LeaseGate<T> {
    pub(crate) fn new() -> Arc<LeaseGate<T>> {
        let lending = Lending { value: None, closed: false, leases: 0 };
        Arc::new(LeaseGate { lending: watch::Sender::new(lending) })
    }

    /// Lends this value from now on. The caller gets the first lease.
    pub(crate) fn open(self: &Arc<Self>, value: T) -> Lease<T> {
        let value = Arc::new(value);
        self.lending.send_modify(|lending| {
            lending.value = Some(Arc::clone(&value));
            lending.closed = false;
            lending.leases += 1;
        });
        Lease { value, counted: LeaseCount(Arc::clone(self)) }
    }

    /// A lease; `None` if the gate is closed, or there is no value.
    pub(crate) fn lease(self: &Arc<Self>) -> Option<Lease<T>> {
        let mut lent = None;
        self.lending.send_if_modified(|lending| {
            lent = lending.value.clone().filter(|_| !lending.closed);
            lending.leases += usize::from(lent.is_some());
            // Waiters are not notified: they wait only for returned leases.
            false
        });
        lent.map(|value| Lease { value, counted: LeaseCount(Arc::clone(self)) })
    }

    /// Stops lending: there are no new leases.
    pub(crate) fn close(&self) {
        self.lending.send_modify(|lending| lending.closed = true);
    }

    /// Lends the same value again. The caller gets the first lease.
    pub(crate) fn reopen(self: &Arc<Self>) -> Option<Lease<T>> {
        self.lending.send_modify(|lending| lending.closed = false);
        self.lease()
    }

    /// Waits until all leases are returned, and takes the value out. The gate must be closed, and the caller must not
    /// have a lease. `None` if there is no value.
    pub(crate) async fn returned(&self) -> Option<T> {
        let mut lending = self.lending.subscribe();
        // The sender is in `self`, so waiting cannot fail.
        let _ = lending.wait_for(|lending| lending.leases == 0).await;
        drop(lending);
        // Nothing else refers to it: leases drop their reference before they are counted as returned.
        Arc::into_inner(self.take()?)
    }

    /// Takes the value out even if leases refer to it. It is dropped with the last of them.
    pub(crate) fn take(&self) -> Option<Arc<T>> {
        let mut taken = None;
        self.lending.send_modify(|lending| {
            taken = lending.value.take();
            lending.closed = true;
        });
        taken
    }
}

impl<T> Clone for Lease<T> {
    fn clone(&self) -> Self {
        let gate = &self.counted.0;
        // A lease can be cloned even if the gate is closed, because the driver waits for that lease anyway.
        gate.lending.send_if_modified(|lending| {
            lending.leases += 1;
            false
        });
        Lease { value: Arc::clone(&self.value), counted: LeaseCount(Arc::clone(gate)) }
    }
}

impl<T> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for LeaseCount<T> {
    fn drop(&mut self) {
        self.0.lending.send_modify(|lending| lending.leases -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn the_value_comes_back_when_every_lease_is_returned() {
        let gate = LeaseGate::new();
        assert!(gate.lease().is_none(), "there is nothing to lend");
        let own = gate.open("sandbox".to_owned());
        let lent = gate.lease().unwrap();
        assert_eq!((own.as_str(), lent.as_str()), ("sandbox", "sandbox"));
        drop(own);
        gate.close();
        assert!(gate.lease().is_none(), "closed");
        assert!(timeout(SHORT, gate.returned()).await.is_err(), "one is out");
        let part = lent.clone();
        drop(lent);
        assert!(timeout(SHORT, gate.returned()).await.is_err(), "its copy is out");
        let returning = tokio::spawn(async move {
            tokio::time::sleep(SHORT).await;
            drop(part);
        });
        assert_eq!(gate.returned().await.as_deref(), Some("sandbox"));
        returning.await.unwrap();
        assert_eq!(gate.returned().await, None, "it was taken out");
    }

    #[tokio::test]
    async fn a_gate_that_could_not_be_closed_in_time_lends_again() {
        let gate = LeaseGate::new();
        drop(gate.open(1));
        let held = gate.lease().unwrap();
        gate.close();
        assert!(timeout(SHORT, gate.returned()).await.is_err());
        assert_eq!(gate.reopen().as_deref(), Some(&1));
        drop(held);
        gate.close();
        assert_eq!(gate.returned().await, Some(1));
        assert_eq!(*gate.open(2), 2);
    }

    #[tokio::test]
    async fn what_was_taken_out_lives_until_its_last_lease() {
        let gate = LeaseGate::new();
        let lease = gate.open(1);
        let weak = Arc::downgrade(&gate.take().unwrap());
        assert!(gate.lease().is_none() && gate.reopen().is_none());
        assert!(weak.upgrade().is_some());
        drop(lease);
        assert!(weak.upgrade().is_none());
    }
}
