//! Sessions with files whose server is killed while it makes or removes them: there whole, or gone.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::server::{Place, Server, Session, eventually, names, text};

/// From before it is begun to after it is done.
const MOMENTS_MS: [u64; 4] = [2, 10, 30, 150];

/// The directories of sessions, besides what finds them by key.
fn directories(server: &Server) -> Vec<String> {
    let names = names(&server.path("sessions"));
    names.into_iter().filter(|name| name != "by-key").collect()
}

async fn listed(server: &Server) -> BTreeSet<String> {
    let listed = server.get("/v1/sessions").await.json(200);
    let sessions = listed["sessions"].as_array().expect("a list").iter();
    sessions.map(|session| text(&session["id"]).to_owned()).collect()
}

/// What is on disk and no server knows of, and what is still mounted.
fn stray(server: &Server, known: &BTreeSet<String>) -> Vec<String> {
    let root = server.path("sessions");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a list");
    let place = root.display().to_string();
    let mounted = mounts.lines().filter(|line| line.contains(&place)).map(str::to_owned);
    directories(server).into_iter().filter(|name| !known.contains(name)).chain(mounted).collect()
}

async fn is_whole(server: &Server) {
    eventually("nothing half-done is left", async || {
        stray(server, &listed(server).await).is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_session_that_was_being_removed_is_there_or_gone() {
    for (kind, moments) in [("auto", &MOMENTS_MS[..]), ("directory", &MOMENTS_MS[1..3])] {
        let place = Arc::new(Place::new().env("BELLJAR_SESSION_FILES", kind));
        let mut server = place.serve().await;
        let mut gone = 0;
        for &moment in moments {
            let key = format!("k{moment}");
            let session = server.session_with(json!({"key": key, "storage": "BIND"})).await;
            // Removing them takes a while.
            session
                .shell("echo kept > kept; mkdir d; cd d; for n in $(seq 2000); do : > $n; done")
                .await;
            let (client, path) = (server.client(), session.path("?purge=true"));
            let removing = tokio::spawn(async move { client.delete(&path).await });
            tokio::time::sleep(Duration::from_millis(moment)).await;
            server = server.kill().await.serve().await;
            removing.abort();
            is_whole(&server).await;
            if !listed(&server).await.contains(&session.id) {
                gone += 1;
                continue;
            }
            // It has all its files, whatever was begun.
            let session = Session::of(&server, &session.id);
            eventually("it was found", async || session.show().await["state"] != "creating").await;
            server.post("/v1/sessions", json!({"key": key})).await.json(200);
            let look = session.shell("cat kept; ls d | wc -l").await;
            assert_eq!(look["stdout"], "kept\n2000\n", "{look:#}");
            server.delete(&session.path("?purge=true")).await.json(200);
        }
        let is_long_after = moments.last() == Some(&150);
        assert!(gone > 0 || !is_long_after, "the last moment is long after it was removed");
        is_whole(&server).await;
        assert_eq!(directories(&server), [""; 0]);
        server.place.has_no_traces().await;
    }
}

#[tokio::test]
async fn a_session_that_was_being_made_is_there_or_gone() {
    let place = Arc::new(Place::new());
    let mut server = place.serve().await;
    for moment in MOMENTS_MS {
        let key = format!("k{moment}");
        let (client, ask) = (server.client(), json!({"key": key, "storage": "BIND"}));
        let asked = ask.clone();
        let making = tokio::spawn(async move { client.post("/v1/sessions", asked).await });
        tokio::time::sleep(Duration::from_millis(moment)).await;
        server = server.kill().await.serve().await;
        making.abort();
        is_whole(&server).await;
        let made = server.post("/v1/sessions", ask).await;
        assert!([200, 201].contains(&made.status), "{moment}: {made}");
        let session = Session::of(&server, text(&made.json(made.status)["id"]));
        assert_eq!(session.shell("echo x > f; cat f").await["stdout"], "x\n");
        session.stop().await;
    }
    assert_eq!(listed(&server).await.len(), directories(&server).len());
}
