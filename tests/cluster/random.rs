//! Random faults while clients work; then the history is checked.
//!
//! `make test-cluster SECONDS=3600` runs for that long. A failure prints its seed and where the history and the logs are.
//! `make test-cluster SEED=7` causes the same faults again, as far as timing allows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_testkit::cluster::dice::Dice;
use belljar_testkit::cluster::{Cluster, Plan};
use belljar_testkit::skip;

use crate::checker;
use crate::faults::{Schedule, inject};
use crate::history::{Entry, Recorder};
use crate::workload::{BOUND, World};

const NODES: usize = 3;
const GATEWAYS: usize = 2;
const CLIENTS: u64 = 4;

/// How long `make test` causes faults.
const SECONDS: u64 = 40;

/// Faults at the same time.
const OVERLAP: usize = 2;

/// After the last fault the cluster recovers within this time.
const RECOVERY: Duration = Duration::from_secs(30);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| text.parse().expect(name))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_violate_no_promise() {
    if let Some(why) = belljar_testkit::cluster::is_impossible() {
        skip!("{why}");
    }
    let seconds = setting("CLUSTER_SECONDS").unwrap_or(SECONDS);
    let seed = setting("CLUSTER_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("CLUSTER_SEED={seed} CLUSTER_SECONDS={seconds}");
    let plan = Plan::new(NODES, GATEWAYS).with_standby().env("BELLJAR_LOG", "info");
    let cluster = Arc::new(plan.start().await);
    let history = history_path(seed);
    let world = World::new(&cluster, Recorder::new(&history));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            tokio::spawn(
                Arc::clone(&world).client(Dice::new(seed.wrapping_mul(31).wrapping_add(n))),
            )
        })
        .collect();
    let supervisor = tokio::spawn(supervise(Arc::clone(&cluster)));
    let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
    let schedule = Schedule::new(seed, NODES, GATEWAYS);
    let counts = inject(&cluster, || Arc::clone(&world), schedule, end, OVERLAP).await;
    recover(&cluster).await;
    world.finish();
    for client in clients {
        client.await.expect("a client that works");
    }
    supervisor.abort();
    world.look_at_all(&mut Dice::new(seed)).await;
    let entries = world.recorder.entries();
    let violations = checker::check(&entries, BOUND);
    let wrong = world.wrong_answers();
    let faults: u64 = counts.values().sum();
    let executions = checker::executions(&entries);
    println!(
        "seed {seed}: {faults} faults {counts:?}; {executions} executions; {}; violations {}",
        world.summary(),
        violations.len() + wrong.len()
    );
    if !violations.is_empty() || !wrong.is_empty() {
        let logs = cluster.keep_logs();
        let _ = std::fs::copy(&history, logs.join("history.jsonl"));
        let shown = violations.iter().take(20);
        panic!(
            "seed {seed}: {:#?}\n{:#?}\nlogs and history: {}",
            shown.collect::<Vec<_>>(),
            wrong.iter().take(20).collect::<Vec<_>>(),
            logs.display()
        );
    }
    assert!(executions > seconds, "clients hardly worked: {executions} executions");
}

/// Checks a history that a run has recorded: `CLUSTER_HISTORY=file cargo nextest run --test cluster --run-ignored only -E
/// 'test(recorded)' --no-capture`. A last line that was cut off is left out.
#[test]
#[ignore = "needs a recorded history"]
fn a_recorded_history_violates_no_promise() {
    let path = std::env::var("CLUSTER_HISTORY").expect("CLUSTER_HISTORY");
    let text = std::fs::read_to_string(path).expect("a history");
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let entries: Vec<Entry> =
        whole.lines().map(|line| serde_json::from_str(line).expect("an entry")).collect();
    println!("{} entries, {} executions", entries.len(), checker::executions(&entries));
    let violations = checker::check(&entries, BOUND);
    assert!(violations.is_empty(), "{} {violations:#?}", violations.len());
}

/// Starts members again that end by themselves, for example because Postgres was away when they started.
async fn supervise(cluster: Arc<Cluster>) {
    loop {
        for member in cluster.nodes.iter().chain(&cluster.gateways) {
            member.restart_if_ended().await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Waits until all nodes and gateways serve again.
async fn recover(cluster: &Cluster) {
    let begun = Instant::now();
    cluster.has_ready_nodes(NODES).await;
    for gateway in 0..GATEWAYS {
        cluster.answers(gateway).await;
    }
    let took = begun.elapsed();
    assert!(took < RECOVERY, "the cluster needed {} s to recover", took.as_secs());
}

fn history_path(seed: u64) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cluster-history-{seed}.jsonl"))
}
