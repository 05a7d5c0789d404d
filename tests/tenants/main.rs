//! Tenants against tenants: one does its worst while what another waits for is measured.
//!
//! Attackers hold things and do not compute: whoever may use the processors may use them, and on a small
//! machine everybody else feels that. `make test-tenants` is the long form, with more of everything.

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

/// How much slower the slowest hundredth may become.
const FACTOR: u32 = 3;

/// What is fast enough on a machine with two processors that does much else, built for debugging, whatever
/// it was before: what one answer of 16 MiB takes to be read from the database.
const FLOOR: Duration = Duration::from_secs(1);

/// What the server may grow by while a tenant holds all it can: its share of memory for bodies, which is
/// 256 MiB; about as much for what is read from the database at once, and was; and buffers of connections.
const GROWTH: u64 = 640 << 20;

/// Much more of everything.
fn is_long() -> bool {
    std::env::var_os("BELLJAR_TENANTS_LONG").is_some_and(|value| value != "0")
}

/// A server, and the keys of who attacks and of who is measured.
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
        // What earlier ones hold is held to the end: at last, all of it at once.
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

/// What became slower than it may.
fn worse(attack: &str, idle: &Latencies, loaded: &Latencies) -> Vec<String> {
    let compared = idle.p99s().into_iter().zip(loaded.p99s());
    let slower = compared.filter(|((_, idle), (_, loaded))| *loaded > (*idle * FACTOR).max(FLOOR));
    slower
        .map(|((what, idle), (_, loaded))| format!("{attack}: {what} {idle:?}, now {loaded:?}"))
        .collect()
}
