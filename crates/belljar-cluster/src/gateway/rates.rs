//! Requests per minute of a key, counted over all gateways.
//!
//! The count is in the database. A gateway takes some requests of the key at once and counts them itself, so most requests
//! need no query. While the database cannot be reached, each gateway counts for itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use belljar_engine::in_full;
use belljar_engine::store::StoreError;

/// Seconds of one window.
const WINDOW_S: u64 = 60;

/// A gateway takes this part of the limit at once, and at most [`MAX_CHUNK`] requests.
const PART: u32 = 20;
const MAX_CHUNK: u32 = 50;

/// The most keys that are counted. When there are more, those of earlier windows are dropped.
const MAX_KEYS: usize = 10_000;

/// What a key may still use, in the database.
#[async_trait]
pub(super) trait Budget: Sync {
    /// Takes a number of requests of a window, if the limit allows that.
    async fn spend(&self, window: i64, amount: u32) -> Result<bool, StoreError>;
}

#[derive(Debug, Default)]
pub(super) struct Rates {
    keys: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Counted>>>>,
}

#[derive(Debug, Default)]
struct Counted {
    window: i64,
    /// Requests that were taken from the database and not used yet.
    left: u32,
    /// Requests that were allowed without the database.
    uncounted: u32,
}

impl Rates {
    /// Counts one request, or returns how many seconds to wait. `since_1970` is the present time.
    pub(super) async fn take(
        &self,
        key: &str,
        per_minute: u32,
        since_1970: Duration,
        budget: &impl Budget,
    ) -> Result<(), u32> {
        let seconds = since_1970.as_secs();
        let window = i64::try_from(seconds / WINDOW_S).unwrap_or(i64::MAX);
        let wait = u32::try_from(WINDOW_S - seconds % WINDOW_S).unwrap_or(1);
        let limit = per_minute.max(1);
        let counted = self.of(key, window);
        let mut counted = counted.lock().await;
        if counted.window != window {
            *counted = Counted { window, ..Counted::default() };
        }
        if counted.left > 0 {
            counted.left -= 1;
            return Ok(());
        }
        let chunk = (limit / PART).clamp(1, MAX_CHUNK);
        let mut sizes = vec![chunk];
        if chunk > 1 {
            // Near the limit a chunk does not fit, but a single request may.
            sizes.push(1);
        }
        for size in sizes {
            match budget.spend(window, size).await {
                Ok(true) => {
                    counted.left = size - 1;
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => return counted.without_database(&error, limit, wait),
            }
        }
        Err(wait)
    }

    fn of(&self, key: &str, window: i64) -> Arc<tokio::sync::Mutex<Counted>> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= MAX_KEYS {
            keys.retain(|_, counted| {
                counted.try_lock().is_ok_and(|counted| counted.window >= window)
            });
        }
        Arc::clone(keys.entry(key.to_owned()).or_default())
    }
}

impl Counted {
    fn without_database(&mut self, error: &StoreError, limit: u32, wait: u32) -> Result<(), u32> {
        tracing::warn!("failed to count requests of a key: {}", in_full(error));
        if self.uncounted >= limit {
            return Err(wait);
        }
        self.uncounted += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was spent in each window of the limit.
    struct Database {
        limit: u32,
        spent: Mutex<HashMap<i64, u32>>,
    }

    impl Database {
        fn new(limit: u32) -> Database {
            Database { limit, spent: Mutex::default() }
        }
    }

    #[async_trait]
    impl Budget for Database {
        async fn spend(&self, window: i64, amount: u32) -> Result<bool, StoreError> {
            let mut spent = self.spent.lock().unwrap();
            let spent = spent.entry(window).or_default();
            let fits = *spent + amount <= self.limit;
            *spent += if fits { amount } else { 0 };
            Ok(fits)
        }
    }

    struct Away;

    #[async_trait]
    impl Budget for Away {
        async fn spend(&self, _: i64, _: u32) -> Result<bool, StoreError> {
            Err(StoreError::Closed)
        }
    }

    async fn allowed(rates: &Rates, database: &Database, at: u64, tries: u32) -> u32 {
        let mut allowed = 0;
        for _ in 0..tries {
            let taken = rates.take("k", database.limit, Duration::from_secs(at), database).await;
            allowed += u32::from(taken.is_ok());
        }
        allowed
    }

    #[tokio::test]
    async fn gateways_share_the_limit() {
        let (a, b, database) = (Rates::default(), Rates::default(), Database::new(1000));
        assert_eq!(allowed(&a, &database, 60, 700).await, 700);
        assert_eq!(allowed(&b, &database, 61, 700).await, 300);
        assert_eq!(allowed(&a, &database, 120, 700).await, 700, "a new minute");
    }

    #[tokio::test]
    async fn small_limits_are_exact_and_say_how_long_to_wait() {
        let (rates, database) = (Rates::default(), Database::new(3));
        assert_eq!(allowed(&rates, &database, 60, 10).await, 3);
        let refused = rates.take("k", 3, Duration::from_secs(75), &database).await;
        assert_eq!(refused, Err(45));
    }

    #[tokio::test]
    async fn without_the_database_a_gateway_counts_itself() {
        let rates = Rates::default();
        let mut allowed = 0;
        for _ in 0..10 {
            allowed += u32::from(rates.take("k", 4, Duration::ZERO, &Away).await.is_ok());
        }
        assert_eq!(allowed, 4);
    }
}
