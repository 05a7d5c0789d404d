//! Artifacts are separated by tenant.

use std::sync::Arc;

use hyper::Method;
use serde_json::json;

use super::ArtifactSession as _;
use super::{blobs, link, only, reply};
use crate::keys::{secret, with_keys};
use belljar_testkit::client::Client;
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::values::text;

#[tokio::test]
async fn identical_content_is_kept_once_per_tenant() {
    let (server, keys) =
        with_keys(&[&["--name", "a", "--tenant", "acme"], &["--name", "b", "--tenant", "bell"]])
            .await;
    let [acme, bell] = [0, 1].map(|n: usize| server.with_key(secret(&keys[n])));
    let (one, two) = (acme.session_with(json!({})).await, acme.session_with(json!({})).await);
    let theirs = bell.session_with(json!({})).await;
    let first = one.leaves("a", "same").await;
    let second = two.leaves("b", "same").await;
    assert_eq!(only(&first)["sha256"], only(&second)["sha256"]);
    assert_ne!(only(&first)["id"], only(&second)["id"]);
    assert_eq!(only(&first)["host_path"], only(&second)["host_path"]);
    assert_eq!(blobs(&server.installation).len(), 1);
    let foreign = theirs.leaves("c", "same").await;
    assert_ne!(only(&foreign)["host_path"], only(&first)["host_path"]);
    assert_eq!(blobs(&server.installation).len(), 2);

    // Each tenant sees its own artifacts, and learns nothing about those of others.
    let get = async |who: &Client, path: &str| who.get(path).await;
    assert_eq!(reply(&get(&acme, "/v1/artifacts").await.json(200)), ["b", "a"]);
    assert_eq!(reply(&get(&bell, "/v1/artifacts").await.json(200)), ["c"]);
    let by_session = format!("/v1/artifacts?session={}", one.id);
    assert_eq!(reply(&get(&bell, &by_session).await.json(200)), [""; 0]);
    let id = text(&only(&first)["id"]);
    let unknown = "art_00000000000000000000000000000000";
    for (method, path) in [(Method::GET, ""), (Method::DELETE, ""), (Method::POST, "/url")] {
        let ask = async |id: &str| {
            let path = format!("/v1/artifacts/{id}{path}");
            let body = if method == Method::POST { "{}" } else { "" };
            bell.send(bell.request(method.clone(), &path, body)).await
        };
        let (theirs, nobodys) = (ask(id).await, ask(unknown).await);
        let message = theirs.error(404, "artifact_not_found").replace(id, "");
        assert_eq!(message, nobodys.error(404, "artifact_not_found").replace(unknown, ""));
    }
    let before = format!("/v1/artifacts?before={id}");
    get(&bell, &before).await.error(404, "artifact_not_found");
    get(&bell, &one.path("/artifacts")).await.error(404, "session_not_found");
    // The artifact still exists, and a link needs no key.
    assert_eq!(server.get(&link(only(&first))).await.text(200), "same");
    assert_eq!(bell.get(&link(only(&first))).await.text(200), "same");
    for path in ["/v1/artifacts", &format!("/v1/artifacts/{id}")] {
        server.get(path).await.error(401, "unauthorized");
    }
    let bare = format!("/artifacts/{id}");
    server.get(&bare).await.error(403, "link_invalid");
    acme.get(&bare).await.error(403, "link_invalid");
}

/// The second server's cleanup would remove every blob that its own database does not list.
#[tokio::test]
async fn a_server_leaves_the_content_of_another_alone() {
    let server = Server::start().await;
    let session = server.session().await;
    let kept = session.leaves("a", "precious").await;
    let blobstore = server.path("blobstore").display().to_string();
    let other = || Arc::new(Installation::new().env("BLOBSTORE_DIR", &blobstore));
    let refused = other().refusal().await;
    assert!(refused.contains("another server uses it"), "{refused}");
    let installation = server.installation.clone();
    server.terminate().await;
    let refused = other().refusal().await;
    assert!(refused.contains("artifacts.db") && refused.contains("BLOBSTORE_DIR"), "{refused}");
    let server = installation.serve().await;
    assert_eq!(server.get(&link(only(&kept))).await.text(200), "precious");
}
