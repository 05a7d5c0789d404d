//! Which artifacts and blobs are removed, and which must stay.

use std::time::Duration;

use serde_json::json;

use super::ArtifactSession as _;
use super::{blobs, link, only, reply};
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::eventually;

#[tokio::test]
async fn content_goes_with_the_last_artifact_that_has_it() {
    let server = Server::start().await;
    let (one, two) = (server.session().await, server.session().await);
    let (first, second) = (one.leaves("a", "same").await, two.leaves("b", "same").await);
    let other = one.leaves("c", "other").await;
    let forget = |result| format!("/v1/artifacts/{}", text(&only(result)["id"]));
    assert_eq!(server.delete(&forget(&first)).await.status, 204);
    server.get(&link(only(&first))).await.error(404, "artifact_not_found");
    assert_eq!(server.get(&link(only(&second))).await.text(200), "same");
    // Stored results do not change; the list has only the artifacts that still exist.
    assert_eq!(reply(&server.get(&one.path("/artifacts")).await.json(200)), ["c"]);
    assert_eq!(server.delete(&forget(&other)).await.status, 204);

    let installation = server.kill().await;
    let server = installation.serve().await;
    eventually("a sweep was there", async || blobs(&installation).len() == 1).await;
    assert_eq!(server.get(&link(only(&second))).await.text(200), "same");
    assert_eq!(server.delete(&forget(&second)).await.status, 204);
    let installation = server.kill().await;
    let server = installation.serve().await;
    eventually("a sweep was there", async || blobs(&installation).is_empty()).await;
    // The same content can be stored again.
    let one = Session::of(&server, &one.id);
    let again = one.leaves("a", "same").await;
    assert_eq!(server.get(&link(only(&again))).await.text(200), "same");
    assert_eq!(names(&installation.path("blobstore/incoming")), [""; 0]);
}

#[tokio::test]
async fn old_artifacts_are_forgotten() {
    let server = Server::with(&[("BELLJAR_ARTIFACT_RETENTION", "1")]).await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    let old = session.leaves("sub/old", "old").await;
    let shown = server.path("sessions").join(&session.id).join("artifacts/sub");
    assert_eq!(names(&shown), ["old"]);
    // Wait until it is old enough.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let installation = server.kill().await;
    let server = installation.serve().await;
    eventually("it is forgotten", async || server.get(&link(only(&old))).await.status == 404).await;
    server.get(&link(only(&old))).await.error(404, "artifact_not_found");
    eventually("its content is gone", async || blobs(&installation).is_empty()).await;
    assert_eq!(names(&shown), [""; 0]);
    assert_eq!(reply(&server.get("/v1/artifacts").await.json(200)), [""; 0]);
    let session = Session::of(&server, &session.id);
    let new = session.leaves("sub/old", "old").await;
    assert_eq!(server.get(&link(only(&new))).await.text(200), "old");
}
