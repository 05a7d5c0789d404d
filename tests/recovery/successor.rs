//! What a new server finds after the old one was killed, and what it does with it, one case at a time. Variables, and
//! executions that run, wait or have finished, are tested by `a_successor_goes_on` in `tests/contract/lives.rs`, for
//! every backend.

use std::sync::Arc;

use serde_json::json;

use belljar_testkit::installation::Installation;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

fn installation() -> Arc<Installation> {
    Arc::new(Installation::new())
}

#[tokio::test]
async fn output_printed_without_a_server_is_read_from_any_offset() {
    let server = installation().serve().await;
    let session = server.session().await;
    let ask = json!({"command": "for i in 1 2 3; do echo line $i; done; \
                                 while [ ! -e /session/go ]; do sleep 0.01; done; echo end"});
    let pending = session.begin("talk", "running", ask).await;
    session.has_printed("talk", "line 3").await;
    let installation = server.kill().await;
    pending.abandon();
    let server = installation.serve().await;
    let session = Session::of(&server.client(), &session.id);
    session.release().await;
    let path = session.path("/execs/talk/events?offset=7");
    let events = server.follow(&path).await.rest().await;
    let reply: String = events.iter().filter_map(|event| event.data["text"].as_str()).collect();
    assert_eq!(reply, "line 2\nline 3\nend\n");
}

#[tokio::test]
async fn a_sandbox_that_died_meanwhile_is_reported_and_not_replaced_in_silence() {
    let server = installation().serve().await;
    let session = server.session_with(json!({"key": "k"})).await;
    let pending = session.hold("held").await;
    let installation = server.kill().await;
    pending.abandon();
    for guest in installation.pids_inside(1) {
        belljar_sys::process::signal(guest, 9).expect("it lives");
    }
    let server = installation.serve().await;
    let session = Session::of(&server.client(), &session.id);
    let failed = session.becomes("failed").await;
    assert!(text(&failed["ended_because"]).contains("the sandbox is gone"), "{failed:#}");
    let held = session.exec_info("held").await;
    assert_eq!(held["result"]["status"], "crashed", "{held:#}");
    session.exec(json!({"code": "1"})).await.error(410, "session_ended");
    // The sandbox of the session is gone without a trace.
    installation.has_no_traces().await;
    let made = server.post("/v1/sessions", json!({"key": "k"})).await.json(201);
    assert_eq!(made["replaced"]["id"], session.id, "{made:#}");
}

#[tokio::test]
async fn sandboxes_without_a_record_are_removed() {
    let server = Arc::new(Installation::new().env("BELLJAR_POOL", "3")).serve().await;
    eventually("the pool is full", async || server.metric("belljar_pool_ready").await == 3.0).await;
    let kept = server.session().await;
    eventually("the pool is full", async || server.metric("belljar_pool_ready").await == 3.0).await;
    let installation = server.kill().await;
    // Sandboxes of the pool end by themselves. The next server removes what they leave.
    let server = installation.serve().await;
    eventually("it is ready", async || server.get("/readyz").await.status == 200).await;
    assert_eq!(Session::of(&server.client(), &kept.id).printed("print(1)").await, "1\n");
    let expected = |traces: &[String]| {
        let sockets = traces.iter().filter(|trace| trace.starts_with("socket")).count();
        // One socket of the session, and three of a full pool.
        sockets == 4
    };
    eventually("only what lives is left", async || {
        server.metric("belljar_pool_ready").await == 3.0
            && expected(&installation.scratch().traces())
    })
    .await;
    server.delete(&kept.path("")).await.json(200);
    server.terminate().await;
    installation.has_no_traces().await;
}

#[tokio::test]
async fn a_second_server_on_the_same_state_is_refused() {
    let installation = installation();
    let first = installation.serve().await;
    let refused = installation.refusal().await;
    assert!(refused.contains(&format!("process {}", first.pid())), "{refused}");
    assert!(refused.contains("BELLJAR_STATE_DIR"), "{refused}");
    assert_eq!(first.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_kernel_that_dies_in_an_adopted_session_is_started_again() {
    let server = installation().serve().await;
    let session = server.session().await;
    session.python("x = 1").await;
    let installation = server.kill().await;
    let server = installation.serve().await;
    let session = Session::of(&server.client(), &session.id);
    let died = session.python("import os; os._exit(3)").await;
    assert_eq!(died["kernel_state"], "lost", "{died:#}");
    let again = session.python("print('x' in globals())").await;
    assert_eq!(again["stdout"], "False\n", "{again:#}");
}

#[tokio::test]
async fn a_session_on_disk_survives_even_a_lost_sandbox() {
    let installation = Arc::new(Installation::new().env("SESSION_STORAGE", "BIND"));
    let server = installation.serve().await;
    let session = server.session_with(json!({"key": "k"})).await;
    session.python("open('/session/kept.txt', 'w').write('still here')").await;
    let installation = server.kill().await;
    for guest in installation.pids_inside(1) {
        belljar_sys::process::signal(guest, 9).expect("it lives");
    }
    let server = installation.serve().await;
    let found = server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!((text(&found["how"]), text(&found["id"])), ("restarted", session.id.as_str()));
    let session = Session::of(&server.client(), &session.id);
    assert_eq!(session.printed("print(open('/session/kept.txt').read())").await, "still here\n");
    session.python("open('/session/kept.txt', 'a').write('!')").await;
}
