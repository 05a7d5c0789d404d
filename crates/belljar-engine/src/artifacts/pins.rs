//! Keeps ingests and sweeps off each other's blobs without making either wait.
//!
//! The danger: an ingest finds that its content is already there and drops its own copy; before it
//! has written down that it uses the old one, a sweep finds that nobody does and removes it.
//!
//! ```text
//! ingest   pin ------ look, put in place ------ commit the reference ------ unpin
//! sweep        choose what is not pinned ------ ask who is referenced ------ remove
//! ```
//!
//! Whatever is pinned between a sweep's choice and its removal is taken off the sweep's list, even
//! if it is unpinned again by then: the answer that the sweep got may be older than the reference.
//! The lock is held for the short ends of these lines only, never while anybody is asked.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Mutex;

#[derive(Debug)]
pub(super) struct Pins<N>(Mutex<State<N>>);

#[derive(Debug)]
struct State<N> {
    /// How many ingests hold each.
    pinned: HashMap<N, usize>,
    /// What the sweep under way has chosen.
    chosen: HashSet<N>,
}

impl<N: Copy + Eq + Hash> Pins<N> {
    pub(super) fn new() -> Pins<N> {
        Pins(Mutex::new(State { pinned: HashMap::new(), chosen: HashSet::new() }))
    }

    pub(super) fn pin(&self, name: N) {
        let mut state = crate::lock(&self.0);
        *state.pinned.entry(name).or_default() += 1;
        state.chosen.remove(&name);
    }

    /// Undoes one [`Pins::pin`].
    pub(super) fn unpin(&self, name: N) {
        let mut state = crate::lock(&self.0);
        if let Some(holders) = state.pinned.get_mut(&name) {
            *holders -= 1;
            if *holders == 0 {
                state.pinned.remove(&name);
            }
        }
    }

    /// Begins a sweep of those of `names` that nobody has pinned, and returns them. There may be
    /// only one sweep at a time.
    pub(super) fn choose(&self, names: &[N]) -> Vec<N> {
        let mut state = crate::lock(&self.0);
        let chosen: Vec<N> =
            names.iter().filter(|name| !state.pinned.contains_key(name)).copied().collect();
        state.chosen = chosen.iter().copied().collect();
        chosen
    }

    /// Ends the sweep: runs `remove` on those of `names` that nobody has pinned since they were
    /// chosen. Nobody can pin one meanwhile, so `remove` should be quick.
    pub(super) fn remove_chosen(&self, names: &[N], mut remove: impl FnMut(N)) {
        let mut state = crate::lock(&self.0);
        for name in names {
            if state.chosen.contains(name) {
                remove(*name);
            }
        }
        state.chosen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pinned_is_not_swept() {
        let pins = Pins::new();
        [1, 2, 2].into_iter().for_each(|name| pins.pin(name));
        assert_eq!(pins.choose(&[1, 2, 3]), [3]);
        [1, 2].into_iter().for_each(|name| pins.unpin(name));
        assert_eq!(pins.choose(&[1, 2, 3]), [1, 3]);
        pins.unpin(2);
        assert_eq!(pins.choose(&[1, 2, 3]), [1, 2, 3]);
        assert!(crate::lock(&pins.0).pinned.is_empty());
    }

    #[test]
    fn what_was_pinned_for_a_moment_during_a_sweep_is_not_swept() {
        let pins = Pins::new();
        let chosen = pins.choose(&[1, 2, 3]);
        pins.pin(2);
        pins.unpin(2);
        pins.pin(3);
        let mut removed = Vec::new();
        pins.remove_chosen(&chosen, |name| removed.push(name));
        assert_eq!(removed, [1]);
        pins.remove_chosen(&chosen, |name| panic!("{name} belongs to no sweep"));
    }
}
