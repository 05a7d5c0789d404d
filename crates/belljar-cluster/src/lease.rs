//! The lease of a node: while it holds, only this node runs its sessions.
//!
//! ```text
//!            granted                    4/5 of the lease without a grant
//!   none ───────────────▶ held ────────────────────────────────▶ frozen ── granted ──▶ held
//!     ▲                    │                                        │
//!     └────── fence ◀──────┴──────────── refused ◀──────────────────┘
//! ```
//!
//! The lease counts from before the request was sent that granted it, so it ends here before it ends in the database. A
//! gateway takes the sessions over only after it has ended there, and some seconds later. So at no time two nodes run
//! code of one session: sandboxes are frozen before, and killed when the lease is found to be lost.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use belljar_engine::in_full;
use belljar_engine::store::{ClusterRecords, NewNode, NodeLoad, Store, StoreError};
use belljar_sys::boot_clock;

use crate::watchdog::Watchdog;

/// After the end of a lease, gateways wait this long before they take the sessions over.
pub const TAKE_OVER_MARGIN: Duration = Duration::from_secs(5);

/// The longest pause between two looks at the clock: timers stand still while the machine is suspended, the clock does
/// not.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// The longest pause between two failed requests.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// The answer to a request for the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The node is registered, or its lease was renewed.
    Granted,
    /// The lease was taken over, or another process registered with this id.
    Refused,
    /// The database could not be reached, or did not answer in time.
    None,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    Register,
    Renew,
    Freeze,
    Thaw,
    /// Kill all sandboxes.
    Fence,
    Wait(Duration),
}

/// The rules of a lease, without I/O. All times are readings of the boot clock.
#[derive(Debug)]
pub struct Lease {
    length: Duration,
    /// When the request was sent that granted the lease last; `None` before a registration.
    granted: Option<Duration>,
    next_request: Duration,
    frozen: bool,
    fence_due: bool,
}

impl Lease {
    /// Sandboxes of an earlier process may be frozen, so they count as frozen until the first grant.
    #[must_use]
    pub fn new(length: Duration, now: Duration) -> Lease {
        Lease { length, granted: None, next_request: now, frozen: true, fence_due: false }
    }

    /// When sandboxes must not run any more without a new grant.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.granted.map(|granted| granted + self.length * 4 / 5)
    }

    #[must_use]
    pub fn duty(&self, now: Duration) -> Duty {
        if self.fence_due {
            return Duty::Fence;
        }
        let in_time = self.deadline().is_some_and(|deadline| now < deadline);
        match (in_time, self.frozen) {
            (true, true) => return Duty::Thaw,
            (false, false) => return Duty::Freeze,
            _ => {}
        }
        if now >= self.next_request {
            return if self.granted.is_some() { Duty::Renew } else { Duty::Register };
        }
        let freeze = self.deadline().filter(|_| in_time);
        let next = freeze.map_or(self.next_request, |freeze| freeze.min(self.next_request));
        Duty::Wait(next.saturating_sub(now))
    }

    /// `sent` was read before the request was sent.
    pub fn answered(&mut self, answer: Answer, sent: Duration, now: Duration) {
        match answer {
            Answer::Granted => {
                self.granted = Some(sent);
                self.next_request = sent + self.length / 6;
            }
            Answer::Refused => {
                self.granted = None;
                self.next_request = now;
                self.fence_due = true;
            }
            Answer::None => self.next_request = now + (self.length / 12).min(LONGEST_RETRY),
        }
    }

    /// A [`Duty::Freeze`] or [`Duty::Thaw`] was done.
    pub fn set_frozen(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// All sandboxes were killed. There are none left that could run.
    pub fn fenced(&mut self) {
        self.fence_due = false;
        self.frozen = true;
    }

    /// How long a request may take.
    fn patience(&self) -> Duration {
        self.length / 6
    }
}

/// The sandboxes of this node, as far as the lease concerns them.
#[async_trait]
pub trait Sandboxes: Send + Sync {
    /// What they have reserved.
    fn load(&self) -> NodeLoad;

    /// Stops the execution of all sandboxes, or continues it. Returns whether that succeeded.
    async fn freeze(&self, frozen: bool) -> bool;

    /// Kills all sandboxes and forgets their sessions, without any write to the database. They belong to others now.
    async fn fence(&self);

    /// After a fence the node has a lease again, and may own sessions that no other node took over.
    async fn registered(&self);
}

/// The state of the lease, for metrics and health checks.
#[derive(Debug, Default)]
pub struct LeaseStatus {
    /// The deadline in milliseconds of the boot clock; 0 before the first grant.
    deadline_ms: AtomicU64,
    frozen: AtomicBool,
    fences: AtomicU64,
}

