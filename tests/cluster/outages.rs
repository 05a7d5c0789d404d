//! Postgres or S3 is away for a while: nothing that was acknowledged is lost.

use std::time::{Duration, Instant};

use belljar_testkit::cluster::proxy::Mode;
use belljar_testkit::cluster::{Cluster, Plan};
use belljar_testkit::wait::eventually;
use serde_json::json;

use crate::moves::is_released;
use crate::{answered, skip_without_cluster};

/// A lease that is longer than the outage, as in production.
const LONG_LEASE: &str = "30";

#[tokio::test]
async fn work_goes_on_while_postgres_is_away() {
    skip_without_cluster!();
    let cluster = Plan::new(2, 1).env("BELLJAR_LEASE_S", LONG_LEASE).start().await;
    let client = cluster.client(0);
    let session = client.session_with(json!({})).await;
    let running = {
        let session = session.clone();
        let ask = json!({"code": "import time; time.sleep(5); print('done')", "exec_id": "long"});
        tokio::spawn(async move { session.exec(ask).await })
    };
    session.reaches("long", "running").await;
    cluster.postgres.stop_at_once().await;
    let gone = Instant::now();
    let mut refused = 0;
    while gone.elapsed() < Duration::from_secs(10) {
        let answer = client.post("/v1/sessions", json!({})).await;
        answer.error(503, "unavailable");
        answer.retry_after();
        refused += 1;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(refused > 5, "{refused} answers in 10 s");
    cluster.postgres.resume().await;
    let back = Instant::now();
    eventually("new sessions", async || client.post("/v1/sessions", json!({})).await.status == 201)
        .await;
    assert!(back.elapsed() < Duration::from_secs(2), "{} ms", back.elapsed().as_millis());
    // The client may have its answer, or gets it when it asks again.
    let _ = running.await.expect("a request that was answered");
    session.reaches("long", "finished").await;
    let info = session.exec_info("long").await;
    assert_eq!(info["result"]["stdout"], "done\n", "{info:#}");
    assert_eq!(session.printed("print('next')").await, "next\n");
}

#[tokio::test]
async fn gateways_and_nodes_that_start_without_postgres_wait_for_it() {
    skip_without_cluster!();
    let cluster = Cluster::with(1, 1).await;
    let client = cluster.client(0);
    let (node, gateway) = (&cluster.nodes[0], &cluster.gateways[0]);
    node.kill().await;
    gateway.kill().await;
    cluster.postgres.stop_at_once().await;
    node.start().await;
    gateway.start().await;
    eventually("both say what they wait for", async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        [node, gateway].iter().all(|member| member.log().contains("waiting for Postgres"))
    })
    .await;
    assert!(!node.has_died().await && !gateway.has_died().await);
    cluster.postgres.resume().await;
    cluster.has_ready_nodes(1).await;
    eventually("the gateway listens", async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        tokio::net::TcpStream::connect(gateway.gateway_address()).await.is_ok()
    })
    .await;
    eventually("new sessions", async || client.post("/v1/sessions", json!({})).await.status == 201)
        .await;
}

/// With a short lease sandboxes are frozen meanwhile, and go on when it is back.
#[tokio::test]
async fn an_outage_longer_than_the_lease_costs_no_session() {
    skip_without_cluster!();
    let cluster = Cluster::with(2, 2).await;
    let session = cluster.client(0).session_with(json!({})).await;
    session.printed("x = 7").await;
    cluster.postgres.stop_at_once().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    cluster.postgres.resume().await;
    let result = answered(&session, json!({"code": "print(x)"})).await;
    assert_eq!(
        (&result["stdout"], &result["kernel_state"]),
        (&json!("7\n"), &json!("kept")),
        "{result:#}"
    );
}

/// The standby has started long before, so the age of the server does not show that nodes could not renew their leases.
#[tokio::test]
async fn a_failover_to_a_standby_costs_no_session_and_nothing_acknowledged() {
    skip_without_cluster!();
    let cluster = Plan::new(2, 2).with_standby().start().await;
    let session = cluster.client(0).session_with(json!({})).await;
    session.printed("x = 7").await;
    let ask = json!({"code": "print(x)", "exec_id": "before"});
    assert_eq!(session.exec(ask.clone()).await.json(200)["stdout"], "7\n");
    for value in 8..10 {
        // A gateway that starts meanwhile does not know how long nodes could not renew their leases.
        cluster.gateways[1].kill().await;
        tokio::join!(cluster.postgres.fail_over(Duration::from_secs(9)), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            cluster.gateways[1].start().await;
        });
        let next = json!({"code": "x += 1; print(x)"});
        let result = answered(&session, next).await;
        assert_eq!(
            (&result["stdout"], &result["kernel_state"]),
            (&json!(format!("{value}\n")), &json!("kept")),
            "{result:#}"
        );
        let again = session.exec(ask.clone()).await.json(200);
        assert_eq!(again["stdout"], "7\n", "an end that was acknowledged is still known");
    }
}

#[tokio::test]
async fn a_session_hibernates_while_s3_is_away_and_loses_nothing() {
    skip_without_cluster!();
    let cluster = Cluster::with(2, 1).await;
    for mode in [Mode::Refuse, Mode::Fail] {
        let session = cluster.client(0).session_with(json!({})).await;
        session.printed("x = 9").await;
        cluster.s3.set(mode);
        let answer = session.client.post(&session.path("/hibernate"), json!({})).await;
        assert!(matches!(answer.status, 200 | 503), "{answer}");
        let owner = cluster.owner(&session.id);
        assert!(owner.is_some(), "its only snapshot is on its node");
        let result = answered(&session, json!({"code": "print(x)"})).await;
        assert_eq!(
            (&result["stdout"], &result["kernel_state"]),
            (&json!("9\n"), &json!("kept")),
            "{result:#}"
        );
        session.client.post(&session.path("/hibernate"), json!({})).await;
        // The session says that its snapshot is not in S3 yet.
        eventually("a warning about S3", async || {
            session.show().await["warnings"].to_string().contains("S3")
        })
        .await;
        cluster.s3.set(Mode::Pass);
        is_released(&cluster, &session).await;
        assert_eq!(answered(&session, json!({"code": "print(x)"})).await["stdout"], "9\n");
    }
}
