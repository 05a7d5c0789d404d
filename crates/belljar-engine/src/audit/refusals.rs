//! Refused requests, of which strangers can send as many as they like: the first of a kind is a line
//! at once, the others are counted and told once a minute.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Entry, Line};
use crate::clock;

/// For how long refusals of a kind are counted before their number is told.
pub(super) const WINDOW: Duration = Duration::from_secs(60);

/// Kinds that are told apart in that time. All others are counted together.
const MAX_KINDS: usize = 64;

/// Lines that this comes to in that time: each kind at first and again with its count, and all others.
#[cfg(test)]
pub(super) const MAX_LINES: usize = 2 * MAX_KINDS + 1;

/// What makes refusals of a kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Refused {
    pub(super) tenant: String,
    pub(super) key: Option<String>,
    pub(super) outcome: &'static str,
    pub(super) detail: String,
}

impl Refused {
    pub(super) fn line(&self, times: u64) -> Vec<u8> {
        let entry = Entry {
            action: "deny",
            outcome: self.outcome,
            detail: Some(&self.detail),
            ..Entry::default()
        };
        let line = Line {
            time: clock::rfc3339(clock::now_ms()),
            tenant: &self.tenant,
            key: self.key.as_deref(),
            entry: &entry,
            code_sha256: None,
            code: None,
            times: (times > 1).then_some(times),
        };
        line.to_bytes()
    }
}

/// A refusal, and how many like it are to be told.
type Told = Vec<(Refused, u64)>;

#[derive(Debug)]
pub(super) struct Refusals {
    since: Instant,
    /// How many came after the first.
    repeated: HashMap<Refused, u64>,
    /// Of kinds that did not fit.
    others: u64,
}

impl Refusals {
    pub(super) fn new(now: Instant) -> Refusals {
        Refusals { since: now, repeated: HashMap::new(), others: 0 }
    }

    /// Counts a refusal, and says what is to be told now.
    pub(super) fn note(&mut self, refused: Refused, now: Instant) -> Told {
        let mut told = self.due(now);
        let has_room = self.repeated.len() < MAX_KINDS;
        match self.repeated.get_mut(&refused) {
            Some(times) => *times += 1,
            None if has_room => {
                self.repeated.insert(refused.clone(), 0);
                told.push((refused, 1));
            }
            None => self.others += 1,
        }
        told
    }

    /// The counts, if their time is over.
    pub(super) fn due(&mut self, now: Instant) -> Told {
        match now.saturating_duration_since(self.since) >= WINDOW {
            true => self.all(now),
            false => Vec::new(),
        }
    }

    /// The counts so far; counting begins anew.
    pub(super) fn all(&mut self, now: Instant) -> Told {
        let Refusals { repeated, others, .. } = std::mem::replace(self, Refusals::new(now));
        let mut told: Told = repeated.into_iter().filter(|(_, times)| *times > 0).collect();
        if others > 0 {
            let refused = Refused {
                tenant: "-".into(),
                key: None,
                outcome: "refused",
                detail: "others".into(),
            };
            told.push((refused, others));
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(detail: &str) -> Refused {
        let (tenant, detail) = ("-".into(), detail.into());
        Refused { tenant, key: None, outcome: "unauthorized", detail }
    }

    #[test]
    fn repeated_refusals_are_told_once_a_minute() {
        let start = Instant::now();
        let mut refusals = Refusals::new(start);
        assert_eq!(refusals.note(refused("a"), start), [(refused("a"), 1)]);
        for _ in 0..5 {
            assert_eq!(refusals.note(refused("a"), start), []);
        }
        assert_eq!(refusals.note(refused("b"), start), [(refused("b"), 1)]);
        assert_eq!(refusals.due(start + WINDOW / 2), []);
        let told = refusals.note(refused("a"), start + WINDOW);
        assert_eq!(told, [(refused("a"), 5), (refused("a"), 1)], "the old count, and a new line");
        assert_eq!(refusals.due(start + WINDOW * 3), []);
    }
}
