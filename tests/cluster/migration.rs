//! The move of a single server to a cluster, with `belljar migrate`.

use std::process::Command;
use std::sync::Arc;

use belljar_testkit::cluster::{Cluster, Plan};
use belljar_testkit::installation::Installation;
use belljar_testkit::s3::Fault;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;
use serde_json::json;

use crate::{answered, skip_without_cluster};

/// The certificates that the sandbox trusts.
const TRUSTED: &str = "import hashlib, os; print(hashlib.sha256(open(os.environ['SSL_CERT_FILE'], 'rb').read()).hexdigest())";

/// `belljar migrate` with the settings of the cluster.
async fn migrate(server: &Installation, cluster: &Cluster, without: &[&str]) -> (bool, String) {
    let mut command: Command = server.belljar(&["migrate"]);
    command.envs(cluster.env().iter().cloned());
    for name in without {
        command.env_remove(name);
    }
    // Not on this thread, which serves S3.
    let running = tokio::task::spawn_blocking(move || command.output().expect("belljar starts"));
    let output = running.await.expect("no panic");
    let said =
        [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned());
    (output.status.success(), said.concat())
}

/// A node writes it when it has its lease, before it serves.
async fn owner_in_s3(cluster: &Cluster) -> String {
    let read = || std::fs::read_to_string(cluster.object("owner"));
    eventually("the content in S3 has an owner", async || read().is_ok()).await;
    read().expect("an owner").trim().to_owned()
}

fn owner_in_postgres(cluster: &Cluster) -> String {
    let sql = "select convert_from(value, 'UTF8') from secrets where name = 'artifact-catalog'";
    cluster.postgres.query(sql).trim().to_owned()
}

#[tokio::test]
async fn a_sleeping_session_of_a_single_server_wakes_in_the_cluster() {
    skip_without_cluster!();
    const NETWORK: (&str, &str) = ("BELLJAR_MAX_NETWORK", "example.test");
    let mut cluster = Plan::new(0, 0).env(NETWORK.0, NETWORK.1).start().await;
    let installation = Arc::new(Installation::new().env(NETWORK.0, NETWORK.1));
    let server = installation.serve().await;
    let ask = json!({"network": {"allow": ["example.test"]}});
    let single = server.session_with(ask).await;
    let code = "x = [1, 2]; open('f', 'w').write('kept'); \
                open('/session/artifacts/a.txt', 'w').write('content')";
    let made = single.python(code).await;
    let artifact = text(&made["artifacts"][0]["id"]).to_owned();
    let link = text(&made["artifacts"][0]["url"]).to_owned();
    let trusted = single.printed(TRUSTED).await;
    let asleep = single.client.post(&single.path("/hibernate"), json!({})).await.json(200);
    assert_eq!(asleep["state"], "hibernated", "{asleep:#}");
    server.terminate().await;

    let (ok, said) = migrate(&installation, &cluster, &["BELLJAR_BLOBS_URL"]).await;
    assert!(ok && said.contains("BELLJAR_BLOBS_URL is not set"), "{said}");
    assert!(said.contains("1 sessions sleep with their snapshots on this machine"), "{said}");
    cluster.fail_s3("PUT", Fault::Refuse, 1);
    let (ok, said) = migrate(&installation, &cluster, &[]).await;
    assert!(!ok && said.contains("refused to put"), "{said}");
    let (ok, said) = migrate(&installation, &cluster, &[]).await;
    assert!(ok && said.contains("1 contents copied"), "{said}");
    assert!(said.contains("1 sleeping sessions copied"), "{said}");
    // A second run finds nothing to do.
    let (ok, said) = migrate(&installation, &cluster, &[]).await;
    assert!(ok && said.contains("0 contents copied, 1 were in S3 already"), "{said}");
    assert!(said.contains("0 sleeping sessions copied"), "{said}");

    for _ in 0..2 {
        cluster.add_node().await;
    }
    cluster.has_ready_nodes(2).await;
    cluster.key = cluster.make_key(&["--name", "test"]);
    cluster.add_gateway().await;
    let moved = Session::of(&cluster.client(0), &single.id);
    let code = "x.append(3); print(x, open('f').read())";
    let result = answered(&moved, json!({"code": code})).await;
    assert_eq!(
        (&result["stdout"], &result["kernel_state"]),
        (&json!("[1, 2, 3] kept\n"), &json!("kept")),
        "{result:#}"
    );
    assert_eq!(moved.printed(TRUSTED).await, trusted);
    let url = format!("/v1/artifacts/{artifact}/url");
    let fresh = moved.client.post(&url, json!({})).await.json(200);
    // The link that the single server signed works too.
    for link in [&link, text(&fresh["url"])] {
        let at = link.find("/artifacts/").expect("a link");
        assert_eq!(moved.client.get(&link[at..]).await.text(200), "content");
    }
    assert_eq!(owner_in_s3(&cluster).await, owner_in_postgres(&cluster));
}

#[tokio::test]
async fn all_nodes_share_the_content_in_s3_and_other_installations_do_not() {
    skip_without_cluster!();
    let cluster = Cluster::with(2, 1).await;
    assert_eq!(owner_in_s3(&cluster).await, owner_in_postgres(&cluster));
    let mut other = Installation::new();
    for (name, value) in cluster.env() {
        if name == "BELLJAR_BLOBS_URL" || name.starts_with("AWS_") {
            other = other.env(name, value);
        }
    }
    let other = Arc::new(other);
    let said = other.refusal().await;
    assert!(said.contains("the content of another catalog of artifacts"), "{said}");
    let (ok, said) = migrate(&other, &cluster, &[]).await;
    assert!(!ok && said.contains("records of another server"), "{said}");
}

#[tokio::test]
async fn a_session_trusts_the_same_certificates_on_every_node() {
    skip_without_cluster!();
    let cluster = Plan::new(2, 1).env("BELLJAR_MAX_NETWORK", "example.test").start().await;
    let ask = json!({"network": {"allow": ["example.test"]}});
    let session = cluster.client(0).session_with(ask).await;
    let trusted = session.printed(TRUSTED).await;
    let first = cluster.owner(&session.id).expect("an owner");
    cluster.nodes[first].terminate().await;
    let result = answered(&session, json!({"code": TRUSTED})).await;
    assert_eq!(result["stdout"], trusted, "{result:#}");
    assert_eq!(cluster.owner(&session.id), Some(1 - first));
}
