//! Links: only a valid token gives access.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use hyper::Method;
use serde_json::json;

use super::ArtifactSession as _;
use super::{ask, link, only, token, with_token};
use crate::keys::{secret, with_keys};
use belljar_testkit::client::Answer;
use belljar_testkit::server::Server;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

/// A response without the headers that differ between requests.
fn plain(answer: Answer) -> (u16, Vec<String>, Vec<u8>) {
    let mut headers: Vec<String> = answer
        .headers
        .iter()
        .filter(|(name, _)| *name != "date" && *name != "x-request-id")
        .map(|(name, value)| format!("{name}: {value:?}"))
        .collect();
    headers.sort();
    (answer.status, headers, answer.body.to_vec())
}

#[tokio::test]
async fn no_token_but_the_right_one_opens_anything() {
    let (server, keys) = with_keys(&[&["--name", "a"]]).await;
    let owner = server.with_key(secret(&keys[0]));
    let session = owner.session_with(json!({})).await;
    let (one, two) = (session.leaves("one", "1").await, session.leaves("two", "2").await);
    let (one, two) = (link(only(&one)), link(only(&two)));
    assert_eq!(server.get(&one).await.text(200), "1");
    let good = token(&one).to_owned();
    let unknown = with_token("/artifacts/art_00000000000000000000000000000000?token=", &good);
    let refusal = plain(server.get(&unknown).await);
    assert_eq!(refusal.0, 403);
    // For every wrong token the response is identical to the byte, also for artifacts that do not
    // exist.
    let mut wrong = vec![String::new(), "x".into(), "A".repeat(good.len()), good.to_uppercase()];
    wrong.push(token(&two).to_owned());
    wrong.push(good[1..].to_owned());
    wrong.push(format!("{good}A"));
    wrong.push(format!("{good}=="));
    wrong.push("%C3%A9".repeat(27));
    wrong.push("A".repeat(5000));
    for at in 0..good.len() {
        let other = if &good[at..=at] == "B" { "C" } else { "B" };
        wrong.push(format!("{}{other}{}", &good[..at], &good[at + 1..]));
    }
    let mut connection = server.connect().await;
    for token in &wrong {
        for link in [with_token(&one, token), with_token(&unknown, token)] {
            let answer = connection.send(server.request(Method::GET, &link, "")).await;
            assert_eq!(plain(answer), refusal, "{link}");
        }
    }
    for link in [&one, &unknown] {
        let (bare, _) = link.split_once('?').expect("a link");
        assert_eq!(plain(server.get(bare).await), refusal);
        assert_eq!(ask(&server, Method::HEAD, &with_token(link, "x"), &[]).await.status, 403);
        // Malformed queries are refused before any lookup, and reveal nothing.
        let odd = |query: &str| format!("{bare}?{query}");
        for query in ["token=%FF", &format!("token={good}&token=x")] {
            let answer = server.get(&odd(query)).await;
            assert!((400..500).contains(&answer.status), "{query}: {answer}");
            assert!(!answer.text(answer.status).contains("art_"), "{answer}");
        }
    }
    // A HEAD link does not allow GET; a GET link also allows HEAD.
    let (path, _) = one.split_once('?').expect("a link");
    let url = format!("/v1{path}/url");
    let made = owner.post(&url, json!({"method": "HEAD"})).await.json(200);
    let head = link(&made);
    assert_eq!(ask(&server, Method::HEAD, &head, &[]).await.status, 200);
    assert_eq!(plain(server.get(&head).await), refusal);
    assert_eq!(ask(&server, Method::HEAD, &one, &[]).await.status, 200);
    let fresh = owner.post(&url, json!({})).await.json(200);
    assert_eq!(server.get(&link(&fresh)).await.text(200), "1");
    assert!(text(&fresh["expires"]).ends_with('Z'));
    owner.post(&url, json!({"method": "POST"})).await.error(422, "invalid");
    server.post(&url, json!({})).await.error(401, "unauthorized");
}

#[tokio::test]
async fn links_end_with_their_time() {
    let server = Server::with(&[("BELLJAR_LINK_TTL", "1")]).await;
    let result = server.session().await.leaves("a", "x").await;
    let link = link(only(&result));
    eventually("it has expired", async || server.get(&link).await.status == 403).await;
    server.get(&link).await.error(403, "link_invalid");
    let fresh = format!("/v1/artifacts/{}/url", text(&only(&result)["id"]));
    let fresh = super::link(&server.post(&fresh, json!({})).await.json(200));
    assert_ne!(fresh, link);
    let later = token(&fresh);
    assert_ne!(&later[..11], &token(&link)[..11], "the time is in it");
}

#[tokio::test]
async fn links_survive_the_server_and_end_with_its_key() {
    let server = Server::start().await;
    let result = server.session().await.leaves("a", "x").await;
    let link = link(only(&result));
    let key = server.path("state/links.key");
    assert_eq!(fs::metadata(&key).expect("a key").permissions().mode() & 0o777, 0o600);
    let installation = server.kill().await;
    let server = installation.serve().await;
    assert_eq!(server.get(&link).await.text(200), "x");
    server.terminate().await;
    // As if another server had signed the link.
    fs::remove_file(&key).expect("it is there");
    let server = installation.serve().await;
    server.get(&link).await.error(403, "link_invalid");
    let shown =
        server.get(&format!("/v1/artifacts/{}", text(&only(&result)["id"]))).await.json(200);
    assert_eq!(server.get(&super::link(&shown)).await.text(200), "x");
}
