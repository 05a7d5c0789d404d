//! Waiting for a condition, with a bound.

use std::time::{Duration, Instant};

/// How long a test waits for something that takes a moment. The limit is long, because it is only for things that never
/// happen: a busy machine may need many times as long as usual.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is checked.
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits until a condition holds; panics after [`PATIENCE`].
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The same in a test without an async runtime.
#[track_caller]
pub fn eventually_blocking(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(INTERVAL);
    }
}
