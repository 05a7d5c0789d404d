//! Metrics of a node, besides those of every server. Their names are a public interface.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_api::MoreMetrics;
use belljar_cluster::lease::LeaseStatus;
use belljar_engine::Engine;
use belljar_engine::store::NodeLoad;

/// Rendered with the metrics of the engine.
pub(super) fn of(
    lease: Arc<LeaseStatus>,
    engine: &Arc<Engine>,
    capacity: NodeLoad,
    draining: Arc<AtomicBool>,
) -> MoreMetrics {
    let engine = Arc::downgrade(engine);
    MoreMetrics(Box::new(move || {
        let Some(engine) = engine.upgrade() else { return String::new() };
        let draining = draining.load(Ordering::Relaxed).then(|| engine.live_sessions());
        render(&lease, engine.node_load(), capacity, draining)
    }))
}

fn render(
    lease: &LeaseStatus,
    used: NodeLoad,
    capacity: NodeLoad,
    draining: Option<usize>,
) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, value: f64| {
        let suffix = if kind == "counter" { "_total" } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "# HELP belljar_{name} {help}.\n# TYPE belljar_{name} {kind}\nbelljar_{name}{suffix} {value}\n"
        );
    };
    let help = "Seconds until sandboxes are frozen unless the lease is renewed";
    metric("lease_margin_seconds", "gauge", help, lease.margin_s().unwrap_or_default());
    let frozen = f64::from(u8::from(lease.is_frozen()));
    metric("lease_frozen", "gauge", "Whether sandboxes are frozen, 1 or 0", frozen);
    #[expect(clippy::cast_precision_loss, reason = "a metric")]
    {
        let help = "How often the lease was lost";
        metric("lease_losses", "counter", help, lease.fences() as f64);
        let share = used.memory as f64 / capacity.memory.max(1) as f64;
        let help = "The share of the node's memory that sandboxes have reserved";
        metric("memory_reserved_ratio", "gauge", help, share);
        let help = "Sessions that a draining node still has";
        metric("drain_remaining", "gauge", help, draining.unwrap_or_default() as f64);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_in_the_text_format() {
        let load = |memory| NodeLoad { sessions: 1, memory };
        let text = render(&LeaseStatus::default(), load(250), load(1000), Some(3));
        assert!(text.contains("# TYPE belljar_memory_reserved_ratio gauge\n"), "{text}");
        assert!(text.contains("\nbelljar_memory_reserved_ratio 0.25\n"), "{text}");
        assert!(text.contains("\nbelljar_drain_remaining 3\n"), "{text}");
        assert!(text.contains("\nbelljar_lease_margin_seconds 0\n"), "{text}");
        assert!(text.contains("\nbelljar_lease_losses_total 0\n"), "{text}");
    }
}
