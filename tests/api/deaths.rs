//! A process that the server needs dies: the server reports it and continues.

use belljar_sys::process;
use serde_json::json;

use belljar_testkit::server::Server;
use belljar_testkit::values::text;

const SIGKILL: i32 = 9;

fn kill(pid: u32) {
    process::signal(pid, SIGKILL).expect("it lives");
}

#[tokio::test]
async fn a_guest_that_is_killed_takes_its_session_along() {
    let server = Server::start().await;
    let session = server.session_with(json!({"key": "k"})).await;
    let held = session.hold("held").await;
    let queued = session.begin("queued", "queued", json!({"code": "1"})).await;
    let command = session.begin("command", "running", json!({"command": "sleep 1000"})).await;
    let [guest] = server.installation.pids_inside(1)[..] else { panic!("one sandbox") };
    kill(guest);
    for pending in [held, queued, command] {
        let result = pending.result().await;
        assert_eq!(result["status"], "crashed", "{result:#}");
        assert_eq!(result["reason"], "the sandbox ended before the code did");
    }
    let failed = session.becomes("failed").await;
    assert_eq!(failed["ended_because"], "its sandbox ended");
    let refused = session.exec(json!({"code": "1"})).await.error(410, "session_ended");
    assert!(refused.ends_with("has ended: its sandbox ended"), "{refused}");
    let held = session.exec_info("held").await;
    assert_eq!(held["result"]["stdout"], "holding\n", "what it said is kept");
    server.installation.has_no_traces().await;
    let next = server.post("/v1/sessions", json!({"key": "k"})).await.json(201);
    assert_eq!(next["replaced"], json!({"id": session.id, "because": "its sandbox ended"}));
    // The death of an idle sandbox is detected too.
    let [guest] = server.installation.pids_inside(1)[..] else { panic!("one sandbox") };
    kill(guest);
    belljar_testkit::session::Session::of(&server, text(&next["id"])).becomes("failed").await;
}

#[tokio::test]
async fn a_kernel_that_is_killed_is_replaced() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("x = 1").await;
    let pid: u32 =
        session.printed("import os; print(os.getpid())").await.trim().parse().expect("a pid");
    let held = session.hold("held").await;
    let [kernel] = server.installation.pids_inside(pid)[..] else { panic!("one kernel") };
    kill(kernel);
    let result = held.result().await;
    assert_eq!((&result["status"], &result["kernel_state"]), (&json!("crashed"), &json!("lost")));
    assert_eq!(result["stdout"], "holding\n");
    assert_eq!(session.python("x").await["error"]["name"], "NameError");
    // Killed while it is idle: the next execution reports it.
    session.python("y = 1").await;
    let pid: u32 =
        session.printed("import os; print(os.getpid())").await.trim().parse().expect("a pid");
    let [kernel] = server.installation.pids_inside(pid)[..] else { panic!("one kernel") };
    kill(kernel);
    let next = session.python("print('fresh')").await;
    let reply = next["kernel_state"] == "lost" || next["status"] == "crashed";
    assert!(reply, "variables are gone without a word: {next:#}");
    assert_eq!(session.show().await["state"], "ready");
}

#[tokio::test]
async fn a_spawner_that_is_killed_is_replaced() {
    let server = Server::with(&[("BELLJAR_POOL", "1")]).await;
    let session = server.session().await;
    session.python("x = 'kept'").await;
    let spawner = server.descendant("spawner --inside").expect("a spawner");
    kill(spawner);
    assert_eq!(session.printed("print(x)").await, "kept\n");
    for _ in 0..3 {
        let next = server.session().await;
        assert_eq!(next.printed("print('new')").await, "new\n");
    }
    let run = server.post("/v1/run", json!({"code": "1 + 1"})).await.json(200);
    assert_eq!(run["status"], "ok");
    // A session of the old spawner can still get a new kernel.
    let lost = session.python("import os; os._exit(1)").await;
    assert_eq!(lost["kernel_state"], "lost");
    assert_eq!(session.printed("print('again')").await, "again\n");
    let replaced = server.descendant("spawner --inside").expect("a spawner");
    assert_ne!(replaced, spawner);
    server.warmed_up().await;
}
