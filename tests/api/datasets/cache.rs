//! Content that was uploaded before is not uploaded again.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};

use super::DatasetSession as _;
use super::{cached, numbered, serve, sha256};
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

/// A dataset name with the hash of its content.
fn known(name: &str, content: impl AsRef<[u8]>) -> String {
    format!("{name}?sha256={}", sha256(content))
}

#[tokio::test]
async fn content_that_is_known_is_not_sent_again() {
    let server = serve(&[]).await;
    let (first, second) = (server.session().await, server.session().await);
    let message = first.put(&known("t.csv", "a\n1\n"), "").await.error(404, "content_unknown");
    assert!(!message.contains("t.csv"), "{message}");
    assert_eq!(first.datasets().await["datasets"], json!([]), "asking is not failing");
    assert_eq!(first.put(&known("t.csv", "a\n1\n"), "a\n1\n").await.json(200)["cached"], false);

    let reply = second.put(&known("other/name.csv", "a\n1\n"), "").await.json(200);
    assert_eq!((&reply["status"], &reply["cached"]), (&json!("LOADED"), &json!(true)));
    assert_eq!((&reply["name"], &reply["size"]), (&json!("other/name.csv"), &json!(4)));
    assert_eq!(second.shell("cat data/other/name.csv").await["stdout"], "a\n1\n");
    // An upload by hash restores a file that code has changed. A digest in upper case is invalid.
    second.shell("echo x > data/other/name.csv").await;
    let upper = format!("other/name.csv?sha256={}", sha256("a\n1\n").to_uppercase());
    second.put(&upper, "").await.error(422, "invalid");
    second.put(&known("other/name.csv", "a\n1\n"), "").await.json(200);
    assert_eq!(second.shell("cat data/other/name.csv").await["stdout"], "a\n1\n");

    // A request without a body asks for cached content; it does not store an empty dataset.
    let asking = second.begin_put(&known("none", "unheard of"), "X: y").await;
    let (status, reply) = asking.answer().await;
    assert_eq!((status, &reply["error"]["code"]), (404, &json!("content_unknown")), "{reply:#}");
    // Empty content has a hash too.
    assert_eq!(second.put(&known("empty", ""), "").await.json(200)["size"], 0);
    assert_eq!(second.all_in("/session/data").await, ["empty", "other", "other/name.csv"]);
}

#[tokio::test]
async fn a_hash_that_is_not_that_of_the_content_is_refused() {
    let server = serve(&[]).await;
    let session = server.session().await;
    session.put("known", "known").await.json(200);
    // Whether or not the server has the content of the given hash.
    for promised in ["unheard of", "known"] {
        let answer = session.put(&known("t.csv", promised), "something else").await;
        let message = answer.error(422, "sha256_mismatch");
        assert!(message.contains(&sha256("something else")), "{message}");
        let failed = session.dataset("t.csv").await;
        assert_eq!(failed["status"], "FAILED", "{failed:#}");
        assert!(text(&failed["reason"]).contains("SHA-256"), "{failed:#}");
    }
    assert_eq!(session.all_in("/session/data").await, ["known"]);
    assert_eq!(cached(&server.installation, &sha256("something else")), None, "nor is it kept");
    assert!(super::incoming(&server.installation).is_empty());
    session.put(&known("t.csv", "as told"), "as told").await.json(200);
    assert_eq!(session.shell("cat data/t.csv").await["stdout"], "as told");
}

#[tokio::test]
async fn an_unneeded_body_is_accepted() {
    let server = serve(&[]).await;
    let session = server.session().await;
    let content = numbered(3, 6 << 20);
    session.put("first", content.clone()).await.json(200);
    // The body is sent although it is not needed: the client must still get the response.
    let reply = session.put(&known("second", &content), content.clone()).await.json(200);
    assert_eq!((&reply["status"], &reply["cached"]), (&json!("LOADED"), &json!(true)));
    // A client that sends `Expect: 100-continue` need not send the body.
    let headers = format!("Content-Length: {}\r\nExpect: 100-continue", content.len());
    let asking = session.begin_put(&known("third", &content), &headers).await;
    let (status, reply) = asking.answer().await;
    assert_eq!((status, &reply["cached"]), (200, &json!(true)), "{reply:#}");
    assert_eq!(session.shell("cmp data/first data/third").await["status"], "ok");
}

