//! Cells of one kernel wait for each other; commands and other kernels do not.

use serde_json::json;

use belljar_testkit::server::Server;

#[tokio::test]
async fn cells_wait_their_turn_and_know_their_place() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("order = []").await;
    let held = session.hold("first").await;
    let mut waiting = Vec::new();
    for name in ["second", "third", "fourth"] {
        let ask = json!({"code": format!("order.append('{name}')")});
        waiting.push(session.begin(name, "queued", ask).await);
    }
    for (position, name) in ["second", "third", "fourth"].into_iter().enumerate() {
        let exec = session.exec_info(name).await;
        assert_eq!((&exec["state"], &exec["position"]), (&json!("queued"), &json!(position + 1)));
    }
    let shown = session.show().await;
    assert_eq!((&shown["running"], &shown["queued"]), (&json!(1), &json!(3)));
    assert_eq!(server.metric("belljar_execs_queued").await, 3.0);
    assert_eq!(server.metric("belljar_sessions{state=\"busy\"}").await, 1.0);

    // One is removed from the queue: the others move up, and none runs early.
    let taken = server.post(&session.path("/execs/second/interrupt"), json!({})).await.json(200);
    assert_eq!(taken["interrupted"], 1);
    let second = waiting.remove(0).result().await;
    assert_eq!((&second["status"], &second["exit_code"]), (&json!("interrupted"), &json!(130)));
    assert_eq!(second["reason"], "it was interrupted before it began");
    session.shell("true").await;
    assert_eq!(session.exec_info("third").await["position"], 1);
    assert_eq!(session.exec_info("first").await["state"], "running");
    let fifth = session.begin("fifth", "queued", json!({"code": "order.append('fifth')"})).await;
    assert_eq!(session.exec_info("fifth").await["position"], 3);

    session.release().await;
    held.result().await;
    for pending in waiting.into_iter().chain([fifth]) {
        assert_eq!(pending.result().await["status"], "ok");
    }
    assert_eq!(session.printed("print(*order)").await, "third fourth fifth\n");
    let shown = session.show().await;
    assert_eq!((&shown["state"], &shown["running"]), (&json!("ready"), &json!(0)));
}

#[tokio::test]
async fn a_queue_is_bounded() {
    const MOST: usize = 64;
    let server = Server::start().await;
    let session = server.session().await;
    let held = session.hold("first").await;
    let mut asking = Vec::new();
    for number in 0..MOST + 6 {
        let session = session.clone();
        let ask = json!({"code": format!("print({number})")});
        asking.push(tokio::spawn(async move { session.exec(ask).await }));
    }
    belljar_testkit::wait::eventually("the queue is full and the rest refused", async || {
        let refused = asking.iter().filter(|asked| asked.is_finished()).count();
        refused == 6 && session.show().await["queued"] == MOST
    })
    .await;
    // Commands and other kernels are not affected.
    assert_eq!(session.shell("echo beside").await["stdout"], "beside\n");
    session.release().await;
    held.result().await;
    let (mut done, mut refused) = (0, 0);
    for asked in asking {
        let answer = asked.await.expect("no panic");
        if answer.status == 200 {
            assert_eq!(answer.json(200)["status"], "ok");
            done += 1;
        } else {
            answer.error(429, "queue_full");
            assert_eq!(answer.retry_after(), 1);
            refused += 1;
        }
    }
    assert_eq!((done, refused), (MOST, 6));
}

#[tokio::test]
async fn what_runs_can_be_interrupted() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("x = 'kept'").await;
    let held = session.hold("held").await;
    let command = json!({"command": "echo begun; sleep 1000"});
    let command = session.begin("command", "running", command).await;
    session.has_printed("command", "begun").await;
    let interrupt = |path: &'static str| server.post_path(&session, path);
    assert_eq!(interrupt("/execs/held/interrupt").await["interrupted"], 1);
    let result = held.result().await;
    assert_eq!(
        (&result["status"], &result["kernel_state"]),
        (&json!("interrupted"), &json!("kept"))
    );
    assert_eq!(session.printed("print(x)").await, "kept\n");
    assert_eq!(session.exec_info("command").await["state"], "running");
    assert_eq!(interrupt("/execs/command/interrupt").await["interrupted"], 1);
    assert_eq!(command.result().await["status"], "interrupted");
    // Interrupting a finished execution is not an error.
    assert_eq!(interrupt("/execs/held/interrupt").await["interrupted"], 0);

    // Everything at once: running, queued and parallel executions.
    let held = session.hold("again").await;
    let queued = session.begin("queued", "queued", json!({"code": "1"})).await;
    let bash = json!({"language": "bash", "code": "echo begun; sleep 1000"});
    let bash = session.begin("bash", "running", bash).await;
    session.has_printed("bash", "begun").await;
    assert_eq!(interrupt("/interrupt").await["interrupted"], 3);
    for pending in [held, queued, bash] {
        assert_eq!(pending.result().await["status"], "interrupted");
    }
    assert_eq!(session.printed("print(x)").await, "kept\n");
}
