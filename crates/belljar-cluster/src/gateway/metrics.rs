//! Metrics of a gateway. Their names are a public interface.

use std::fmt;
use std::time::Duration;

use axum::http::StatusCode;
use belljar_engine::store::{NodeRow, NodeState};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

use super::placement;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByStatus {
    status: Name,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    state: Name,
}

/// A label value that is known at compile time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Name(&'static str);

impl EncodeLabelValue for Name {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        EncodeLabelValue::encode(&self.0, encoder)
    }
}

#[derive(Debug)]
pub(super) struct GatewayMetrics {
    registry: Registry,
    requests: Family<ByStatus, Counter>,
    seconds: Histogram,
    /// Requests that were sent to a second node.
    pub(super) resent: Counter,
    nodes: Family<ByState, Gauge>,
    reserved: Gauge<f64, AtomicU64>,
}

impl Default for GatewayMetrics {
    fn default() -> GatewayMetrics {
        let buckets = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0];
        let mut metrics = GatewayMetrics {
            registry: Registry::with_prefix("belljar_gateway"),
            requests: Family::default(),
            seconds: Histogram::new(buckets),
            resent: Counter::default(),
            nodes: Family::default(),
            reserved: Gauge::default(),
        };
        let registry = &mut metrics.registry;
        registry.register("requests", "Requests, by class of status", metrics.requests.clone());
        let help = "Seconds until the head of the answer";
        registry.register("answer_seconds", help, metrics.seconds.clone());
        let help = "Requests that were sent to a second node, because the first did nothing";
        registry.register("resent", help, metrics.resent.clone());
        registry.register("nodes", "Nodes, by state", metrics.nodes.clone());
        let help = "The share of the memory of all ready nodes that is reserved";
        registry.register("memory_reserved_ratio", help, metrics.reserved.clone());
        metrics
    }
}

impl GatewayMetrics {
    pub(super) fn answered(&self, status: StatusCode, elapsed: Duration) {
        let class = match status.as_u16() / 100 {
            1 => "1xx",
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        self.requests.get_or_create(&ByStatus { status: Name(class) }).inc();
        self.seconds.observe(elapsed.as_secs_f64());
    }

    /// In the text format that Prometheus reads.
    pub(super) fn render(&self, nodes: &[NodeRow]) -> String {
        for state in NodeState::ALL {
            let count = nodes.iter().filter(|node| node.state == state).count();
            let gauge = self.nodes.get_or_create(&ByState { state: Name(state.name()) });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let ready = nodes.iter().filter(|node| node.state == NodeState::Ready);
        let shares: Vec<f64> = ready.map(placement::reserved).collect();
        #[expect(clippy::cast_precision_loss, reason = "a number of nodes")]
        let mean = shares.iter().fold(0.0, |sum, share| sum + share) / shares.len().max(1) as f64;
        self.reserved.set(mean);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_class() {
        let metrics = GatewayMetrics::default();
        metrics.answered(StatusCode::NOT_FOUND, Duration::from_millis(2));
        metrics.resent.inc();
        let text = metrics.render(&[]);
        assert!(text.contains("belljar_gateway_requests_total{status=\"4xx\"} 1"), "{text}");
        assert!(text.contains("belljar_gateway_resent_total 1"), "{text}");
        assert!(text.contains("belljar_gateway_nodes{state=\"ready\"} 0"), "{text}");
        assert!(text.contains("belljar_gateway_memory_reserved_ratio 0"), "{text}");
    }
}
