//! Keeps sweeps from removing blobs that an ingest is about to use, without making either wait.
//!
//! The danger: an ingest finds that its content is already there and drops its own copy; before it
//! has stored that it uses the old one, a sweep finds that it is not in use and removes it.
//!
//! ```text
//! ingest   pin ------ look, put in place ------ commit the reference ------ unpin
//! sweep        choose what is not pinned ------ ask who is referenced ------ remove
//! ```
//!
//! A blob that is pinned between a sweep's choice and its removal is taken off the sweep's list, even
//! if it is unpinned again by then: the answer that the sweep got may be older than the reference.
//! The lock is held only at the ends of these lines, never while the catalog is asked.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Mutex;

#[derive(Debug)]
pub(super) struct Pins<N>(Mutex<PinState<N>>);

#[derive(Debug)]
struct PinState<N> {
    /// How many ingests have pinned each.
    pinned: HashMap<N, usize>,
    /// What the current sweep has chosen.
    chosen: HashSet<N>,
}

impl<N: Copy + Eq + Hash> Pins<N> {
    pub(super) fn new() -> Pins<N> {
        Pins(Mutex::new(PinState { pinned: HashMap::new(), chosen: HashSet::new() }))
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

    /// Begins a sweep of those of `names` that are not pinned, and returns them. There may be only
    /// one sweep at a time.
    pub(super) fn choose(&self, names: &[N]) -> Vec<N> {
        let mut state = crate::lock(&self.0);
        let chosen: Vec<N> =
            names.iter().filter(|name| !state.pinned.contains_key(name)).copied().collect();
        state.chosen = chosen.iter().copied().collect();
        chosen
    }

    /// Ends the sweep: runs `remove` on those of `names` that were not pinned since they were chosen.
    /// None can be pinned meanwhile, so `remove` should be quick.
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
    fn pinned_names_are_not_swept() {
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
    fn names_that_were_pinned_during_a_sweep_are_not_swept() {
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
