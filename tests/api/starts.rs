//! Servers that cannot start report why, and change nothing.

use std::fs;
use std::net::TcpListener;
use std::sync::Arc;

use serde_json::json;

use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::wait::eventually;

#[tokio::test]
async fn a_place_that_is_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let installation = Arc::new(Installation::new().env("BELLJAR_LISTEN", &address));
    let refusal = installation.refusal().await;
    assert!(refusal.contains(&address) && refusal.contains("--listen"), "{refusal}");
    eventually("its helpers are gone too", async || installation.scratch().processes().is_empty())
        .await;
    drop(listener);
    let server = installation.serve().await;
    server.get("/healthz").await.json(200);
    // A second server on the same state directory is refused, whatever address it listens on.
    let second =
        installation.command(belljar_testkit::belljar(), &["serve", "--listen", "127.0.0.1:0"]);
    let refusal = installation.refusal_by(second).await;
    assert!(refusal.contains("another belljar server"), "{refusal}");
    assert!(refusal.contains(&format!("process {}", server.pid())), "{refusal}");
    let session = server.session().await;
    assert_eq!(session.printed("print('undisturbed')").await, "undisturbed\n");
}

#[tokio::test]
async fn a_database_that_is_damaged() {
    let server = Server::start().await;
    let session = server.session().await;
    let path = server.path("state/belljar.db");
    session.stop().await;
    let installation = Arc::clone(&server.installation);
    server.terminate().await;
    let whole = fs::read(&path).expect("a database");
    let mut scratched = whole.clone();
    scratched[4096..12288].fill(0xff);
    let half = &whole[..whole.len() / 2];
    for damaged in [&b""[..], b"not a database", half, &scratched] {
        fs::write(&path, damaged).expect("a file");
        let refusal = installation.refusal().await;
        assert!(refusal.contains("is damaged"), "{refusal}");
        assert!(refusal.contains(&path.display().to_string()), "{refusal}");
        assert!(fs::read(&path).expect("a file") == damaged, "it was touched");
        assert!(!installation.path("state/belljar.db-wal").exists(), "something was left");
    }
    // With the original file restored, everything is there.
    fs::write(&path, &whole).expect("a file");
    let server = installation.serve().await;
    let shown = server.get(&session.path("")).await.json(200);
    assert_eq!(shown["state"], "stopped");
}

#[tokio::test]
async fn a_state_directory_that_cannot_be_written() {
    let installation = Arc::new(Installation::new());
    let state = installation.path("state");
    fs::create_dir(&state).expect("a directory");
    let directory = state.display();
    let script = format!(
        "mount --bind '{directory}' '{directory}' && mount -o remount,ro,bind '{directory}' && \
         exec '{}' serve",
        belljar_testkit::belljar()
    );
    let refusal = installation
        .refusal_by(installation.command("unshare", &["-m", "sh", "-c", &script]))
        .await;
    assert!(refusal.contains(&directory.to_string()), "{refusal}");
    assert!(refusal.contains("Read-only file system"), "{refusal}");
    assert_eq!(refusal.lines().count(), 1, "one sentence: {refusal}");
    fs::remove_dir(&state).expect("it is empty");
    fs::write(&state, "a file").expect("a file");
    let refusal = installation.refusal().await;
    assert!(refusal.contains(&state.display().to_string()), "{refusal}");
    installation.has_no_traces().await;
}

#[tokio::test]
async fn a_server_is_ready_when_it_says_so() {
    let server = Server::start().await;
    eventually("it is ready", async || server.get("/readyz").await.status == 200).await;
    assert_eq!(server.get("/readyz").await.json(200), json!({"ready": true}));
    let health = server.get("/healthz").await.json(200);
    assert_eq!((&health["status"], &health["backend"]), (&json!("ok"), &json!("native")));
    assert_eq!(health["enforced"]["memory limit"], true);
    assert_eq!(health["sessions"], 0);
    server.session().await;
    assert_eq!(server.get("/healthz").await.json(200)["sessions"], 1);
}
