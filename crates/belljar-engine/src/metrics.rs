//! Metrics for operators. Their names are a public interface; a test checks that each metric
//! changes.

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

/// A label value that is known at compile time.
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
    /// How requests for sessions ended: pool, cold, found, restarted, refused, failed.
    pub(crate) creates: Family<ByHow, Counter>,
    pub(crate) create_seconds: Histogram,
    pub(crate) execs: Family<ByStatus, Counter>,
    pub(crate) exec_seconds: Family<ByLanguage, Histogram>,
    pub(crate) runs: Counter,
    pub(crate) oom: Counter,
    pub(crate) dropped_bytes: Counter,
    /// Sessions of an earlier server: adopted, lost, cleaned.
    pub(crate) adoptions: Family<ByHow, Counter>,
    /// Sessions that woke, by where their snapshot was: here, s3; or files_only if their memory could not be restored.
    pub(crate) wakes: Family<ByHow, Counter>,
    pub(crate) expired: Counter,
    /// Network visits of sandboxes: reached, refused, failed.
    pub(crate) visits: Family<ByHow, Counter>,
    pub(crate) network_bytes: Counter,
    pool_ready: Gauge,
    pool_taken: Family<ByHow, Counter<u64, AtomicU64>>,
    queued: Gauge,
    /// Capacity that sandboxes have reserved, and its limits, if there are any.
    granted: Family<ByWhat, Gauge>,
    limit: Family<ByWhat, Gauge>,
    pub(crate) artifacts: ArtifactMetrics,
}

/// Metrics of the artifact store.
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
            wakes: Family::default(),
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
        metrics.register_sessions();
        metrics.register_execs();
        metrics.register_capacity();
        metrics
    }
}

/// Values that are read when the metrics are rendered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CurrentValues {
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
    pub(crate) fn render(&self, now: CurrentValues) -> String {
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

    pub(crate) fn woke(&self, how: &'static str) {
        self.wakes.get_or_create(&ByHow { how: Name(how) }).inc();
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

    fn register_sessions(&mut self) {
        let registry = &mut self.registry;
        registry.register("sessions", "Sessions by state", self.sessions.clone());
        registry.register("creates", "Requests for a session, by outcome", self.creates.clone());
        registry.register("create_seconds", "Time to make a session", self.create_seconds.clone());
        registry.register(
            "adoptions",
            "Sessions of an earlier server, by outcome",
            self.adoptions.clone(),
        );
        registry.register("wakes", "Sessions that woke, by their snapshot", self.wakes.clone());
        registry.register("sessions_expired", "Sessions that expired", self.expired.clone());
        registry.register(
            "network_visits",
            "Network visits of sandboxes, by outcome",
            self.visits.clone(),
        );
        registry.register(
            "network_bytes",
            "Bytes that sandboxes sent and received",
            self.network_bytes.clone(),
        );
    }

    fn register_execs(&mut self) {
        let registry = &mut self.registry;
        registry.register("execs", "Executions by status", self.execs.clone());
        registry.register(
            "exec_seconds",
            "Time from acceptance to end of an execution",
            self.exec_seconds.clone(),
        );
        registry.register("runs", "Ephemeral runs", self.runs.clone());
        registry.register("oom", "Executions that ran out of memory", self.oom.clone());
        registry.register(
            "dropped_output_bytes",
            "Bytes of output beyond the limit",
            self.dropped_bytes.clone(),
        );
        registry.register("execs_queued", "Executions in queues", self.queued.clone());
    }

    fn register_capacity(&mut self) {
        let registry = &mut self.registry;
        registry.register("pool_ready", "Warm sandboxes in the pool", self.pool_ready.clone());
        registry.register(
            "pool_taken",
            "Sandboxes requested from the pool: hit or miss",
            self.pool_taken.clone(),
        );
        registry.register(
            "granted",
            "Capacity that sandboxes have reserved: sessions, memory_bytes, pids",
            self.granted.clone(),
        );
        registry.register(
            "limit",
            "The limit of this capacity, where there is one",
            self.limit.clone(),
        );
        let artifacts = self.artifacts.clone();
        registry.register("artifacts", "Artifacts stored", artifacts.taken);
        registry.register("artifact_bytes", "Bytes of artifacts stored", artifacts.bytes);
        registry.register(
            "artifacts_refused",
            "Files that were not accepted as artifacts",
            artifacts.refused,
        );
    }
}
