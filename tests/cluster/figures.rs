//! What a cluster costs in comparison with a single server, in the same run: `make bench-cluster`.
//!
//! Everything runs on one machine: 3 nodes, 2 gateways, Postgres and S3, with the optimizations of `make demo`.

use std::time::{Duration, Instant};

use belljar_testkit::client::Client;
use belljar_testkit::cluster::{Cluster, Plan};
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use serde_json::json;

use crate::moves::is_released;
use crate::{answered, skip_without_cluster};

const ROUNDS: usize = 100;
const WAKES: usize = 20;

/// Sessions of the node that is drained.
const DRAINED: usize = 200;

#[tokio::test]
#[ignore = "prints figures; make bench-cluster runs it"]
async fn compared_with_a_single_server() {
    skip_without_cluster!();
    let single = Server::start().await;
    let cluster = Plan::new(3, 2).start().await;
    let (direct, gateway) = (single.client(), cluster.client(0));
    for (name, limit, one, many) in [
        ("a small request", "(limit 0.5 ms)", show(&direct).await, show(&gateway).await),
        ("create a session", "(limit 2x)", create(&direct).await, create(&gateway).await),
        ("execute", "", execute(&direct).await, execute(&gateway).await),
    ] {
        print(name, one, many, limit);
    }
    wakes(&cluster).await;
    drain(&cluster).await;
    failover(&cluster).await;
}

fn print(name: &str, one: Duration, many: Duration, limit: &str) {
    let ratio = many.as_secs_f64() / one.as_secs_f64();
    println!(
        "{name}: {one:.2?} single, {many:.2?} cluster, {ratio:.2}x, {:.2?} more {limit}",
        many.saturating_sub(one)
    );
}

/// The median.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn show(client: &Client) -> Duration {
    let session = client.session_with(json!({})).await;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        session.show().await;
        times.push(begun.elapsed());
    }
    session.stop().await;
    median(times)
}

async fn create(client: &Client) -> Duration {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let session = client.session_with(json!({})).await;
        times.push(begun.elapsed());
        session.stop().await;
    }
    median(times)
}

async fn execute(client: &Client) -> Duration {
    let session = client.session_with(json!({})).await;
    session.printed("x = 1").await;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        session.printed("print(x)").await;
        times.push(begun.elapsed());
    }
    session.stop().await;
    median(times)
}

/// A session that no node owns, and the node that had it.
async fn asleep(cluster: &Cluster) -> (Session, usize) {
    let session = cluster.client(0).session_with(json!({})).await;
    session.printed("x = list(range(100_000))").await;
    let owner = cluster.owner(&session.id).expect("an owner");
    session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
    is_released(cluster, &session).await;
    (session, owner)
}

/// A session of each node is put to sleep, and the nodes fetch from each other what most of their sessions share.
async fn share_layers(cluster: &Cluster) {
    for other in 0..cluster.nodes.len() {
        for node in (0..cluster.nodes.len()).filter(|node| *node != other) {
            set_state(cluster, node, "draining").await;
        }
        let (session, owner) = asleep(cluster).await;
        assert_eq!(owner, other);
        session.stop().await;
        for node in 0..cluster.nodes.len() {
            set_state(cluster, node, "ready").await;
        }
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
}

async fn wakes(cluster: &Cluster) {
    let (mut same, mut other) = (Vec::new(), Vec::new());
    share_layers(cluster).await;
    for round in 0..WAKES {
        let (session, owner) = asleep(cluster).await;
        let elsewhere = round % 2 == 1;
        if elsewhere {
            // The gateway chooses another node for it.
            set_state(cluster, owner, "draining").await;
        }
        let begun = Instant::now();
        answered(&session, json!({"code": "print(len(x))"})).await;
        let took = begun.elapsed();
        match cluster.owner(&session.id) == Some(owner) {
            true => same.push(took),
            false => other.push(took),
        }
        if elsewhere {
            set_state(cluster, owner, "ready").await;
        }
        session.stop().await;
    }
    if !same.is_empty() && !other.is_empty() {
        let (one, many) = (median(same), median(other));
        print("wake on the same node, on another", one, many, "(limit 5x)");
    }
}

/// Sets the state of a node in the database, and waits until the gateways know it.
async fn set_state(cluster: &Cluster, node: usize, state: &str) {
    let id = &cluster.nodes[node].machine.name;
    cluster.postgres.query(&format!("update nodes set state = '{state}' where id = '{id}'"));
    tokio::time::sleep(Duration::from_secs(2)).await;
}

async fn drain(cluster: &Cluster) {
    let mut sessions = Vec::new();
    // All of them are placed on the first node.
    for node in [1, 2] {
        set_state(cluster, node, "draining").await;
    }
    for _ in 0..DRAINED {
        let session = cluster.client(0).session_with(json!({"limits": {"memory": "96M"}})).await;
        session.printed("x = 1").await;
        sessions.push(session);
    }
    for node in [1, 2] {
        set_state(cluster, node, "ready").await;
    }
    let owned = sessions.iter().filter(|session| cluster.owner(&session.id) == Some(0)).count();
    let begun = Instant::now();
    cluster.nodes[0].terminate().await;
    println!("drain of {owned} sessions: {:.1?} (limit 30 s)", begun.elapsed());
    let begun = Instant::now();
    for session in &sessions {
        assert_eq!(answered(session, json!({"code": "print(x)"})).await["stdout"], "1\n");
    }
    println!("all of them wake on other nodes, one after the other: {:.1?}", begun.elapsed());
    cluster.nodes[0].start().await;
    cluster.has_ready_nodes(3).await;
    for session in sessions {
        session.stop().await;
    }
}

async fn failover(cluster: &Cluster) {
    let (session, _) = asleep(cluster).await;
    answered(&session, json!({"code": "x = 2"})).await;
    let owner = cluster.owner(&session.id).expect("an owner");
    cluster.nodes[owner].kill().await;
    let begun = Instant::now();
    answered(&session, json!({"code": "print(x)"})).await;
    println!("failover with a lease of 3 s: {:.1?} (with 30 s: 27 s more)", begun.elapsed());
    cluster.nodes[owner].start().await;
}
