//! Uploads that fail.

use std::fs;

use serde_json::json;

use super::DatasetSession as _;
use super::{incoming, numbered, serve};
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

#[tokio::test]
async fn an_upload_that_breaks_off_has_failed_and_leaves_nothing() {
    let server = serve(&[]).await;
    let session = server.session().await;
    for (name, headers, part) in [
        ("counted.csv", "Content-Length: 1000000", numbered(1, 300_000)),
        ("chunked.csv", "Transfer-Encoding: chunked", b"4\r\na,b\n\r\n".to_vec()),
        ("in/a/folder.csv", "Content-Length: 10", b"a,b".to_vec()),
        ("silent.csv", "Content-Length: 10", Vec::new()),
        ("nonsense.csv", "Transfer-Encoding: chunked", b"4\r\na,b\n\r\nzzzz\r\n".to_vec()),
    ] {
        let mut sending = session.begin_put(name, headers).await;
        sending.send(part).await;
        eventually("it has begun", async || !session.status(name).await.is_null()).await;
        drop(sending);
        eventually("it has failed", async || session.status(name).await == "FAILED").await;
        let failed = session.dataset(name).await;
        assert_eq!(failed["reason"], "the upload was interrupted", "{failed:#}");
        assert_eq!((failed.get("size"), failed.get("sha256")), (None, None), "{failed:#}");
    }
    eventually("nothing is incoming", async || incoming(&server.installation).is_empty()).await;
    assert_eq!(session.all_in("/session/data").await, Vec::<String>::new());
    // A retry works like a first upload.
    session.put("counted.csv", "a,b\n").await.json(200);
    let now = session.dataset("counted.csv").await;
    assert_eq!((&now["status"], now.get("reason")), (&json!("LOADED"), None));
    assert_eq!(session.all_in("/session/data").await, ["counted.csv"]);
}

/// A client may disconnect after it sent everything, without waiting for the response: the dataset
/// is then staged or has failed, but is never left pending.
#[tokio::test]
async fn a_client_that_leaves_early_leaves_nothing_half_done() {
    let server = serve(&[]).await;
    let session = server.session().await;
    let content = numbered(7, 8 << 20);
    for turn in 0..4 {
        let name = format!("left{turn}");
        let length = format!("Content-Length: {}", content.len());
        let mut sending = session.begin_put(&name, &length).await;
        sending.send(&content).await;
        // Disconnects at once, or while the server processes the upload.
        tokio::time::sleep(std::time::Duration::from_millis(turn * 40)).await;
        drop(sending);
        eventually("it is decided", async || {
            let status = session.status(&name).await;
            status == "LOADED" || status == "FAILED"
        })
        .await;
    }
    eventually("nothing hidden is left", async || {
        !session.all_in("/session/data").await.iter().any(|name| name.starts_with('.'))
    })
    .await;
    for name in session.all_in("/session/data").await {
        assert_eq!(session.status(&name).await, "LOADED");
        let sum = session.shell(&format!("sha256sum < /session/data/{name}")).await;
        assert!(text(&sum["stdout"]).starts_with(&super::sha256(&content)), "{sum:#}");
    }
    eventually("nothing is incoming", async || incoming(&server.installation).is_empty()).await;
}

#[tokio::test]
async fn a_server_that_is_killed_meanwhile_says_so_afterwards() {
    let server = serve(&[]).await;
    let session = server.session().await;
    session.put("whole.csv", "a\n1\n").await.json(200);
    let mut sending = session.begin_put("half.csv", "Content-Length: 1000000").await;
    sending.send(numbered(1, 500_000)).await;
    eventually("it is pending", async || session.status("half.csv").await == "PENDING").await;
    assert_eq!(incoming(&server.installation).len(), 1);
    let installation = server.kill().await;
    assert_eq!(incoming(&installation).len(), 1, "nobody could clear it away");
    drop(sending);

    let server = installation.serve().await;
    assert!(incoming(&installation).is_empty());
    // At once, while the server is still recovering the session: the request waits for that.
    let session = Session::of(&server, &session.id);
    assert_eq!(session.status("half.csv").await, "FAILED");
    let failed = session.dataset("half.csv").await;
    assert!(text(&failed["reason"]).contains("the server ended"), "{failed:#}");
    assert_eq!(session.status("whole.csv").await, "LOADED");
    assert_eq!(session.all_in("/session/data").await, ["whole.csv"]);
    let known = format!("again.csv?sha256={}", super::sha256("a\n1\n"));
    assert_eq!(session.put(&known, "").await.json(200)["cached"], true, "the cache survived");
    session.put("half.csv", "b\n").await.json(200);
    assert_eq!(session.status("half.csv").await, "LOADED");
}

