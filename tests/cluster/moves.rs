//! Sessions that go on on another node: after hibernation, and when their node is drained.

use belljar_testkit::cluster::Cluster;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;
use serde_json::json;

use crate::{answered, skip_without_cluster};

/// Waits until the snapshot of a session is in S3 and no node owns the session.
pub(crate) async fn is_released(cluster: &Cluster, session: &Session) {
    let released = format!("select owner is null from sessions where id = '{}'", session.id);
    cluster.postgres.returns(&released, "t").await;
}

#[tokio::test]
async fn a_session_wakes_on_another_node() {
    skip_without_cluster!();
    let cluster = Cluster::with(2, 1).await;
    let session = cluster.client(0).session_with(json!({})).await;
    session.printed("x = [1, 2]; open('f', 'w').write('kept')").await;
    let first = cluster.owner(&session.id).expect("an owner");
    let asleep = session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
    assert_eq!(asleep["state"], "hibernated", "{asleep:#}");
    is_released(&cluster, &session).await;
    assert_eq!(session.show().await["state"], "hibernated");
    cluster.nodes[first].terminate().await;
    let result =
        answered(&session, json!({"code": "x.append(3); print(x, open('f').read())"})).await;
    assert_eq!(
        (&result["stdout"], &result["kernel_state"]),
        (&json!("[1, 2, 3] kept\n"), &json!("kept")),
        "{result:#}"
    );
    assert_eq!(cluster.owner(&session.id), Some(1 - first));
}

/// As if another node had made the snapshot: one with fewer processor features, and then one with a feature that no
/// node has.
#[tokio::test]
async fn memory_wakes_where_the_processor_has_all_features_and_else_only_files() {
    skip_without_cluster!();
    let cluster = Cluster::with(1, 1).await;
    let session = cluster.client(0).session_with(json!({})).await;
    session.printed("x = 41; open('f', 'w').write('kept')").await;
    for (features, kernel, printed) in
        [("", "kept", "True kept\n"), ("telepathy,", "lost", "False kept\n")]
    {
        session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
        is_released(&cluster, &session).await;
        let from = r#""class":"(\S+ \S+) \S* "#;
        let to = format!(r#""class":"\1 {features} "#);
        cluster.postgres.query(&format!(
            "update sessions set snapshot = regexp_replace(snapshot, '{from}', '{to}')"
        ));
        let result =
            answered(&session, json!({"code": "print('x' in globals(), open('f').read())"})).await;
        assert_eq!(
            (&result["stdout"], &result["kernel_state"]),
            (&json!(printed), &json!(kernel)),
            "{result:#}"
        );
        if kernel == "lost" {
            let reason = result["reason"].as_str().unwrap_or_default();
            assert!(reason.contains("this machine lacks telepathy"), "{result:#}");
        }
    }
}

#[tokio::test]
async fn checkpoints_move_with_their_session() {
    skip_without_cluster!();
    let cluster = Cluster::with(2, 1).await;
    let session = cluster.client(0).session_with(json!({"checkpoints": true})).await;
    let mut execs = Vec::new();
    for n in 1..=2 {
        let code = format!("x = {n}; open('f', 'w').write('{n}')");
        let result = answered(&session, json!({"code": code})).await;
        assert_eq!(result["checkpoint"], true, "{result:#}");
        execs.push(text(&result["exec_id"]).to_owned());
    }
    let first = cluster.owner(&session.id).expect("an owner");
    cluster.nodes[first].terminate().await;
    is_released(&cluster, &session).await;
    let listed = session.client.get(&session.path("/checkpoints")).await.json(200);
    let of = |index: usize| listed["checkpoints"][index]["exec_id"].clone();
    assert_eq!([of(0), of(1)], [json!(execs[0]), json!(execs[1])], "{listed:#}");
    let ask = json!({"exec_id": execs[0]});
    session.client.post(&session.path("/restore"), ask).await.json(200);
    let result = answered(&session, json!({"code": "print(x, open('f').read())"})).await;
    assert_eq!(
        (&result["stdout"], &result["kernel_state"]),
        (&json!("1 1\n"), &json!("kept")),
        "{result:#}"
    );
    assert_eq!(cluster.owner(&session.id), Some(1 - first));
    // The one that was not fetched is still in S3.
    let ask = json!({"exec_id": execs[1]});
    session.client.post(&session.path("/restore"), ask).await.json(200);
    assert_eq!(session.printed("print(x)").await, "2\n");
}

#[tokio::test]
async fn a_drained_node_keeps_all_its_sessions() {
    skip_without_cluster!();
    let mut cluster = Cluster::with(1, 1).await;
    let client = cluster.client(0);
    let mut sessions = Vec::new();
    for n in 0..4 {
        let session = client.session_with(json!({})).await;
        session.printed(&format!("x = {n}; open('f', 'w').write('{n}')")).await;
        sessions.push(session);
    }
    cluster.add_node().await;
    cluster.has_ready_nodes(2).await;
    cluster.nodes[0].terminate().await;
    for (n, session) in sessions.iter().enumerate() {
        let result = answered(session, json!({"code": "print(x, open('f').read())"})).await;
        assert_eq!(result["stdout"], format!("{n} {n}\n"), "{result:#}");
        assert_eq!(result["kernel_state"], "kept", "{result:#}");
        assert_eq!(cluster.owner(&session.id), Some(1));
    }
    cluster.nodes[0].start().await;
    cluster.has_ready_nodes(2).await;
    eventually("the node creates sessions again", async || {
        let session = client.session_with(json!({})).await;
        cluster.owner(&session.id) == Some(0)
    })
    .await;
}
