//! Sessions that are hibernated, or about to be, when their server is killed.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::json;

use crate::disk::DatabaseLock;
use crate::worker::Dice;
use belljar_testkit::installation::Installation;
use belljar_testkit::session::{HOLD, Session};
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::eventually;

const KILLS: u64 = 30;

fn installation() -> Arc<Installation> {
    Arc::new(Installation::new().env("BELLJAR_LOG", "warn"))
}

#[tokio::test]
async fn one_that_sleeps_is_there_for_the_next_server_and_wakes() {
    let server = installation().serve().await;
    let session = server.session_with(json!({"key": "k"})).await;
    session.python("x = 41; open('f', 'w').write('1')").await;
    session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
    server.warmed_up().await;
    let installation = server.kill().await;
    installation.has_no_traces().await;
    // Files that belong to no known session or snapshot are removed.
    std::fs::create_dir(installation.frozen().join("ses_unknown")).expect("a directory");
    let album = installation.frozen().join(&session.id);
    std::fs::write(album.join("9999.pages"), "half").expect("a file");

    let server = installation.serve().await;
    let session = Session::of(&server.client(), &session.id);
    assert_eq!(session.show().await["state"], "hibernated");
    assert!(!album.join("9999.pages").exists());
    assert!(!installation.frozen().join("ses_unknown").exists());
    let found = server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!((text(&found["how"]), text(&found["id"])), ("found", session.id.as_str()));
    assert_eq!(session.printed("print(x + 1, open('f').read())").await, "42 1\n");
    session.stop().await;
    server.terminate().await;
    installation.has_no_traces().await;
}

/// A session that never hibernated can hibernate and fork under the next server. The memory that its kernel started
/// with does not depend on the server that provided it.
#[tokio::test]
async fn one_that_never_slept_sleeps_and_branches_under_the_next_server() {
    let server = installation().serve().await;
    let session = server.session().await;
    session.python("import json; x = 41").await;
    let mut server = server;
    for round in 1..=2 {
        let installation = server.kill().await;
        server = installation.serve().await;
        let session = Session::of(&server.client(), &session.id);
        assert_eq!(session.printed("print(x)").await, "41\n", "in round {round}");
        let fork = session.client.post(&session.path("/fork"), json!({})).await.json(201);
        let branch = Session::of(&server.client(), text(&fork["sessions"][0]["id"]));
        assert_eq!(branch.printed("print(json.dumps(x))").await, "41\n", "in round {round}");
        branch.stop().await;
        session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
        assert_eq!(session.printed("print(json.dumps(x))").await, "41\n", "in round {round}");
    }
    Session::of(&server.client(), &session.id).stop().await;
}

/// The same for sessions of the pool after an orderly end of the server, and for sessions that hibernate
/// automatically.
#[tokio::test]
async fn one_of_the_pool_falls_asleep_by_itself_under_the_next_server() {
    let installation = Installation::new()
        .env("BELLJAR_LOG", "warn")
        .env("BELLJAR_POOL", "1")
        .env("BELLJAR_HIBERNATE_SEC", "1")
        .env("IDLE_HIBERNATE_SEC", "0");
    let server = Arc::new(installation).serve().await;
    server.warmed_up().await;
    let is_full = async || server.metric("belljar_pool_ready").await == 1.0;
    eventually("the pool is full", is_full).await;
    let session = server.session().await;
    assert_eq!(server.metric("belljar_creates_total{how=\"pool\"}").await, 1.0);
    session.python("import json; x = 41").await;
    let installation = Arc::clone(&server.installation);
    server.terminate().await;
    let mut server = installation.serve().await;
    for round in 1..=2 {
        let session = Session::of(&server.client(), &session.id);
        let shown = session.becomes("hibernated").await;
        assert_eq!(shown["warnings"], json!(null), "in round {round}");
        assert_eq!(session.printed("print(json.dumps(x))").await, "41\n", "in round {round}");
        server = server.kill().await.serve().await;
    }
    Session::of(&server.client(), &session.id).stop().await;
}

