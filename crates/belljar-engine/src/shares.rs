//! Semaphores by name: the same number of permits for each tenant, or for each session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;

use crate::lock;

/// Semaphores with the same number of permits for each name.
#[derive(Debug)]
pub struct Shares {
    most: usize,
    /// Only the semaphores that are in use; others are created when needed.
    named: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Shares {
    #[must_use]
    pub fn new(most: usize) -> Shares {
        Shares { most, named: Mutex::default() }
    }

    /// Permits per name.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// The semaphore of this name. Hold it, or an owned permit of it, while it is in use.
    #[must_use]
    pub fn of(&self, name: &str) -> Arc<Semaphore> {
        let mut named = lock(&self.named);
        // An owned permit holds its semaphore, so the count shows whether it is in use.
        named.retain(|known, share| known == name || Arc::strong_count(share) > 1);
        let share = named.entry(name.to_owned());
        Arc::clone(share.or_insert_with(|| Arc::new(Semaphore::new(self.most))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_its_own_permits_and_unused_ones_are_removed() {
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
