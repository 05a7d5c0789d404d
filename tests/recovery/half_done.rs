//! The server is killed while it makes or removes sessions with files. Afterwards each session is
//! complete or gone.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use belljar_testkit::client::Answer;
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::eventually;

/// When the server is killed, after it got a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kill {
    AfterMs(u64),
    /// As soon as it has answered.
    Answered,
}

/// From before the operation begins to after it is done.
const KILLS: [Kill; 4] = [Kill::AfterMs(2), Kill::AfterMs(10), Kill::AfterMs(30), Kill::Answered];

/// Sends a request, kills the server at this moment, and starts the next server.
async fn kill_during(
    server: Server,
    kill: Kill,
    request: impl Future<Output = Answer> + Send + 'static,
) -> Server {
    let mut asked = tokio::spawn(request);
    match kill {
        Kill::AfterMs(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
        Kill::Answered => assert!((&mut asked).await.expect("an answer").status < 300),
    }
    let server = server.kill().await.serve().await;
    asked.abort();
    server
}

/// The directories of sessions, without the index by key.
fn directories(server: &Server) -> Vec<String> {
    let names = names(&server.path("sessions"));
    names.into_iter().filter(|name| name != "by-key").collect()
}

async fn listed(server: &Server) -> BTreeSet<String> {
    let listed = server.get("/v1/sessions").await.json(200);
    let sessions = listed["sessions"].as_array().expect("a list").iter();
    sessions.map(|session| text(&session["id"]).to_owned()).collect()
}

/// Directories on disk that the server does not know, and file systems that are still mounted.
fn stray(server: &Server, known: &BTreeSet<String>) -> Vec<String> {
    let root = server.path("sessions");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a list");
    let installation = root.display().to_string();
    let mounted = mounts.lines().filter(|line| line.contains(&installation)).map(str::to_owned);
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
    for (kind, kills) in [("auto", &KILLS[..]), ("directory", &KILLS[1..3])] {
        let installation = Arc::new(Installation::new().env("BELLJAR_SESSION_FILES", kind));
        let mut server = installation.serve().await;
        for &kill in kills {
            let key = format!("{kill:?}");
            let session = server.session_with(json!({"key": key, "storage": "BIND"})).await;
            // Removing these files takes a while.
            session
                .shell("echo kept > kept; mkdir d; cd d; for n in $(seq 2000); do : > $n; done")
                .await;
            let (client, path) = (server.client(), session.path("?purge=true"));
            server = kill_during(server, kill, async move { client.delete(&path).await }).await;
            is_whole(&server).await;
            if !listed(&server).await.contains(&session.id) {
                continue;
            }
            assert_ne!(kill, Kill::Answered, "it was said to be removed");
            // It has all its files, however far the removal was.
            let session = Session::of(&server, &session.id);
            eventually("it was found", async || session.show().await["state"] != "creating").await;
            server.post("/v1/sessions", json!({"key": key})).await.json(200);
            let look = session.shell("cat kept; ls d | wc -l").await;
            assert_eq!(look["stdout"], "kept\n2000\n", "{look:#}");
            server.delete(&session.path("?purge=true")).await.json(200);
        }
        is_whole(&server).await;
        assert_eq!(directories(&server), [""; 0]);
        server.installation.has_no_traces().await;
    }
}

#[tokio::test]
async fn a_session_that_was_being_made_is_there_or_gone() {
    let installation = Arc::new(Installation::new());
    let mut server = installation.serve().await;
    for kill in KILLS {
        let (client, ask) =
            (server.client(), json!({"key": format!("{kill:?}"), "storage": "BIND"}));
        let asked = ask.clone();
        server = kill_during(server, kill, async move { client.post("/v1/sessions", asked).await })
            .await;
        is_whole(&server).await;
        let made = server.post("/v1/sessions", ask).await;
        // The status depends on how far the first request was. A session that was reported to the
        // client is found.
        let is_right = if kill == Kill::Answered {
            made.status == 200
        } else {
            [200, 201].contains(&made.status)
        };
        assert!(is_right, "{kill:?}: {made}");
        let session = Session::of(&server, text(&made.json(made.status)["id"]));
        assert_eq!(session.shell("echo x > f; cat f").await["stdout"], "x\n");
        session.stop().await;
    }
    assert_eq!(listed(&server).await.len(), directories(&server).len());
}
