//! Samples of durations, and their percentiles.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Durations of one repeated operation.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

/// Percentiles, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) rounds: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

/// A summary, and the median that we aim at.
#[derive(Debug, Serialize)]
pub(crate) struct Timed {
    #[serde(flatten)]
    pub(crate) took: Summary,
    pub(crate) target_p50_ms: f64,
}

impl Samples {
    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut sorted = self.0.clone();
        sorted.sort();
        let at = |percent: usize| {
            // The smallest sample such that at least this percentage of all samples is not larger.
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).map_or(0.0, |sample| sample.as_secs_f64() * 1000.0)
        };
        Summary { rounds: sorted.len(), p50_ms: at(50), p99_ms: at(99), max_ms: at(100) }
    }
}

/// The header of tables whose rows are summaries.
pub(crate) const HEADER: [&str; 6] = ["what", "p50 ms", "p99 ms", "max ms", "rounds", "compared"];

impl Summary {
    pub(crate) fn row(&self, what: &str, compared: String) -> Vec<String> {
        let rounds = self.rounds.to_string();
        vec![what.into(), ms(self.p50_ms), ms(self.p99_ms), ms(self.max_ms), rounds, compared]
    }
}

/// The whole summary in one cell of a table.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { rounds, p50_ms, p99_ms, max_ms } = *self;
        write!(f, "p50 {} ms, p99 {} ms, max {} ms ({rounds})", ms(p50_ms), ms(p99_ms), ms(max_ms))
    }
}

fn ms(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

#[expect(clippy::cast_precision_loss, reason = "sizes and counts of one machine")]
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[expect(clippy::cast_precision_loss, reason = "sizes and counts of one machine")]
pub(crate) fn count(n: usize) -> f64 {
    n.max(1) as f64
}

/// The middle value, or the mean of the two middle values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
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

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 9.0]), 3.0);
        assert_eq!(median(vec![4.0, 1.0, 9.0, 2.0]), 3.0);
    }
}
