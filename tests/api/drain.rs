//! A server that is asked to stop, and its successor.

use std::fs;
use std::sync::Arc;

use belljar_sys::process;
use serde_json::json;

use belljar_testkit::client::printed;
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::{HOLD, Session};
use belljar_testkit::wait::eventually;

/// Files of sessions are plain directories, which this test can write to.
const FROM_OUTSIDE: (&str, &str) = ("BELLJAR_SESSION_FILES", "directory");

/// Lets an execution that waits in a session on disk continue, without a server.
fn release(installation: &Installation, session: &Session) {
    let files = installation.path("sessions").join(&session.id).join("files");
    fs::write(files.join("go"), "").expect("a file");
}

async fn is_draining(server: &Server) {
    eventually("it says so", async || server.said().contains("requests in progress may finish"))
        .await;
}

#[tokio::test]
async fn what_is_in_progress_is_finished_and_sessions_stay() {
    let server = Server::with(&[FROM_OUTSIDE]).await;
    let session = server.session_with(json!({"key": "k", "storage": "BIND"})).await;
    session.python("x = ['kept']").await;
    session.exec(json!({"language": "bash", "code": "colour=blue"})).await.json(200);
    let behind =
        json!({"command": "echo begun; sleep 1000", "background": true, "exec_id": "behind"});
    session.exec(behind).await.json(202);
    session.has_printed("behind", "begun").await;
    let held = session.hold("held").await;
    let mut stream = server.follow(&session.path("/execs/held/events")).await;
    stream.until("stdout").await;
    server.ask_to_stop();
    is_draining(&server).await;
    release(&server.installation, &session);
    assert_eq!(held.result().await["stdout"], "holding\nreleased\n");
    assert_eq!(printed(&stream.rest().await, "stdout"), "released\n");
    let installation = Arc::clone(&server.installation);
    let mut server = server;
    assert!(server.wait().await.success());
    assert!(server.said().contains("1 session(s) go on"), "{}", server.said());
    assert_eq!(installation.pids_inside(1).len(), 1, "its sandbox lives");

    let next = installation.serve().await;
    let session = Session::of(&next, &session.id);
    // At once: an early request waits until the session is recovered.
    assert_eq!(session.printed("x.append('more'); print(*x)").await, "kept more\n");
    let bash = session.exec(json!({"language": "bash", "code": "echo $colour"})).await.json(200);
    assert_eq!(bash["stdout"], "blue\n");
    assert_eq!(session.exec_info("held").await["result"]["stdout"], "holding\nreleased\n");
    assert_eq!(session.exec_info("behind").await["state"], "running");
    let found = next.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!((&found["id"], &found["how"]), (&json!(session.id), &json!("found")));
    assert_eq!(next.metric("belljar_adoptions_total{how=\"adopted\"}").await, 1.0);
    next.post_path(&session, "/execs/behind/interrupt").await;
    session.reaches("behind", "finished").await;
    assert_eq!(session.exec_info("behind").await["result"]["stdout"], "begun\n");
    session.stop().await;
    installation.has_no_traces().await;
}

#[tokio::test]
async fn what_takes_too_long_goes_on_without_a_server() {
    let settings = [("BELLJAR_DRAIN", "0"), ("SESSION_STORAGE", "BIND"), FROM_OUTSIDE];
    let server = Server::with(&settings).await;
    let session = server.session().await;
    let ask = json!({"code": HOLD, "exec_id": "held"});
    let mut stream = server.post_stream(&session.path("/exec"), ask).await;
    let last = stream.until("stdout").await;
    let queued = session.begin("queued", "queued", json!({"code": "print('its turn')"})).await;
    queued.abandon();
    let installation = Arc::clone(&server.installation);
    server.terminate().await;
    drop(stream);
    release(&installation, &session);
    let next = installation.serve().await;
    let session = Session::of(&next, &session.id);
    let rest = session.path(&format!("/execs/held/events?offset={}", last.id.expect("a position")));
    let rest = next.follow(&rest).await.rest().await;
    assert_eq!(printed(&rest, "stdout"), "released\n");
    assert_eq!(rest.last().expect("an end").data["status"], "ok");
    session.reaches("queued", "finished").await;
    assert_eq!(session.exec_info("queued").await["result"]["stdout"], "its turn\n");
}

