//! Tenants against tenants: one tenant attacks while the latency of another is measured.
//!
//! Attackers hold resources and do not compute. Using the processors is allowed, and on a small machine
//! all other tenants become slower by that. `make test-tenants` is the long form, with more of
//! everything.

mod attacks;
mod measure;

use std::sync::Arc;
use std::time::Duration;

use attacks::{ATTACKS, Attacker};
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::values::text;
use measure::{Latencies, measure};
use serde_json::json;

/// By which factor the p99 latency may grow.
const FACTOR: u32 = 3;

/// A latency below this is never too long: the machine may be busy with other work. A request that had to wait for an
/// attack would wait for as long as the attack lasts.
const FLOOR: Duration = Duration::from_secs(5);

/// How much the memory of the server may grow while a tenant holds all it can: the tenant's share of
/// memory for bodies, which is 256 MiB; about as much for data that is, or was, read from the database at
/// once; and buffers of connections.
const GROWTH: u64 = 640 << 20;

/// Whether to run the long form, with much more of everything.
fn is_long() -> bool {
    std::env::var_os("BELLJAR_TENANTS_LONG").is_some_and(|value| value != "0")
}

/// A server, and the API keys of the attacker and of the measured tenant.
async fn two_tenants() -> (Server, String, String) {
    let installation = Arc::new(Installation::new().env("BELLJAR_STALL", "20"));
    let secret = |tenant: &str| {
        let key = installation.key(&["--name", tenant, "--tenant", tenant]);
        text(&key["secret"]).to_owned()
    };
    let (mallory, alice) = (secret("mallory"), secret("alice"));
    (installation.serve().await, mallory, alice)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_that_are_slow_to_make_keep_no_other_waiting() {
    let (server, mallory, alice) = two_tenants().await;
    let client = server.with_key(&alice);
    let session = client.session_with(json!({})).await;
    let idle = measure(&client, &session, 4).await;
    let attacker = Attacker::new(&server, &mallory, 1).await;
    let held = attacks::throttled_sandboxes(attacker).await;
    let loaded = measure(&client, &session, 8).await;
    println!("idle: {idle}\nwhile 48 are being made: {loaded}");
    let failed = worse("throttled sandboxes", &idle, &loaded);
    assert!(failed.is_empty(), "{failed:#?}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_tenant_at_its_worst_keeps_no_other_waiting() {
    let (server, mallory, alice) = two_tenants().await;
    let client = server.with_key(&alice);
    let session = client.session_with(json!({})).await;
    let (times, samples) = if is_long() { (8, 100) } else { (1, 12) };

    measure(&client, &session, 2).await;
    let idle = measure(&client, &session, samples).await;
    let before = server.rss();
    let attacker = Attacker::new(&server, &mallory, times).await;
    let (mut failed, mut most) = (Vec::new(), 0);
    let mut held = Vec::new();
    println!("{:<22} {}", "idle", idle);
    for (name, attack) in ATTACKS {
        // Earlier attacks stay active, so that in the end all of them run at once.
        held.push(attack(attacker.clone()).await);
        let few = if is_long() { samples } else { 4 };
        let loaded = measure(&client, &session, few).await;
        most = most.max(server.rss());
        println!("{name:<22} {loaded}, server +{} MiB", most.saturating_sub(before) >> 20);
        failed.extend(worse(name, &idle, &loaded));
    }
    let loaded = measure(&client, &session, samples).await;
    most = most.max(server.rss());
    let growth = most.saturating_sub(before);
    println!("{:<22} {loaded}, server +{} MiB", "all at once", growth >> 20);
    failed.extend(worse("all at once", &idle, &loaded));
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(growth < GROWTH, "the server grew by {} MiB", growth >> 20);
    drop(held);
}

/// The latencies that grew more than they may.
fn worse(attack: &str, idle: &Latencies, loaded: &Latencies) -> Vec<String> {
    let compared = idle.p99s().into_iter().zip(loaded.p99s());
    let slower = compared.filter(|((_, idle), (_, loaded))| *loaded > (*idle * FACTOR).max(FLOOR));
    slower
        .map(|((what, idle), (_, loaded))| format!("{attack}: {what} {idle:?}, now {loaded:?}"))
        .collect()
}
