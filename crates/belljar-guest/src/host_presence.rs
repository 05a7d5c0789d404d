//! How long the guest goes on while nobody is connected.
//!
//! ```text
//!  start ──nobody comes──▶ exit        connected ──the last one leaves──▶ alone ──time is up──▶ exit
//!    └────somebody does────▶ connected     ▲                                │
//!                                          └──────somebody comes back───────┘
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use belljar_sys::process;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// A host that has not connected by then died before it could, and nobody else knows of us. From
/// then on it is the end of the last connection that counts.
const FIRST_CONTACT: Duration = Duration::from_secs(10);

/// A guest that was frozen for long finds its time up when it wakes, with its host at the door.
const AT_THE_DOOR: Duration = Duration::from_secs(1);

/// Who is connected, and what to do when nobody is.
#[derive(Debug)]
pub(crate) struct HostPresence {
    connections: watch::Sender<usize>,
    /// Changed by a connected host only, so a wait that has begun need not hear of it.
    alone_for_s: Cell<u64>,
}

impl HostPresence {
    pub(crate) fn new(alone_for_s: u64) -> HostPresence {
        HostPresence { connections: watch::Sender::new(0), alone_for_s: Cell::new(alone_for_s) }
    }

    pub(crate) fn connections(&self) -> usize {
        *self.connections.borrow()
    }

    pub(crate) fn may_be_alone_for(&self, seconds: u64) {
        self.alone_for_s.set(seconds);
    }

    /// Counts a connection for as long as the result lives.
    pub(crate) fn join(self: &Rc<Self>) -> Present {
        self.connections.send_modify(|count| *count += 1);
        Present(Rc::clone(self))
    }

    /// Resolves when we have been alone for too long.
    async fn deserted(&self) {
        let mut connections = self.connections.subscribe();
        let mut patience = FIRST_CONTACT.max(self.patience());
        loop {
            // Neither wait can fail: we hold the sender ourselves.
            let come = connections.wait_for(|count| *count > 0);
            if timeout(patience, come).await.is_err() {
                if patience.is_zero() {
                    return;
                }
                sleep(AT_THE_DOOR).await;
                if self.connections() == 0 {
                    return;
                }
            }
            let _ = connections.wait_for(|count| *count == 0).await;
            patience = self.patience();
        }
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.alone_for_s.get())
    }
}

/// Ends the guest, and with it the sandbox, when it has been alone for too long.
pub(crate) async fn exit_when_deserted(company: Rc<HostPresence>) {
    company.deserted().await;
    process::exit_now(0);
}

/// Somebody is connected.
#[derive(Debug)]
pub(crate) struct Present(Rc<HostPresence>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.connections.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    /// Runs on a clock that jumps from one timer to the next.
    fn in_no_time(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(test);
    }

    async fn seconds_until_deserted(company: &HostPresence) -> u64 {
        let start = Instant::now();
        company.deserted().await;
        start.elapsed().as_secs()
    }

    #[test]
    fn a_host_that_never_comes_is_not_waited_for() {
        in_no_time(async {
            assert_eq!(seconds_until_deserted(&HostPresence::new(0)).await, 11);
            assert_eq!(seconds_until_deserted(&HostPresence::new(3600)).await, 3601);
        });
    }

    #[test]
    fn the_end_of_the_last_connection_is_the_end() {
        in_no_time(async {
            let company = Rc::new(HostPresence::new(0));
            let (first, second) = (company.join(), company.join());
            let leave = async {
                sleep(Duration::from_secs(20)).await;
                drop(first);
                sleep(Duration::from_secs(20)).await;
                drop(second);
            };
            assert_eq!(tokio::join!(seconds_until_deserted(&company), leave).0, 40);
        });
    }

    #[test]
    fn who_comes_back_in_time_finds_us() {
        in_no_time(async {
            let company = Rc::new(HostPresence::new(0));
            let visits = async {
                let host = company.join();
                sleep(Duration::from_secs(5)).await;
                company.may_be_alone_for(60);
                drop(host);
                sleep(Duration::from_secs(50)).await;
                let _successor = company.join();
                sleep(Duration::from_secs(500)).await;
            };
            // 5 s in company, 50 s alone, 500 s in company, 60 s alone and a moment at the door.
            assert_eq!(tokio::join!(seconds_until_deserted(&company), visits).0, 616);
        });
    }
}
