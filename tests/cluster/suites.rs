//! Test suites of other languages, against a gateway with three nodes: `make test-gateway`.

use std::process::Command;

use belljar_testkit::cluster::Plan;
use serde_json::{Map, Value, json};

use crate::skip_without_cluster;

/// The shell command that runs the suites.
const COMMAND: &str = "CLUSTER_COMMAND";

/// The file that tells the suites how to reach the cluster: an API key, and the settings of a gateway.
const FILE: &str = "CLUSTER_TO_TEST";

/// A command has minutes, and the machine is busy with it. So the lease is longer than in other tests.
const LEASE_S: &str = "30";

/// The suites start gateways themselves, because some of their tests kill the server that they use.
#[tokio::test]
#[ignore = "runs the command in CLUSTER_COMMAND; make test-gateway does that"]
async fn a_command_beside_three_nodes() {
    skip_without_cluster!();
    let command = std::env::var(COMMAND).expect("a command in CLUSTER_COMMAND");
    let cluster = Plan::new(3, 0).env("BELLJAR_LEASE_S", LEASE_S).start().await;
    let env: Map<String, Value> =
        cluster.env().iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("cluster.json");
    let settings = json!({"key": cluster.key, "env": env});
    std::fs::write(&file, settings.to_string()).expect("a file");
    // This thread serves S3 to the nodes meanwhile.
    let status = tokio::task::spawn_blocking(move || {
        Command::new("sh").args(["-c", &command]).env(FILE, file).status().expect("a shell")
    });
    let status = status.await.expect("no panic");
    for node in &cluster.nodes {
        assert!(!node.has_died().await, "{} ended by itself", node.machine.name);
    }
    assert!(status.success(), "the command failed: {status}");
}
