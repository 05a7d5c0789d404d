//! The time limit of an execution. Time in which the whole sandbox was frozen does not count: a node freezes its sandboxes
//! while it cannot renew its lease.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How often the guest looks at the clock.
const TICK: Duration = Duration::from_secs(1);

/// If a tick is later than this, the guest was frozen. Code that keeps all processors busy delays the guest too, so this is
/// longer than usual delays.
const FROZEN: Duration = Duration::from_secs(5);

/// Resolves when the execution has used up its time. Frozen time does not count, but only up to the limit itself: code
/// that delays the guest on purpose gets at most twice its time.
pub(crate) async fn elapsed(limit: Duration) {
    let (mut left, mut allowed) = (limit, limit);
    while !left.is_zero() {
        let tick = left.min(TICK);
        let begun = Instant::now();
        sleep(tick).await;
        let took = begun.elapsed();
        let late = took.saturating_sub(tick);
        let frozen = if late > FROZEN { late.min(allowed) } else { Duration::ZERO };
        allowed -= frozen;
        left = left.saturating_sub(took - frozen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until a limit is used up if the guest is frozen after three seconds. The clock jumps from one timer to
    /// the next.
    fn seconds(limit: u64, frozen: u64) -> u64 {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let begun = Instant::now();
            let freeze = async {
                sleep(Duration::from_millis(3001)).await;
                tokio::time::advance(Duration::from_secs(frozen)).await;
            };
            tokio::join!(elapsed(Duration::from_secs(limit)), freeze);
            begun.elapsed().as_secs()
        })
    }

    #[test]
    fn frozen_time_does_not_count() {
        assert_eq!(seconds(10, 0), 10);
        // Not more than a busy machine would delay the guest.
        assert_eq!(seconds(10, 4), 10);
        assert_eq!(seconds(60, 30), 89, "a second of it was the tick");
    }

    #[test]
    fn an_execution_gets_at_most_twice_its_time() {
        assert_eq!(seconds(10, 1000), 1003);
    }
}
