//! How long the guest goes on while no host is connected.
//!
//! ```text
//!  start ──no connection──▶ exit       connected ──the last disconnects──▶ alone ──timeout──▶ exit
//!    └────connection────▶ connected        ▲                                │
//!                                          └────────── connection ──────────┘
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use belljar_sys::process;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The host needs one connection, and a second while a new server replaces an old one. In a container
/// code inside can reach the socket, and must not exhaust the guest.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// A host that has not connected by then has died, and no other host knows of this guest. After the first
/// connection, only the end of the last one counts.
const FIRST_CONTACT: Duration = Duration::from_secs(10);

/// If the sandbox was paused for long, the timeout is over as soon as it continues. The host may be about
/// to connect then, so the guest waits a little longer.
const RECONNECT_GRACE: Duration = Duration::from_secs(1);

/// Counts the connections of hosts.
#[derive(Debug)]
pub(crate) struct HostPresence {
    connections: watch::Sender<usize>,
    /// Only a connected host changes it, so a wait without a connection need not notice changes.
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

    /// Counts a connection until the result is dropped.
    pub(crate) fn join(self: &Rc<Self>) -> Present {
        self.connections.send_modify(|count| *count += 1);
        Present(Rc::clone(self))
    }

    /// Resolves when there was no connection for too long.
    async fn deserted(&self) {
        let mut connections = self.connections.subscribe();
        let mut patience = FIRST_CONTACT.max(self.patience());
        loop {
            // Neither wait can fail: `self` owns the sender.
            let come = connections.wait_for(|count| *count > 0);
            if timeout(patience, come).await.is_err() {
                if patience.is_zero() {
                    return;
                }
                sleep(RECONNECT_GRACE).await;
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

/// Ends the guest, and with it the sandbox, when no host was connected for too long.
pub(crate) async fn exit_when_deserted(presence: Rc<HostPresence>) {
    presence.deserted().await;
    process::exit_now(0);
}

/// One connection, counted until it is dropped.
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

    async fn seconds_until_deserted(presence: &HostPresence) -> u64 {
        let start = Instant::now();
        presence.deserted().await;
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
            let presence = Rc::new(HostPresence::new(0));
            let (first, second) = (presence.join(), presence.join());
            let leave = async {
                sleep(Duration::from_secs(20)).await;
                drop(first);
                sleep(Duration::from_secs(20)).await;
                drop(second);
            };
            assert_eq!(tokio::join!(seconds_until_deserted(&presence), leave).0, 40);
        });
    }

    #[test]
    fn a_host_that_connects_again_in_time_finds_the_guest() {
        in_no_time(async {
            let presence = Rc::new(HostPresence::new(0));
            let visits = async {
                let host = presence.join();
                sleep(Duration::from_secs(5)).await;
                presence.may_be_alone_for(60);
                drop(host);
                sleep(Duration::from_secs(50)).await;
                let _successor = presence.join();
                sleep(Duration::from_secs(500)).await;
            };
            // 5 s connected, 50 s alone, 500 s connected, 60 s alone and 1 s of grace.
            assert_eq!(tokio::join!(seconds_until_deserted(&presence), visits).0, 616);
        });
    }
}