#[tokio::test]
async fn content_of_one_tenant_is_unknown_to_another() {
    let installation = Arc::new(Installation::new().env("DATASET_ACCESS", "API"));
    let keys =
        ["a", "a", "b"].map(|tenant| installation.key(&["--name", tenant, "--tenant", tenant]));
    let server: Server = installation.serve().await;
    let clients = keys.map(|key| server.with_key(text(&key["secret"])));
    let [first, second, stranger] = clients;
    let first: Session = first.session_with(json!({})).await;
    let second = second.session_with(json!({})).await;
    let stranger = stranger.session_with(json!({})).await;
    first.put("t.csv", "private").await.json(200);
    let never = stranger.put(&known("t.csv", "never seen"), "").await;
    let theirs = stranger.put(&known("t.csv", "private"), "").await;
    theirs.error(404, "content_unknown");
    assert_eq!(theirs.body, never.body, "no hint that somebody has it");
    assert_eq!(second.put(&known("t.csv", "private"), "").await.json(200)["cached"], true);
    // Nor does the response to a full upload reveal that the content was there.
    assert_eq!(
        stranger.put(&known("t.csv", "private"), "private").await.json(200)["cached"],
        false
    );
    assert_eq!(stranger.put(&known("u.csv", "private"), "").await.json(200)["cached"], true);
}

#[tokio::test]
async fn the_cache_is_bounded_and_the_oldest_goes_first() {
    const SIZE: usize = 400_000;
    let server = serve(&[("BELLJAR_DATASET_CACHE_SIZE", "1M")]).await;
    let session = server.session().await;
    let is_there = async |seed: u32| {
        let answer = session.put(&known("again", numbered(seed, SIZE)), "").await;
        // Both are valid responses: the status says whether it is cached.
        assert!(answer.status == 200 || answer.status == 404, "{answer}");
        answer.status == 200
    };
    session.put("one", numbered(1, SIZE)).await.json(200);
    session.put("two", numbered(2, SIZE)).await.json(200);
    assert!(is_there(1).await, "and it was used last now");
    session.put("three", numbered(3, SIZE)).await.json(200);
    assert!(!is_there(2).await);
    assert!(is_there(1).await && is_there(3).await);
    // Content larger than the cache is staged, but not cached.
    let large = numbered(4, 3 * SIZE);
    session.put("large", large.clone()).await.json(200);
    let sum = session.shell("sha256sum < data/large").await;
    assert!(text(&sum["stdout"]).starts_with(&sha256(&large)), "{sum:#}");
    assert_eq!(cached(&server.installation, &sha256(&large)), None);
    assert_eq!(session.shell("ls data").await["stdout"], "again\nlarge\none\nthree\ntwo\n");
}

#[tokio::test]
async fn damage_in_the_cache_never_gets_inside() {
    let server = serve(&[]).await;
    let session = server.session().await;
    let hash = sha256("precious");
    session.put("t.csv", "precious").await.json(200);
    let path = cached(&server.installation, &hash).expect("it is cached");
    for damaged in ["precIous", "prec", "precious and more", ""] {
        fs::write(&path, damaged).expect("it is there");
        session.put(&known("new", "precious"), "").await.error(404, "content_unknown");
        assert_eq!(session.all_in("/session/data").await, ["t.csv"]);
        assert_eq!(session.dataset("new").await, Value::Null);
        // A new upload repairs it.
        let reply = session.put(&known("t.csv", "precious"), "precious").await.json(200);
        assert_eq!(reply["status"], "LOADED");
        assert_eq!(session.shell("cat data/t.csv").await["stdout"], "precious");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "precious");
    }
}