impl LeaseStatus {
    /// The time until sandboxes are frozen, negative after that; `None` without a lease.
    #[must_use]
    pub fn margin_s(&self) -> Option<f64> {
        let deadline_ms = self.deadline_ms.load(Ordering::Relaxed);
        let deadline = Duration::from_millis(deadline_ms).as_secs_f64();
        (deadline_ms > 0).then(|| deadline - boot_clock::now().as_secs_f64())
    }

    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }

    /// How often the lease was lost.
    #[must_use]
    pub fn fences(&self) -> u64 {
        self.fences.load(Ordering::Relaxed)
    }
}

/// Keeps the lease of this node.
#[derive(Debug)]
pub struct Keeper {
    store: Arc<dyn Store>,
    node: NewNode,
    lease: Lease,
    watchdog: Option<Watchdog>,
    status: Arc<LeaseStatus>,
    /// Sandboxes were killed because they could not be frozen. The node may still own their sessions.
    killed: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error("this store has no records of nodes")]
    NotShared,
    #[error("failed to register the node `{id}`")]
    Store {
        id: String,
        #[source]
        cause: StoreError,
    },
}

impl Keeper {
    /// Registers the node. Without a watchdog, sandboxes are frozen in time only while this process runs.
    pub async fn register(
        store: Arc<dyn Store>,
        node: NewNode,
        length: Duration,
        watchdog: Option<Watchdog>,
    ) -> Result<Keeper, RegisterError> {
        let sent = boot_clock::now();
        let records = store.cluster().ok_or(RegisterError::NotShared)?;
        let registered = records.register_node(node.clone(), length).await;
        registered.map_err(|cause| RegisterError::Store { id: node.id.clone(), cause })?;
        let lease = Lease::new(length, sent);
        let status = Arc::default();
        let mut keeper = Keeper { store, node, lease, watchdog, status, killed: false };
        keeper.note(Answer::Granted, sent);
        Ok(keeper)
    }

    #[must_use]
    pub fn status(&self) -> Arc<LeaseStatus> {
        Arc::clone(&self.status)
    }

    #[must_use]
    pub fn watchdog(&self) -> Option<Watchdog> {
        self.watchdog.clone()
    }

    /// Keeps the lease until the task is aborted.
    pub async fn keep(mut self, sandboxes: Arc<dyn Sandboxes>) {
        loop {
            match self.lease.duty(boot_clock::now()) {
                Duty::Wait(time) => tokio::time::sleep(time.min(LONGEST_SLEEP)).await,
                Duty::Freeze => self.freeze(&*sandboxes, true).await,
                Duty::Thaw => self.freeze(&*sandboxes, false).await,
                Duty::Fence => {
                    tracing::error!("the lease of this node was lost; its sandboxes are killed");
                    self.status.fences.fetch_add(1, Ordering::Relaxed);
                    sandboxes.fence().await;
                    self.lease.fenced();
                }
                duty @ (Duty::Register | Duty::Renew) => self.request(duty, &*sandboxes).await,
            }
        }
    }

    async fn freeze(&mut self, sandboxes: &dyn Sandboxes, frozen: bool) {
        if frozen {
            tracing::error!("the lease could not be renewed in time; sandboxes are frozen");
        }
        let switched = sandboxes.freeze(frozen).await;
        if frozen && !switched {
            tracing::error!("sandboxes could not be frozen and are killed");
            sandboxes.fence().await;
            self.killed = true;
        }
        if !frozen && std::mem::take(&mut self.killed) {
            sandboxes.registered().await;
        }
        self.lease.set_frozen(frozen);
        self.status.frozen.store(frozen, Ordering::Relaxed);
    }

    /// Sends a request. Sandboxes are frozen in time while it waits for the answer.
    async fn request(&mut self, duty: Duty, sandboxes: &dyn Sandboxes) {
        let sent = boot_clock::now();
        let store = Arc::clone(&self.store);
        let (node, length, used) = (self.node.clone(), self.lease.length, sandboxes.load());
        let asking = async move {
            let Some(records) = store.cluster() else { return Answer::None };
            match duty {
                Duty::Register => {
                    answer_of(records.register_node(node, length).await.map(|_| true))
                }
                _ => answer_of(renew(records, used, length).await),
            }
        };
        let mut asking = pin!(tokio::time::timeout(self.lease.patience(), asking));
        let answer = loop {
            tokio::select! {
                answer = &mut asking => break answer.unwrap_or(Answer::None),
                () = tokio::time::sleep(LONGEST_SLEEP.min(self.lease.length / 30)) => {}
            }
            if self.lease.duty(boot_clock::now()) == Duty::Freeze {
                self.freeze(sandboxes, true).await;
            }
        };
        self.note(answer, sent);
        if (duty, answer) == (Duty::Register, Answer::Granted) {
            tracing::info!("this node has a lease again");
            sandboxes.registered().await;
        }
    }