/// A result was returned, and the server was killed before it had stored the result. The next server reads it from the
/// sandbox, and does not report the execution as running.
#[tokio::test]
async fn an_execution_whose_result_was_returned_does_not_run() {
    let server = installation().serve().await;
    let session = server.session_with(json!({"checkpoints": true})).await;
    let first = session.python("x = 1").await;
    let ask = json!({"code": format!("{HOLD}\nx = 2"), "timeout": 60});
    let pending = session.begin("held", "running", ask).await;
    session.has_printed("held", "holding").await;
    // From here on nothing can be stored.
    let lock = DatabaseLock::new(&server.path("state"));
    let put = server.request(Method::PUT, &session.path("/files/go"), "");
    server.send(put).await.json(200);
    let result = pending.result().await;
    assert_eq!((&result["status"], &result["checkpoint"]), (&json!("ok"), &json!(true)));
    let installation = server.kill().await;
    drop(lock);

    let server = installation.serve().await;
    let session = Session::of(&server.client(), &session.id);
    let fork = session.client.post(&session.path("/fork"), json!({})).await.json(201);
    let branch = Session::of(&server.client(), text(&fork["sessions"][0]["id"]));
    assert_eq!(branch.printed("print(x)").await, "2\n");
    branch.stop().await;
    session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
    assert_eq!(session.exec_info("held").await["result"]["checkpoint"], true);
    session.python("x = 3").await;
    for (exec, x) in [("held", "2\n"), (text(&first["exec_id"]), "1\n")] {
        let ask = json!({"exec_id": exec});
        session.client.post(&session.path("/restore"), ask).await.json(200);
        assert_eq!(session.printed("print(x)").await, x);
    }
}

#[tokio::test]
async fn a_picture_that_is_damaged_is_said_to_be() {
    let server = installation().serve().await;
    let session = server.session().await;
    session.python("x = 41; open('f', 'w').write('1')").await;
    session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
    let album = server.installation.frozen().join(&session.id);
    for name in names(&album).iter().filter(|name| name.ends_with(".index")) {
        std::fs::write(album.join(name), "nonsense").expect("a file");
    }
    let seen = session.python("print(open('f').read()); 'x' in globals()").await;
    assert_eq!((text(&seen["stdout"]), text(&seen["kernel_state"])), ("1\n", "lost"), "{seen:#}");
    assert!(text(&seen["reason"]).contains("could not be woken"), "{seen:#}");
}

/// kill -9 while a session hibernates, wakes and forks. Afterwards it has everything that was
/// reported to the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_at_any_stage_of_a_sleep_loses_nothing() {
    let seed = std::env::var("RECOVERY_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("RECOVERY_SEED={seed}");
    let mut dice = Dice::new(seed);
    let installation = installation();
    let mut server = installation.serve().await;
    let id = server.session().await.id;
    Session::of(&server.client(), &id).python("x = 0").await;
    let mut done = 0;
    for round in 0..KILLS {
        let session = Session::of(&server.client(), &id);
        let work = tokio::spawn(async move {
            loop {
                // The server is about to be killed: some of these requests get no answer.
                let _ = session.client.post(&session.path("/hibernate"), json!({})).await;
                let _ = session.client.post(&session.path("/fork"), json!({"count": 2})).await;
                let _ = session.exec(json!({"code": "len(range(x))"})).await;
            }
        });
        tokio::time::sleep(Duration::from_millis(dice.below(300))).await;
        let installation = server.kill().await;
        work.abort();
        let _ = work.await;
        server = installation.serve().await;
        let session = Session::of(&server.client(), &id);
        let code = "x += 1; open('f', 'a').write('.'); print(x, len(open('f').read()))";
        // The session may first have to finish requests that it accepted earlier.
        let ask = json!({"code": code, "exec_id": format!("add{round}")});
        let reply = session.exec(ask).await.json(200);
        done += 1;
        assert_eq!(text(&reply["stdout"]), format!("{done} {done}\n"), "{reply:#}");
        assert_eq!(reply["kernel_state"], "kept", "{reply:#}");
    }
    for session in server.get("/v1/sessions?limit=1000").await.json(200)["sessions"]
        .as_array()
        .expect("a list")
    {
        let session = Session::of(&server.client(), text(&session["id"]));
        let shown = session.show().await;
        if !["stopped", "failed"].contains(&text(&shown["state"])) {
            session.printed("print(x)").await;
        }
        session.stop().await;
    }
    assert_eq!(installation.sleepers(), [""; 0]);
    server.terminate().await;
    installation.has_no_traces().await;
}
