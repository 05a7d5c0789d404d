//! Quotas for artifacts, and the reasons that are reported when one is exceeded.

use std::sync::Arc;

use serde_json::{Value, json};

use super::ArtifactSession as _;
use super::{link, list, only, reason, refused, reply};
use crate::keys::secret;
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::values::text;

#[tokio::test]
async fn what_is_too_much_stays_with_a_word() {
    let server = Server::with(&[
        ("BELLJAR_ARTIFACT_SIZE", "1K"),
        ("BELLJAR_SESSION_ARTIFACTS", "3"),
        ("BELLJAR_SESSION_ARTIFACT_BYTES", "2K"),
    ])
    .await;
    let session = server.session().await;
    let write = |name: &str, size: usize| format!("head -c {size} /dev/zero > artifacts/{name}; ");
    let large = session.shell(&(write("fits", 1024) + &write("large", 1025))).await;
    assert_eq!(reply(&large), ["fits"]);
    assert_eq!(reason(&large, "large"), "it has 1025 bytes, and an artifact may have 1024");
    assert_eq!(session.inside().await, "large");
    let bytes = session
        .shell(&("rm artifacts/large; ".to_owned() + &write("b", 1024) + &write("c", 1)))
        .await;
    assert_eq!(reply(&bytes), ["b"]);
    assert_eq!(reason(&bytes, "c"), "the artifacts of this session would exceed 2048 bytes");
    let id = text(&only(&bytes)["id"]);
    assert_eq!(session.python("1").await.get("artifacts_refused"), None, "it is said once");
    // After space is freed it is taken, although nothing else has changed.
    assert_eq!(server.delete(&format!("/v1/artifacts/{id}")).await.status, 204);
    assert_eq!(reply(&session.python("1").await), ["c"]);
    let count = session.shell("cd artifacts; touch d e f").await;
    assert_eq!(reply(&count), ["d"]);
    for name in ["e", "f"] {
        assert_eq!(reason(&count, name), "this session has 3 artifacts, which is the most");
    }
    assert_eq!(session.inside().await, "e f");
    // Another session has its own quota.
    assert_eq!(reply(&server.session().await.leaves("e", "x").await), ["e"]);
    assert_eq!(server.metric("belljar_artifacts_refused_total").await, 4.0);
}

#[tokio::test]
async fn the_sessions_of_a_tenant_never_have_more_than_it_may() {
    const MOST: usize = 20;
    let most = MOST.to_string();
    let installation = Arc::new(
        Installation::new().env("BELLJAR_TENANT_ARTIFACTS", &most).env("BELLJAR_POOL", "4"),
    );
    let keys =
        ["acme", "bell"].map(|tenant| installation.key(&["--name", tenant, "--tenant", tenant]));
    let server = installation.serve().await;
    let [acme, bell] = [0, 1].map(|n: usize| server.with_key(secret(&keys[n])));
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(acme.session_with(json!({})).await);
    }
    for round in 0..4 {
        let command =
            format!("cd artifacts; for n in $(seq 8); do echo {round}$n > {round}$n; done");
        let leaving = sessions.iter().cloned().map(|session| {
            let command = command.clone();
            tokio::spawn(async move { session.shell(&command).await })
        });
        let mut results: Vec<Value> = Vec::new();
        for left in leaving.collect::<Vec<_>>() {
            results.push(left.await.expect("no panic"));
        }
        let taken: Vec<&Value> =
            results.iter().flat_map(|result| list(&result["artifacts"])).collect();
        assert_eq!(taken.len(), MOST, "round {round}: {results:#?}");
        for (_, reason) in results.iter().flat_map(refused) {
            assert_eq!(reason, "this tenant has 20 artifacts, which is the most");
        }
        let listed = acme.get("/v1/artifacts?limit=1000").await.json(200);
        assert_eq!(list(&listed["artifacts"]).len(), MOST);
        // Other tenants are not affected.
        assert_eq!(reply(&bell.session_with(json!({})).await.leaves("x", "x").await), ["x"]);
        for session in &sessions {
            session.shell("rm -f artifacts/*").await;
        }
        for artifact in list(&acme.get("/v1/artifacts?limit=1000").await.json(200)["artifacts"]) {
            acme.delete(&format!("/v1/artifacts/{}", text(&artifact["id"]))).await;
        }
    }
}

#[tokio::test]
async fn a_run_has_its_quota_too() {
    let server = Server::with(&[("BELLJAR_SESSION_ARTIFACTS", "1")]).await;
    let code = "for name in 'ab': open('/work/artifacts/' + name, 'w').close()";
    let result = server.post("/v1/run", json!({"code": code})).await.json(200);
    assert_eq!(only(&result)["name"], "a");
    assert_eq!(
        reason(&result, "/work/artifacts/b"),
        "this session has 1 artifacts, which is the most"
    );
    assert_eq!(server.get(&link(only(&result))).await.text(200), "");
}
