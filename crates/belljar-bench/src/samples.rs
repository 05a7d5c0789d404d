//! Numbers, and what they come to.

use std::time::Duration;

use serde::Serialize;

/// Durations of the same thing done many times.
#[derive(Debug, Default)]
pub(super) struct Samples(Vec<Duration>);

/// Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) rounds: usize,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

impl Samples {
    pub(super) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(super) fn summary(&self) -> Summary {
        let mut sorted = self.0.clone();
        sorted.sort();
        let at = |percent: usize| {
            // The smallest sample that at least this share of all does not exceed.
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).map_or(0.0, |sample| sample.as_secs_f64() * 1000.0)
        };
        Summary { rounds: sorted.len(), p50_ms: at(50), p99_ms: at(99), max_ms: at(100) }
    }
}

/// Of tables whose rows are summaries.
pub(super) const HEADER: [&str; 6] = ["what", "p50 ms", "p99 ms", "max ms", "rounds", "compared"];

impl Summary {
    pub(super) fn row(&self, what: String, versus: String) -> Vec<String> {
        let ms =
            |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
        let rounds = self.rounds.to_string();
        vec![what, ms(self.p50_ms), ms(self.p99_ms), ms(self.max_ms), rounds, versus]
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(samples: I) -> Self {
        Samples(samples.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_that_occurred() {
        let samples: Samples = (1..=200).map(Duration::from_millis).collect();
        let summary = samples.summary();
        assert_eq!((summary.p50_ms, summary.p99_ms, summary.max_ms), (100.0, 198.0, 200.0));
        assert_eq!(Samples::default().summary().rounds, 0);
        let one: Samples = [Duration::from_millis(7)].into_iter().collect();
        assert_eq!(one.summary().p99_ms, 7.0);
    }
}
