//! The scroll-back of a terminal: its last output, by position.

use std::collections::VecDeque;

/// When the beginning is lost, up to this much more is skipped to begin at a new line.
const MAX_HALF_LINE: usize = 4 * 1024;

/// The last `limit` bytes of a stream, each with its position from the beginning.
#[derive(Debug)]
pub(crate) struct Scroll {
    bytes: VecDeque<u8>,
    /// The position of the first byte that is kept.
    oldest: u64,
    limit: usize,
}

impl Scroll {
    pub(crate) fn new(limit: usize) -> Scroll {
        Scroll { bytes: VecDeque::new(), oldest: 0, limit }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let surplus = self.bytes.len().saturating_sub(self.limit);
        self.bytes.drain(..surplus);
        self.oldest += surplus as u64;
    }

    pub(crate) fn oldest(&self) -> u64 {
        self.oldest
    }

    pub(crate) fn newest(&self) -> u64 {
        self.oldest + self.bytes.len() as u64
    }

    /// Where a reader without a position begins: at a new line, if earlier output is lost.
    pub(crate) fn beginning(&self) -> u64 {
        if self.oldest == 0 {
            return 0;
        }
        let line = self.bytes.iter().take(MAX_HALF_LINE).position(|&byte| byte == b'\n');
        self.oldest + line.map_or(0, |at| at as u64 + 1)
    }

    /// At most `max` bytes from position `at` on, which must not be older than the oldest.
    pub(crate) fn read(&self, at: u64, max: usize) -> Vec<u8> {
        let from = usize::try_from(at.saturating_sub(self.oldest)).unwrap_or(usize::MAX);
        let from = from.min(self.bytes.len());
        let to = from.saturating_add(max).min(self.bytes.len());
        self.bytes.range(from..to).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_last_bytes_are_kept_at_their_positions(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20),
            limit in 1usize..60,
            max in 1usize..50,
        ) {
            let mut scroll = Scroll::new(limit);
            pieces.iter().for_each(|piece| scroll.push(piece));
            let all = pieces.concat();
            prop_assert_eq!(scroll.newest(), all.len() as u64);
            prop_assert_eq!(scroll.oldest(), all.len().saturating_sub(limit) as u64);
            prop_assert!(scroll.beginning() >= scroll.oldest());
            prop_assert!(scroll.beginning() <= scroll.newest());
            let mut seen = Vec::new();
            let mut at = scroll.oldest();
            while at < scroll.newest() {
                let piece = scroll.read(at, max);
                prop_assert!(!piece.is_empty() && piece.len() <= max);
                at += piece.len() as u64;
                seen.extend(piece);
            }
            prop_assert_eq!(&seen[..], &all[all.len().saturating_sub(limit)..]);
        }
    }

    #[test]
    fn a_late_reader_begins_with_a_whole_line() {
        let mut scroll = Scroll::new(10);
        scroll.push(b"one\ntwo");
        assert_eq!(scroll.beginning(), 0);
        scroll.push(b"\nthree");
        assert_eq!(scroll.read(scroll.beginning(), 99), b"two\nthree");
        scroll.push(b"0123456789");
        assert_eq!(scroll.beginning(), scroll.oldest(), "there is no line to begin with");
    }
}
