//! Where artifacts appear by name: next to a session on disk, and in the directory of a run.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::json;

use super::ArtifactSession as _;
use super::{blobs, list, only, reply};
use belljar_testkit::server::Server;
use belljar_testkit::values::{names, text};

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).ino()
}

fn content(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[tokio::test]
async fn names_beside_a_session_are_names_of_the_content() {
    let server = Server::start().await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    let shown = server.path("sessions").join(&session.id).join("artifacts");
    session.leaves("a", "one").await;
    let [blob] = &blobs(&server.installation)[..] else { panic!("one content") };
    assert_eq!(inode(blob), inode(&shown.join("a")), "no second copy");
    session.leaves("b", "one").await;
    assert_eq!((inode(blob), blobs(&server.installation).len()), (inode(&shown.join("b")), 1));
    session.leaves("a", "two").await;
    assert_eq!(
        (content(&shown.join("a")), content(&shown.join("b"))),
        ("two".into(), "one".into())
    );
    // A file replaces a folder, and a folder replaces a file.
    session.shell("cd artifacts; rm -rf a; mkdir a; echo inner > a/inner").await;
    assert_eq!(content(&shown.join("a/inner")), "inner\n");
    session.shell("cd artifacts; rm -rf a; echo outer > a").await;
    assert_eq!(content(&shown.join("a")), "outer\n");
    assert_eq!(names(&shown), ["a", "b"]);
    // The sandbox sees none of this: its directory is a different one.
    assert_eq!(session.inside().await, "");
}

/// A newer artifact with the same name keeps the name in use.
#[tokio::test]
async fn a_name_stays_as_long_as_an_artifact_has_it() {
    let server = Server::start().await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    let shown = server.path("sessions").join(&session.id).join("artifacts/a");
    let forget = async |result: &serde_json::Value| {
        let path = format!("/v1/artifacts/{}", text(&only(result)["id"]));
        assert_eq!(server.delete(&path).await.status, 204);
        server.delete(&path).await.error(404, "artifact_not_found");
    };
    let first = session.leaves("a", "same").await;
    let second = session.leaves("a", "same").await;
    forget(&first).await;
    assert_eq!(content(&shown), "same");
    let third = session.leaves("a", "other").await;
    forget(&second).await;
    assert_eq!(content(&shown), "other");
    forget(&third).await;
    assert!(!shown.exists());
}

#[tokio::test]
async fn names_are_harmless_whatever_they_are_inside() {
    let server = Server::start().await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    let shown = server.path("sessions").join(&session.id).join("artifacts");
    // The escaped form of one name is the literal name of another.
    let code = "import os\nos.chdir('/session/artifacts')\n\
                for name in [b'line\\nbreak', b'line%0Abreak', b'\\xff\\xfe', b'...', b'..x', b'-rf',\n\
                \x20            b'\\x1b[31m', b'x' * 255, b'\\x01' * 255, '\\u202egpj.exe'.encode()]:\n\
                \x20   with open(name, 'wb') as f: f.write(name)";
    let result = session.python(code).await;
    assert_eq!(result["status"], "ok", "{result:#}");
    assert_eq!(list(&result["artifacts"]).len(), 10, "{result:#}");
    let directory = server.path("sessions").join(&session.id);
    assert_eq!(names(&directory).iter().filter(|name| name.starts_with('.')).count(), 0);
    let long = "x".repeat(255);
    let mut expected = vec!["%1B[31m", "%FF%FE", "-rf", "...", "..x", "line%0Abreak", &long];
    expected.push("\u{202e}gpj.exe");
    let mut found = names(&shown);
    found.sort();
    expected.sort_unstable();
    assert_eq!(found, expected, "the longest cannot be shown, and of two alike one");
    let mut hosts = Vec::new();
    for artifact in list(&result["artifacts"]) {
        let host = Path::new(text(&artifact["host_path"]));
        assert!(host.starts_with(&shown) || host.starts_with(server.path("blobstore")));
        assert_eq!(artifact["size"], fs::metadata(host).expect("it is there").len());
        hosts.push(fs::read(host).expect("a file"));
    }
    hosts.sort();
    hosts.dedup();
    assert_eq!(hosts.len(), 10, "each host path has the content of its own file");
}

#[tokio::test]
async fn a_run_has_a_directory_of_its_own() {
    let server = Server::start().await;
    let code = "import os\nos.mkdir('/work/artifacts/sub')\n\
                open('/work/artifacts/sub/a', 'w').write('x')\nopen('/work/artifacts/b', 'w').write('x')";
    let result = server.post("/v1/run", json!({"code": code})).await.json(200);
    assert_eq!(reply(&result), ["/work/artifacts/b", "/work/artifacts/sub/a"]);
    let id = text(&result["exec_id"]);
    let outputs = server.path("outputs").join(id);
    let [blob] = &blobs(&server.installation)[..] else { panic!("one content") };
    assert_eq!(inode(&outputs.join("sub/a")), inode(blob));
    assert_eq!(inode(&outputs.join("b")), inode(blob));
    for artifact in list(&result["artifacts"]) {
        assert_eq!(server.get(&super::link(artifact)).await.text(200), "x");
        let forget = format!("/v1/artifacts/{}", text(&artifact["id"]));
        assert_eq!(server.delete(&forget).await.status, 204);
    }
    assert!(!outputs.exists() && server.path("outputs").is_dir(), "empty directories go as well");
    let nothing = server.post("/v1/run", json!({"code": "1"})).await.json(200);
    assert!(!server.path("outputs").join(text(&nothing["exec_id"])).exists());
}
