//! Requests per minute, per key: a token bucket that fills steadily. Every request takes one token.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The most buckets. If there are more, the fullest are removed first: their keys were not used for
/// long.
const MAX_BUCKETS: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct RateLimits {
    buckets: Mutex<HashMap<String, Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl RateLimits {
    /// Takes one request from the key's bucket, or returns how many seconds to wait for the next.
    pub(crate) fn take(&self, key: &str, per_minute: u32, now: Instant) -> Result<(), u32> {
        let capacity = f64::from(per_minute.max(1));
        let per_second = capacity / 60.0;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() > MAX_BUCKETS {
            buckets.retain(|_, bucket| now.duration_since(bucket.filled).as_secs() < 60);
        }
        let bucket =
            buckets.entry(key.to_owned()).or_insert(Bucket { tokens: capacity, filled: now });
        let elapsed = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.tokens = (bucket.tokens + elapsed * per_second).min(capacity);
        bucket.filled = now;
        if bucket.tokens >= 1.0 {
            bucket.tokens -= 1.0;
            return Ok(());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 60")]
        let seconds = ((1.0 - bucket.tokens) / per_second).ceil().clamp(1.0, 60.0) as u32;
        Err(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bucket_empties_and_fills_again() {
        let limits = RateLimits::default();
        let start = Instant::now();
        for _ in 0..60 {
            assert_eq!(limits.take("a", 60, start), Ok(()));
        }
        assert_eq!(limits.take("a", 60, start), Err(1));
        assert_eq!(limits.take("b", 60, start), Ok(()), "others are not affected");
        assert_eq!(limits.take("a", 60, start + Duration::from_secs(1)), Ok(()));
        assert_eq!(limits.take("a", 60, start + Duration::from_secs(1)), Err(1));
    }

    #[test]
    fn one_request_per_minute_means_waiting_a_minute() {
        let limits = RateLimits::default();
        let start = Instant::now();
        assert_eq!(limits.take("a", 1, start), Ok(()));
        assert_eq!(limits.take("a", 1, start), Err(60));
        assert_eq!(limits.take("a", 0, start), Err(60), "zero is as little as one");
    }
}