#[tokio::test]
async fn with_stop_sessions_a_server_ends_its_sessions() {
    let installation =
        Arc::new(Installation::new().env("BELLJAR_POOL", "1").args(&["--stop-sessions"]));
    let server = installation.serve().await;
    let session = server.session().await;
    session
        .exec(json!({"command": "sleep 1000", "background": true, "exec_id": "e"}))
        .await
        .json(202);
    let disk = server.session_with(json!({"storage": "BIND"})).await;
    disk.shell("echo kept > file").await;
    let said = server.terminate().await;
    assert!(said.contains("stopped, with 2 session(s)"), "{said}");
    installation.has_no_traces().await;
    let next = installation.serve().await;
    let ended = next.get(&session.path("")).await.json(200);
    assert_eq!(
        (&ended["state"], &ended["ended_because"]),
        (&json!("stopped"), &json!("the server was stopped"))
    );
    let exec = next.get(&session.path("/execs/e")).await.json(200);
    assert_eq!(exec["result"]["reason"], "the session was ended: the server was stopped");
    next.post(&disk.path("/start"), json!({})).await.json(200);
    let disk = Session::of(&next, &disk.id);
    assert_eq!(disk.shell("cat file").await["stdout"], "kept\n");
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    const SIGTERM: i32 = 15;
    let mut server = Server::with(&[("BELLJAR_DRAIN", "3600")]).await;
    let session = server.session().await;
    let held = session.hold("held").await;
    server.ask_to_stop();
    is_draining(&server).await;
    process::signal(server.pid(), SIGTERM).expect("it runs");
    assert!(!server.wait().await.success());
    held.abandon();
    let next = server.installation.serve().await;
    let session = Session::of(&next, &session.id);
    session.release().await;
    session.reaches("held", "finished").await;
    assert_eq!(session.exec_info("held").await["result"]["stdout"], "holding\nreleased\n");
}

#[tokio::test]
async fn a_sandbox_killed_without_a_server_is_reported_as_gone() {
    let server = Server::start().await;
    let session = server.session_with(json!({"key": "k"})).await;
    let held = session.hold("held").await;
    let installation = server.kill().await;
    held.abandon();
    let [guest] = installation.pids_inside(1)[..] else { panic!("one sandbox") };
    process::signal(guest, 9).expect("it lives");
    let next = installation.serve().await;
    // Requested at once, before the server knows that the sandbox is gone.
    let made = next.post("/v1/sessions", json!({"key": "k"})).await.json(201);
    assert_eq!(made["replaced"]["id"], session.id, "{made:#}");
    let old = next.get(&session.path("")).await.json(200);
    assert_eq!(old["state"], "failed", "{old:#}");
    let held = next.get(&session.path("/execs/held")).await.json(200);
    assert_eq!(
        (&held["state"], &held["result"]["status"]),
        (&json!("finished"), &json!("crashed"))
    );
    assert_eq!(next.metric("belljar_adoptions_total{how=\"lost\"}").await, 1.0);
}

#[tokio::test]
async fn an_idle_server_exits_with_idle_exit() {
    let installation = Arc::new(Installation::new().args(&["--idle-exit", "1"]));
    let mut server = installation.serve().await;
    let session = server.session().await;
    session.python("import time; time.sleep(2.5)").await;
    // Longer than a server without sessions would run.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert_eq!(session.python("1 + 1").await["status"], "ok", "a live session keeps it");
    server.delete(&session.path("")).await.json(200);
    assert!(server.wait().await.success());
    assert!(server.said().contains("nobody needs this server any more"), "{}", server.said());
}
