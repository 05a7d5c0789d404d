//! Artifacts whose content is in S3.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use hyper::Method;
use serde_json::Value;

use super::ArtifactSession as _;
use super::{ask, link, only, reason};
use belljar_testkit::installation::Installation;
use belljar_testkit::s3::{Fault, S3Server, SECRET};
use belljar_testkit::values::text;

fn installation(s3: &S3Server) -> Arc<Installation> {
    let settings = s3.settings();
    let installation = settings
        .iter()
        .fold(Installation::new(), |installation, (name, value)| installation.env(name, value));
    Arc::new(installation)
}

/// Removes the local copies, as if the server had moved to another machine.
fn forget_copies(installation: &Installation) {
    let mut find = Command::new("find");
    find.arg(installation.path("blobstore")).args(["-path", "*/cache/t*", "-print", "-delete"]);
    let found = find.output().expect("find runs");
    assert!(!found.stdout.is_empty(), "there were copies");
}

fn verify(installation: &Installation) -> Value {
    let command = installation.belljar(&["artifacts", "verify", "--json"]).output();
    serde_json::from_slice(&command.expect("it runs").stdout).expect("JSON")
}

#[tokio::test]
async fn content_is_stored_in_s3_and_served_from_there() {
    let s3 = S3Server::start();
    let installation = installation(&s3);
    let server = installation.serve().await;
    assert_eq!(server.get("/healthz").await.json(200)["blobs"], "ok");
    let result = server.session().await.leaves("digits", "0123456789").await;
    let artifact = only(&result);
    let (link, sha256) = (link(artifact), text(&artifact["sha256"]).to_owned());
    assert_eq!(fs::read_to_string(text(&artifact["host_path"])).expect("a copy"), "0123456789");
    let tenant =
        fs::read_dir(s3.file("blobs")).expect("contents").next().expect("one").expect("it");
    let object = tenant.path().join(&sha256);
    assert_eq!(fs::read_to_string(&object).expect("the object"), "0123456789");
    server.terminate().await;
    forget_copies(&installation);
    let server = installation.serve().await;
    let part = ask(&server, Method::GET, &link, &[("range", "bytes=3-5")]).await;
    assert_eq!(part.text(206), "345");
    assert_eq!(server.get(&link).await.text(200), "0123456789");
    assert_eq!(verify(&installation)["lost"].as_array().map(Vec::len), Some(0));
    server.terminate().await;
    fs::write(&object, "9876543210").expect("the object is changed");
    assert_eq!(verify(&installation)["lost"].as_array().map(Vec::len), Some(1));
    forget_copies(&installation);
    let server = installation.serve().await;
    server.get(&link).await.error(500, "artifact_damaged");
}

#[tokio::test]
async fn a_server_whose_s3_fails_says_so_and_goes_on() {
    let s3 = S3Server::start();
    let installation = installation(&s3);
    let server = installation.serve().await;
    let session = server.session().await;
    let stored = link(only(&session.leaves("one", "1").await));
    s3.fail(Fault::Refuse, usize::MAX);
    let result = session.leaves("two", "2").await;
    assert_eq!(result["status"], "ok", "{result:#}");
    assert!(result["artifacts"].as_array().is_none_or(Vec::is_empty), "{result:#}");
    let why = reason(&result, "/session/artifacts");
    assert!(why.contains("BELLJAR_BLOBS_URL") && !why.contains(SECRET), "{why}");
    assert_eq!(server.get(&stored).await.text(200), "1", "there is a copy");
    forget_copies(&installation);
    assert!(server.get(&stored).await.retry_after() > 0);
    server.get(&stored).await.error(503, "unavailable");
    s3.recover();
    assert_eq!(server.get(&stored).await.text(200), "1");
    let later = session.leaves("three", "3").await;
    assert!(super::reply(&later).contains(&"three"), "{later:#}");
    assert!(!server.terminate().await.contains(SECRET));

    s3.fail(Fault::Refuse, usize::MAX);
    let doctor = installation.belljar(&["doctor", "--json"]).output().expect("it runs");
    let doctor: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let findings = doctor["findings"].as_array().expect("findings");
    let s3_finding = findings.iter().find(|one| one["feature"] == "artifacts in S3").expect("one");
    assert_eq!(s3_finding["state"], "weak");
    assert!(text(&s3_finding["detail"]).contains("AWS_ACCESS_KEY_ID"), "{s3_finding:#}");
    let server = installation.serve().await;
    assert_eq!(server.get("/healthz").await.json(200)["blobs"], "cannot be reached");
}
