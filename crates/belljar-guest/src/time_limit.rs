//! The time limit of an execution. A node freezes its sandboxes while it cannot renew its lease; some of that time does not
//! count.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How often the guest looks at the clock.
const TICK: Duration = Duration::from_secs(1);

/// If a tick is later than this, the guest was frozen. A busy machine delays the guest less.
const FROZEN: Duration = Duration::from_secs(2);

/// The most that does not count. The host gives a guest up that does not end an execution in time, and waits for 10
/// seconds more than the limit (`GUEST_SLACK`); so this must be less, if something else has delayed the guest. Code that
/// delays the guest on purpose gains no more than this.
const MOST: Duration = Duration::from_secs(8);

/// Resolves when the execution has used up its time.
pub(crate) async fn elapsed(limit: Duration) {
    let (mut left, mut allowed) = (limit, MOST);
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
        assert_eq!(seconds(10, 2), 10, "a busy machine delays the guest as much");
        assert_eq!(seconds(60, 8), 67, "a second of it was the tick");
    }

    #[test]
    fn a_long_pause_counts_except_for_a_part() {
        assert_eq!(seconds(60, 30), 68);
        assert_eq!(seconds(10, 1000), 1003);
    }
}
