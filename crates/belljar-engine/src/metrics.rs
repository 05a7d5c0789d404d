//! Counters for people who run this: an interface, with a test that each moves.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::admission::{Load, Quota};
use crate::rules::Phase;
use crate::store::status_name;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByStatus {
    pub(crate) status: Name,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByLanguage {
    pub(crate) language: Name,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByState {
    pub(crate) state: Name,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByHow {
    pub(crate) how: Name,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByWhat {
    pub(crate) what: Name,
}

/// One of a few names known in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Name(pub(crate) &'static str);

impl EncodeLabelValue for Name {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.0, encoder)
    }
}

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    sessions: Family<ByState, Gauge>,
    /// How sessions came to be: pool, cold, found, restarted, refused, failed.
    pub(crate) creates: Family<ByHow, Counter>,
    pub(crate) create_seconds: Histogram,
    pub(crate) execs: Family<ByStatus, Counter>,
    pub(crate) exec_seconds: Family<ByLanguage, Histogram>,
    pub(crate) runs: Counter,
    pub(crate) oom: Counter,
    pub(crate) dropped_bytes: Counter,
    /// What became of sessions that an earlier server left: adopted, lost, cleaned.
    pub(crate) adoptions: Family<ByHow, Counter>,
    pub(crate) expired: Counter,
    /// Visits of sandboxes elsewhere: reached, refused, failed.
    pub(crate) visits: Family<ByHow, Counter>,
    pub(crate) network_bytes: Counter,
    pool_ready: Gauge,
    pool_taken: Family<ByHow, Counter<u64, AtomicU64>>,
    queued: Gauge,
    /// What sandboxes were promised, and the most that the server promises; without a limit, none.
    granted: Family<ByWhat, Gauge>,
    limit: Family<ByWhat, Gauge>,
    pub(crate) artifacts: ArtifactMetrics,
}

/// Counted where artifacts are taken.
#[derive(Debug, Clone, Default)]
pub struct ArtifactMetrics {
    taken: Counter,
    bytes: Counter,
    refused: Counter,
}

impl ArtifactMetrics {
    pub(crate) fn taken(&self, bytes: u64) {
        self.taken.inc();
        self.bytes.inc_by(bytes);
    }

    pub(crate) fn refused(&self, count: usize) {
        self.refused.inc_by(count as u64);
    }
}

/// From half a millisecond to a quarter of an hour.
fn buckets() -> impl Iterator<Item = f64> {
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0]
        .into_iter()
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("belljar"),
            sessions: Family::default(),
            creates: Family::default(),
            create_seconds: Histogram::new(buckets()),
            execs: Family::default(),
            exec_seconds: Family::new_with_constructor(|| Histogram::new(buckets())),
            runs: Counter::default(),
            oom: Counter::default(),
            dropped_bytes: Counter::default(),
            adoptions: Family::default(),
            expired: Counter::default(),
            visits: Family::default(),
            network_bytes: Counter::default(),
            pool_ready: Gauge::default(),
            pool_taken: Family::default(),
            queued: Gauge::default(),
            granted: Family::default(),
            limit: Family::default(),
            artifacts: ArtifactMetrics::default(),
        };
        let r = &mut metrics.registry;
        r.register("sessions", "Sessions by state", metrics.sessions.clone());
        r.register(
            "creates",
            "Requests for a session, by how they were met",
            metrics.creates.clone(),
        );
        r.register("create_seconds", "Time to make a session", metrics.create_seconds.clone());
        r.register("execs", "Executions by status", metrics.execs.clone());
        r.register(
            "exec_seconds",
            "Time from acceptance to end of an execution",
            metrics.exec_seconds.clone(),
        );
        r.register("runs", "Ephemeral runs", metrics.runs.clone());
        r.register("oom", "Executions ended for want of memory", metrics.oom.clone());
        r.register(
            "dropped_output_bytes",
            "Output beyond its limit",
            metrics.dropped_bytes.clone(),
        );
        r.register(
            "adoptions",
            "Sessions left by an earlier server, by what became of them",
            metrics.adoptions.clone(),
        );
        r.register(
            "sessions_expired",
            "Sessions that reached their end of life",
            metrics.expired.clone(),
        );
        r.register(
            "network_visits",
            "Attempts of sandboxes to reach somebody, by what became of them",
            metrics.visits.clone(),
        );
        r.register(
            "network_bytes",
            "Bytes that sandboxes sent and received",
            metrics.network_bytes.clone(),
        );
        r.register("pool_ready", "Warm sandboxes waiting", metrics.pool_ready.clone());
        r.register(
            "pool_taken",
            "Sandboxes asked of the pool: hit, or miss and made cold",
            metrics.pool_taken.clone(),
        );
        r.register("execs_queued", "Executions waiting for their turn", metrics.queued.clone());
        r.register(
            "granted",
            "What living sandboxes may use: sessions, memory_bytes, pids",
            metrics.granted.clone(),
        );
        r.register(
            "limit",
            "The most of it that this server grants, where there is a limit",
            metrics.limit.clone(),
        );
        let artifacts = metrics.artifacts.clone();
        r.register("artifacts", "Artifacts taken", artifacts.taken);
        r.register("artifact_bytes", "Bytes of artifacts taken", artifacts.bytes);
        r.register("artifacts_refused", "Files that were not taken", artifacts.refused);
        metrics
    }
}

