//! Counts refused requests. Any client can send any number of them, so the first of a kind is logged at once, and the
//! others are counted and logged once a minute.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{AuditEntry, AuditLine};
use crate::clock;

/// How long refusals of a kind are counted before the count is logged.
pub(super) const WINDOW: Duration = Duration::from_secs(60);

/// How many kinds are counted separately in that time. All others are counted together.
const MAX_KINDS: usize = 64;

/// The most lines in that time: two per kind, for the first and for the count, and one for all others.
#[cfg(test)]
pub(super) const MAX_LINES: usize = 2 * MAX_KINDS + 1;

/// A refused request. Equal ones are of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RefusedRequest {
    pub(super) tenant: String,
    pub(super) key: Option<String>,
    pub(super) outcome: &'static str,
    pub(super) detail: String,
}

impl RefusedRequest {
    pub(super) fn line(&self, times: u64) -> Vec<u8> {
        let entry = AuditEntry {
            action: "deny",
            outcome: self.outcome,
            detail: Some(&self.detail),
            ..AuditEntry::default()
        };
        let line = AuditLine {
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

/// Refusals to log, each with its count.
type CountedRefusals = Vec<(RefusedRequest, u64)>;

#[derive(Debug)]
pub(super) struct Refusals {
    since: Instant,
    /// How many of each kind came after the first.
    repeated: HashMap<RefusedRequest, u64>,
    /// The count of all further kinds.
    others: u64,
}

impl Refusals {
    pub(super) fn new(now: Instant) -> Refusals {
        Refusals { since: now, repeated: HashMap::new(), others: 0 }
    }

    /// Counts a refusal. Returns the lines to log now.
    pub(super) fn note(&mut self, refused: RefusedRequest, now: Instant) -> CountedRefusals {
        let mut counted = self.due(now);
        let has_room = self.repeated.len() < MAX_KINDS;
        match self.repeated.get_mut(&refused) {
            Some(times) => *times += 1,
            None if has_room => {
                self.repeated.insert(refused.clone(), 0);
                counted.push((refused, 1));
            }
            None => self.others += 1,
        }
        counted
    }

    /// Returns the counts, if the window is over.
    pub(super) fn due(&mut self, now: Instant) -> CountedRefusals {
        match now.saturating_duration_since(self.since) >= WINDOW {
            true => self.all(now),
            false => Vec::new(),
        }
    }

    /// Returns the counts so far and begins a new window.
    pub(super) fn all(&mut self, now: Instant) -> CountedRefusals {
        let Refusals { repeated, others, .. } = std::mem::replace(self, Refusals::new(now));
        let mut counted: CountedRefusals =
            repeated.into_iter().filter(|(_, times)| *times > 0).collect();
        if others > 0 {
            let refused = RefusedRequest {
                tenant: "-".into(),
                key: None,
                outcome: "refused",
                detail: "others".into(),
            };
            counted.push((refused, others));
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(detail: &str) -> RefusedRequest {
        let (tenant, detail) = ("-".into(), detail.into());
        RefusedRequest { tenant, key: None, outcome: "unauthorized", detail }
    }

    #[test]
    fn repeated_refusals_are_counted_once_a_minute() {
        let start = Instant::now();
        let mut refusals = Refusals::new(start);
        assert_eq!(refusals.note(refused("a"), start), [(refused("a"), 1)]);
        for _ in 0..5 {
            assert_eq!(refusals.note(refused("a"), start), []);
        }
        assert_eq!(refusals.note(refused("b"), start), [(refused("b"), 1)]);
        assert_eq!(refusals.due(start + WINDOW / 2), []);
        let counted = refusals.note(refused("a"), start + WINDOW);
        assert_eq!(
            counted,
            [(refused("a"), 5), (refused("a"), 1)],
            "the old count, and a new line"
        );
        assert_eq!(refusals.due(start + WINDOW * 3), []);
    }
}