    fn note(&mut self, answer: Answer, sent: Duration) {
        self.lease.answered(answer, sent, boot_clock::now());
        let Some(deadline) = self.lease.deadline() else { return };
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        self.status.deadline_ms.store(deadline_ms, Ordering::Relaxed);
        if let (Answer::Granted, Some(watchdog)) = (answer, &self.watchdog) {
            watchdog.set_deadline(deadline);
        }
    }
}

async fn renew(
    records: &dyn ClusterRecords,
    used: NodeLoad,
    length: Duration,
) -> Result<bool, StoreError> {
    records.renew_lease(used, length).await
}

fn answer_of(result: Result<bool, StoreError>) -> Answer {
    match result {
        Ok(true) => Answer::Granted,
        Ok(false) => Answer::Refused,
        Err(error) => {
            tracing::warn!("failed to renew the lease of this node: {}", in_full(&error));
            Answer::None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LENGTH: Duration = Duration::from_secs(30);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn held(at: Duration) -> Lease {
        let mut lease = Lease::new(LENGTH, at);
        lease.answered(Answer::Granted, at, at);
        lease.set_frozen(false);
        lease
    }

    #[test]
    fn it_registers_thaws_and_renews_every_sixth() {
        let mut lease = Lease::new(LENGTH, s(100));
        assert_eq!(lease.duty(s(100)), Duty::Register);
        lease.answered(Answer::Granted, s(100), s(101));
        assert_eq!(lease.duty(s(101)), Duty::Thaw, "an earlier process may have frozen them");
        lease.set_frozen(false);
        assert_eq!(lease.duty(s(101)), Duty::Wait(s(4)));
        assert_eq!(lease.duty(s(105)), Duty::Renew);
    }

    #[test]
    fn without_a_grant_sandboxes_freeze_at_four_fifths_and_thaw_at_the_next() {
        let mut lease = held(s(0));
        lease.answered(Answer::None, s(5), s(10));
        assert_eq!(lease.duty(s(10)), Duty::Wait(s(1)), "the next try");
        assert_eq!(lease.duty(s(23)), Duty::Renew);
        assert_eq!(lease.duty(s(24)), Duty::Freeze);
        lease.set_frozen(true);
        assert_eq!(lease.duty(s(24)), Duty::Renew, "it is tried on");
        lease.answered(Answer::Granted, s(25), s(26));
        assert_eq!(lease.duty(s(26)), Duty::Thaw);
    }

    #[test]
    fn a_grant_that_comes_too_late_thaws_nothing() {
        let mut lease = held(s(0));
        assert_eq!(lease.duty(s(24)), Duty::Freeze);
        lease.set_frozen(true);
        // The process was stopped between sending and receiving.
        lease.answered(Answer::Granted, s(5), s(60));
        assert_eq!(lease.duty(s(60)), Duty::Renew);
    }

    #[test]
    fn a_lost_lease_kills_first_and_registers_then() {
        let mut lease = held(s(0));
        lease.answered(Answer::Refused, s(5), s(6));
        assert_eq!(lease.duty(s(6)), Duty::Fence);
        lease.fenced();
        assert_eq!(lease.duty(s(6)), Duty::Register);
        lease.answered(Answer::None, s(6), s(7));
        assert_eq!(lease.duty(s(7)), Duty::Wait(s(1)));
        lease.answered(Answer::Granted, s(8), s(8));
        assert_eq!(lease.duty(s(8)), Duty::Thaw);
    }

    proptest! {
        /// Whatever happens: unless the keeper is behind with a duty, sandboxes run only within 4/5 of a lease that
        /// was granted, and never while a fence is due.
        #[test]
        fn sandboxes_run_only_under_a_lease(
            steps in proptest::collection::vec((0_u64..20, 0_u64..8, 0_u8..3), 1..60)
        ) {
            let mut now = s(1000);
            let mut lease = Lease::new(LENGTH, now);
            let (mut running, mut granted) = (false, None);
            for (pause, delay, answer) in steps {
                for _ in 0..8 {
                    match lease.duty(now) {
                        Duty::Freeze => { running = false; lease.set_frozen(true); }
                        Duty::Thaw => { running = true; lease.set_frozen(false); }
                        Duty::Fence => { running = false; lease.fenced(); }
                        Duty::Register | Duty::Renew => {
                            let sent = now;
                            now += s(delay);
                            let answer = [Answer::Granted, Answer::Refused, Answer::None]
                                [usize::from(answer)];
                            match answer {
                                Answer::Granted => granted = Some(sent),
                                Answer::Refused => granted = None,
                                Answer::None => {}
                            }
                            lease.answered(answer, sent, now);
                        }
                        Duty::Wait(_) => break,
                    }
                }
                if let Duty::Wait(_) = lease.duty(now) {
                    let covered = granted.is_some_and(|sent| now < sent + LENGTH * 4 / 5);
                    prop_assert!(covered || !running);
                }
                now += s(pause);
            }
        }
    }
}