/// What is counted where it is, at the moment of asking.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Snapshot {
    pub(crate) sessions: [i64; Phase::ALL.len()],
    pub(crate) queued: i64,
    pub(crate) pool_ready: i64,
    pub(crate) pool_hits: u64,
    pub(crate) pool_misses: u64,
    pub(crate) load: Load,
    pub(crate) total: Quota,
}

impl Metrics {
    /// In the text format that Prometheus reads.
    pub(crate) fn render(&self, now: Snapshot) -> String {
        for (phase, count) in Phase::ALL.into_iter().zip(now.sessions) {
            self.sessions.get_or_create(&ByState { state: Name(phase.name()) }).set(count);
        }
        self.queued.set(now.queued);
        self.pool_ready.set(now.pool_ready);
        for (what, granted, limit) in [
            ("sessions", now.load.sessions, now.total.sessions),
            ("memory_bytes", now.load.memory, now.total.memory),
            ("pids", now.load.pids, now.total.pids),
        ] {
            let what = ByWhat { what: Name(what) };
            let shown = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            self.granted.get_or_create(&what).set(shown(granted));
            if let Some(limit) = limit {
                self.limit.get_or_create(&what).set(shown(limit));
            }
        }
        for (how, count) in [("hit", now.pool_hits), ("miss", now.pool_misses)] {
            let counter = self.pool_taken.get_or_create(&ByHow { how: Name(how) });
            counter.inner().store(count, std::sync::atomic::Ordering::Relaxed);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string succeeds");
        text
    }

    pub(crate) fn created(&self, how: &'static str) {
        self.creates.get_or_create(&ByHow { how: Name(how) }).inc();
    }

    pub(crate) fn adopted(&self, how: &'static str) {
        self.adoptions.get_or_create(&ByHow { how: Name(how) }).inc();
    }

    pub(crate) fn finished(
        &self,
        language: &'static str,
        outcome: &belljar_proto::exec::Outcome,
        seconds: f64,
    ) {
        let status = Name(status_name(outcome.status));
        self.execs.get_or_create(&ByStatus { status }).inc();
        self.exec_seconds.get_or_create(&ByLanguage { language: Name(language) }).observe(seconds);
        self.dropped_bytes.inc_by(outcome.dropped.stdout_bytes + outcome.dropped.stderr_bytes);
        if outcome.status == belljar_proto::exec::Status::Oom {
            self.oom.inc();
        }
    }
}