#[tokio::test]
async fn a_server_that_is_killed_while_it_stages_leaves_nothing_hidden() {
    let server = serve(&[]).await;
    let session = server.session_with(json!({"limits": {"tmpfs": "256M"}})).await;
    session.put("folder/whole.csv", "a\n1\n").await.json(200);
    session.shell("echo mine > /session/data/.mine.part").await;
    let code = "import os\nprint('looking', flush=True)\nroot = '/session/data/folder'\n\
                while len(os.listdir(root)) < 2: pass\n\
                print('begun', flush=True)";
    let looking = session.begin("looking", "running", json!({"code": code})).await;
    session.has_printed("looking", "looking").await;
    let sender = session.clone();
    let content = numbered(1, 64 << 20);
    let sending = tokio::spawn(async move {
        let length = format!("Content-Length: {}", content.len());
        let mut sending = sender.begin_put("folder/large", &length).await;
        sending.send(content).await;
        sending
    });
    session.has_printed("looking", "begun").await;
    let installation = server.kill().await;
    looking.abandon();
    drop(sending.await);

    let server = installation.serve().await;
    let session = Session::of(&server, &session.id);
    let expected = [".mine.part", "folder", "folder/whole.csv"];
    eventually("what was begun is gone", async || {
        let mut all = session.all_in("/session/data").await;
        // It may have finished before the kill.
        all.retain(|name| name != "folder/large");
        all == expected
    })
    .await;
    let list = session.datasets().await;
    assert!(!list.to_string().contains("PENDING"), "{list:#}");
}

#[tokio::test]
async fn a_session_without_room_says_so_and_keeps_nothing() {
    let server = serve(&[]).await;
    let session = server.session_with(json!({"limits": {"tmpfs": "2M"}})).await;
    session.put("old", "old").await.json(200);
    for name in ["new", "old", "in/folder"] {
        let message = session.put(name, numbered(1, 4 << 20)).await.error(507, "no_room_inside");
        assert!(message.contains("room"), "{message}");
    }
    for name in ["new", "old", "in/folder"] {
        let failed = session.dataset(name).await;
        assert_eq!(failed["status"], "FAILED", "{failed:#}");
        assert!(text(&failed["reason"]).contains("room"), "{failed:#}");
    }
    let left = session.all_in("/session/data").await;
    assert_eq!(left, ["in", "old"]);
    assert_eq!(session.shell("cat data/old").await["stdout"], "old", "it was not touched");
    // The whole content arrived, so it is in the cache for a session that has space for it.
    let roomy = server.session().await;
    let known = format!("new?sha256={}", super::sha256(numbered(1, 4 << 20)));
    assert_eq!(roomy.put(&known, "").await.json(200)["cached"], true);
    session.put("new", "fits").await.json(200);
    assert_eq!(session.shell("cat data/new").await["stdout"], "fits");
}

#[tokio::test]
async fn a_cache_that_cannot_be_written_to_is_said() {
    let server = serve(&[]).await;
    let session = server.session().await;
    fs::remove_dir_all(server.path("cache/incoming")).expect("it is there");
    session.put("t.csv", "x").await.error(500, "internal");
    let list = session.datasets().await;
    assert!(!list.to_string().contains("PENDING"), "{list:#}");
    fs::create_dir(server.path("cache/incoming")).expect("a directory");
    session.put("t.csv", "x").await.json(200);
}
