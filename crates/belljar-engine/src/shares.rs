//! Permits by name: how much of something each tenant, or each session, may have at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;

use crate::lock;

/// The same number of permits for everybody who has a name.
#[derive(Debug)]
pub struct Shares {
    most: usize,
    /// Only of those who hold, or wait for, a permit: whoever has none starts from all of them.
    named: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Shares {
    #[must_use]
    pub fn new(most: usize) -> Shares {
        Shares { most, named: Mutex::default() }
    }

    /// How many permits each has.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// The permits of this one. Whoever waits for one, or has one, must hold this.
    #[must_use]
    pub fn of(&self, name: &str) -> Arc<Semaphore> {
        let mut named = lock(&self.named);
        // An owned permit holds its semaphore.
        named.retain(|known, share| known == name || Arc::strong_count(share) > 1);
        let share = named.entry(name.to_owned());
        Arc::clone(share.or_insert_with(|| Arc::new(Semaphore::new(self.most))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_their_own_and_nothing_is_kept_of_who_has_none() {
        let shares = Shares::new(2);
        let first = shares.of("a").try_acquire_owned().unwrap();
        let second = shares.of("a").try_acquire_owned().unwrap();
        assert!(shares.of("a").try_acquire_owned().is_err());
        let other = shares.of("b").try_acquire_owned().unwrap();
        assert_eq!(lock(&shares.named).len(), 2);
        drop((first, other));
        let again = shares.of("a").try_acquire_owned().unwrap();
        assert_eq!(lock(&shares.named).len(), 1);
        drop((second, again));
        assert_eq!(shares.of("c").available_permits(), 2);
        assert_eq!(lock(&shares.named).len(), 1);
    }
}
