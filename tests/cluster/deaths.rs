//! Nodes that are killed or stopped: their sessions go on from a snapshot or are said to be lost, and never run twice.

use std::time::{Duration, Instant};

use belljar_testkit::cluster::{Cluster, LEASE, TAKE_OVER};
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;
use serde_json::json;

use crate::moves::is_released;
use crate::{answer_after, answered, skip_without_cluster};

/// A session of which S3 has an earlier state: after execution 1 of 2.
async fn session_with_snapshot(cluster: &Cluster) -> Session {
    let session = cluster.client(0).session_with(json!({})).await;
    session.printed("x = [1]; open('f', 'w').write('1')").await;
    session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
    is_released(cluster, &session).await;
    session.printed("x.append(2); open('f', 'a').write('2')").await;
    session
}

/// The session continues after execution 1 and says so.
async fn went_back(session: &Session) {
    let result = answered(session, json!({"code": "print(x, open('f').read())"})).await;
    assert_eq!(result["stdout"], "[1] 1\n", "{result:#}");
    let shown = session.show().await;
    let warnings = shown["warnings"].to_string();
    assert!(warnings.contains("goes on from"), "{shown:#}");
}

#[tokio::test]
async fn sessions_of_a_killed_node_go_on_or_are_said_to_be_lost() {
    skip_without_cluster!();
    let mut cluster = Cluster::with(1, 1).await;
    let kept = session_with_snapshot(&cluster).await;
    let lost = cluster.client(0).session_with(json!({})).await;
    lost.printed("y = 1").await;
    cluster.add_node().await;
    cluster.has_ready_nodes(2).await;
    cluster.nodes[0].kill().await;
    let killed = Instant::now();
    went_back(&kept).await;
    let answer = answer_after(&lost, json!({"code": "print(y)"})).await;
    let message = answer.error(410, "session_ended");
    let took = killed.elapsed();
    assert!(took < TAKE_OVER, "it took {} s", took.as_secs());
    let shown = lost.show().await;
    assert_eq!(shown["state"], "failed", "{shown:#}");
    assert!(text(&shown["ended_because"]).contains("node"), "{message} {shown:#}");
    assert_eq!(cluster.owner(&kept.id), Some(1));
}

/// Otherwise it would get all new sessions, because it has the fewest.
#[tokio::test]
async fn a_node_that_cannot_build_sandboxes_says_so_and_leaves() {
    skip_without_cluster!();
    let cluster = Cluster::with(1, 0).await;
    let node = &cluster.nodes[0];
    node.terminate().await;
    let parent = node.installation.scratch().cgroup_parent();
    let limits =
        ["pids/", ""].map(|controller| format!("/sys/fs/cgroup/{controller}{parent}/pids.max"));
    let limit = limits.iter().find(|path| std::path::Path::new(path).exists()).expect("a cgroup");
    std::fs::write(limit, "0").expect("a limit");
    node.start().await;
    eventually("it ends", async || node.has_died().await).await;
    let log = node.log();
    assert!(log.contains("this machine cannot run sandboxes"), "{log}");
    cluster.postgres.returns("select state from nodes", "gone").await;
    std::fs::write(limit, "max").expect("a limit");
    node.start().await;
    cluster.has_ready_nodes(1).await;
}

/// A session with an execution, whose node hibernates it.
async fn asleep_on_its_node(cluster: &Cluster) -> Session {
    let session = cluster.client(0).session_with(json!({})).await;
    session.printed("x = [1]; open('f', 'w').write('1')").await;
    session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
    session
}

/// The session changes on node 0, which is killed. Another node says from which state it goes on.
async fn changes_are_said_to_be_lost(cluster: &mut Cluster, session: &Session) {
    let result = answered(session, json!({"code": "x.append(2); print(x)"})).await;
    assert_eq!(result["stdout"], "[1, 2]\n", "{result:#}");
    cluster.add_node().await;
    cluster.has_ready_nodes(2).await;
    cluster.nodes[0].kill().await;
    went_back(session).await;
}

#[tokio::test]
async fn a_session_that_woke_at_once_says_that_it_went_back() {
    skip_without_cluster!();
    let mut cluster = Cluster::with(1, 1).await;
    let session = asleep_on_its_node(&cluster).await;
    let pointer = format!("select snapshot is not null from sessions where id = '{}'", session.id);
    eventually("its snapshot is in S3", async || cluster.postgres.query(&pointer).trim() == "t")
        .await;
    changes_are_said_to_be_lost(&mut cluster, &session).await;
}

#[tokio::test]
async fn a_session_that_woke_after_a_restart_of_its_node_says_that_it_went_back() {
    skip_without_cluster!();
    let mut cluster = Cluster::with(1, 1).await;
    let session = asleep_on_its_node(&cluster).await;
    is_released(&cluster, &session).await;
    // The node has the session again, asleep, when it is killed.
    session.client.patch(&session.path(""), json!({"ttl": 900})).await.json(200);
    assert_eq!(cluster.owner(&session.id), Some(0));
    cluster.nodes[0].kill().await;
    cluster.nodes[0].start().await;
    cluster.has_ready_nodes(1).await;
    changes_are_said_to_be_lost(&mut cluster, &session).await;
}

#[tokio::test]
async fn a_node_that_is_started_again_in_time_keeps_its_sessions() {
    skip_without_cluster!();
    let cluster = Cluster::with(2, 1).await;
    let session = cluster.client(0).session_with(json!({})).await;
    session.printed("x = 5").await;
    let owner = cluster.owner(&session.id).expect("an owner");
    cluster.nodes[owner].kill().await;
    cluster.nodes[owner].start().await;
    let result = answered(&session, json!({"code": "print(x)"})).await;
    assert_eq!(
        (&result["stdout"], &result["kernel_state"]),
        (&json!("5\n"), &json!("kept")),
        "{result:#}"
    );
    assert_eq!(cluster.owner(&session.id), Some(owner));
}

/// The main process is stopped, and only the lease watchdog can act.
#[tokio::test]
async fn a_stopped_node_is_frozen_before_others_take_its_sessions() {
    skip_without_cluster!();
    let mut cluster = Cluster::with(1, 1).await;
    let session = session_with_snapshot(&cluster).await;
    let epoch = "select epoch from nodes where id = 'node-0'";
    let before: i64 = cluster.postgres.query(epoch).trim().parse().expect("a number");
    cluster.add_node().await;
    cluster.has_ready_nodes(2).await;
    cluster.nodes[0].pause().await;
    tokio::time::sleep(LEASE + Duration::from_millis(200)).await;
    assert!(cluster.nodes[0].is_frozen(), "the lease is over");
    assert_eq!(cluster.owner(&session.id), Some(0), "and the margin is not");
    went_back(&session).await;
    assert_eq!(cluster.owner(&session.id), Some(1));
    assert!(cluster.nodes[0].is_frozen());
    cluster.nodes[0].resume().await;
    eventually("its sandboxes are gone", async || cluster.nodes[0].sandboxes().is_empty()).await;
    cluster.has_ready_nodes(2).await;
    let after: i64 = cluster.postgres.query(epoch).trim().parse().expect("a number");
    assert!(after > before, "{before} {after}");
    assert_eq!(answered(&session, json!({"code": "print(x)"})).await["stdout"], "[1]\n");
}
