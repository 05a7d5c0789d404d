//! Forks of sessions, and restoring checkpoints.

use serde_json::{Value, json};

use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

async fn fork(session: &Session, ask: Value) -> Vec<Session> {
    let forked = session.client.post(&session.path("/fork"), ask).await.json(201);
    let sessions = forked["sessions"].as_array().expect("sessions").iter();
    sessions.map(|one| Session::of(&session.client, text(&one["id"]))).collect()
}

#[tokio::test]
async fn forks_have_the_files_and_go_their_own_ways() {
    let server = Server::start().await;
    let ask = json!({"env": {"A": "b"}, "metadata": {"n": 1}, "ttl": 600, "key": "k"});
    let session = server.session_with(ask).await;
    session.shell("printf 1 > n").await;
    let forks = fork(&session, json!({"count": 3, "force": true})).await;
    for (index, fork) in forks.iter().enumerate() {
        let shown = fork.show().await;
        assert_eq!((&shown["ttl"], &shown["metadata"]), (&json!(600), &json!({"n": 1})));
        assert_eq!((&shown["key"], &shown["state"]), (&json!(null), &json!("ready")), "{shown:#}");
        fork.shell(&format!("printf {index} >> n; printf $A >> n")).await;
    }
    session.shell("printf x >> n").await;
    for (index, fork) in forks.iter().enumerate() {
        assert_eq!(fork.shell("cat n").await["stdout"], format!("1{index}b"));
    }
    assert_eq!(session.shell("cat n").await["stdout"], "1x");
    // Each continues without the others.
    session.stop().await;
    forks[0].stop().await;
    assert_eq!(forks[1].shell("cat n").await["stdout"], "11b");
    forks[1].stop().await;
    forks[2].stop().await;
    assert_eq!(server.installation.sleepers(), [""; 0]);
}

#[tokio::test]
async fn all_are_made_or_none() {
    let server = Server::with(&[("BELLJAR_MAX_SESSIONS", "3")]).await;
    let session = server.session().await;
    let ask = json!({"count": 3, "force": true});
    let refused = session.client.post(&session.path("/fork"), ask).await.json(429);
    assert_eq!(refused["error"]["code"], "no_room", "{refused:#}");
    assert_eq!(
        server.get("/v1/sessions").await.json(200)["sessions"].as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(fork(&session, json!({"count": 2, "force": true})).await.len(), 2);
    for count in [0, 101] {
        let ask = json!({"count": count});
        session.client.post(&session.path("/fork"), ask).await.json(422);
    }
}

#[tokio::test]
async fn one_that_sleeps_is_forked_without_waking() {
    let server = Server::start().await;
    let session = server.session().await;
    session.shell("printf 1 > n").await;
    session.client.post(&session.path("/hibernate"), json!({"force": true})).await.json(200);
    let forks = fork(&session, json!({"count": 1})).await;
    assert_eq!(forks[0].shell("cat n").await["stdout"], "1");
    assert_eq!(session.show().await["state"], "hibernated");
}

#[tokio::test]
async fn variables_are_the_same_in_all_forks_and_then_their_own() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("x = [1]; y = x\ndef f(): return len(x)").await;
    let forks = fork(&session, json!({"count": 4})).await;
    for (index, fork) in forks.iter().enumerate() {
        let code = format!("x.extend(range({index})); print(f(), y is x)");
        assert_eq!(fork.printed(&code).await, format!("{} True\n", index + 1));
    }
    assert_eq!(session.printed("print(f())").await, "1\n");
    // A fork of a fork, and a second fork of the same session.
    let again = fork(&forks[3], json!({})).await;
    assert_eq!(again[0].printed("print(f())").await, "4\n");
    session.python("x.append(2)").await;
    let again = fork(&session, json!({})).await;
    assert_eq!(again[0].printed("print(x)").await, "[1, 2]\n");
}

#[tokio::test]
async fn it_goes_back_to_any_execution_and_again() {
    let server = Server::start().await;
    let session = server.session_with(json!({"checkpoints": true})).await;
    for n in 1..=3 {
        let code = format!("x = {n}; open('f', 'w').write(str(x)); open('f{n}', 'w').close()");
        let result =
            session.exec(json!({"code": code, "exec_id": format!("e{n}")})).await.json(200);
        assert_eq!(result["checkpoint"], true, "{result:#}");
    }
    let listed = session.client.get(&session.path("/checkpoints")).await.json(200);
    let listed = listed["checkpoints"].as_array().expect("a list").clone();
    let ids: Vec<&str> = listed.iter().map(|one| text(&one["exec_id"])).collect();
    assert_eq!(ids, ["e1", "e2", "e3"]);
    let look = "import os; print(x, open('f').read(), sorted(os.listdir('.')))";
    for (n, files) in [(1, "'f', 'f1'"), (3, "'f', 'f1', 'f2', 'f3'"), (2, "'f', 'f1', 'f2'")] {
        let ask = json!({"exec_id": format!("e{n}")});
        session.client.post(&session.path("/restore"), ask).await.json(200);
        let seen = session.printed(look).await;
        assert_eq!(seen, format!("{n} {n} ['artifacts', 'data', {files}]\n"));
    }
    let forks = fork(&session, json!({"from": "e1"})).await;
    assert_eq!(forks[0].printed("print(x)").await, "1\n");
    // A hibernated session can be restored too.
    session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
    session.client.post(&session.path("/restore"), json!({"exec_id": "e1"})).await.json(200);
    assert_eq!(session.printed("print(x)").await, "1\n");
    let ask = json!({"exec_id": "nothing"});
    let unknown = session.client.post(&session.path("/restore"), ask).await.json(404);
    assert_eq!(unknown["error"]["code"], "checkpoint_not_found");
}

#[tokio::test]
async fn the_oldest_checkpoints_go_first() {
    let server = Server::start().await;
    let session = server.session_with(json!({"checkpoints": {"max": 2}})).await;
    for n in 1..=4 {
        session
            .exec(json!({"code": format!("x = {n}"), "exec_id": format!("e{n}")}))
            .await
            .json(200);
    }
    let listed = session.client.get(&session.path("/checkpoints")).await.json(200);
    let listed = listed["checkpoints"].as_array().expect("a list").clone();
    let ids: Vec<&str> = listed.iter().map(|one| text(&one["exec_id"])).collect();
    assert_eq!(ids, ["e3", "e4"]);
    session.client.post(&session.path("/restore"), json!({"exec_id": "e1"})).await.json(404);
    session.client.post(&session.path("/restore"), json!({"exec_id": "e3"})).await.json(200);
    assert_eq!(session.printed("print(x)").await, "3\n");
    for bad in [json!("maybe"), json!({"max": 0}), json!({"most": 1})] {
        server.post("/v1/sessions", json!({"checkpoints": bad})).await.json(422);
    }
    let on_disk = json!({"checkpoints": true, "storage": "BIND"});
    server.post("/v1/sessions", on_disk).await.json(422);
}

#[tokio::test]
async fn a_hundred_forks_go_a_hundred_ways() {
    let server = Server::with(&[("BELLJAR_MAX_SESSIONS", "200")]).await;
    let session = server.session_with(json!({"limits": {"memory": "64M"}})).await;
    session.python("x = [1]; log = open('log', 'a+'); log.write('begun '); log.flush(); 0").await;
    let forks = fork(&session, json!({"count": 100})).await;
    assert_eq!(forks.len(), 100);
    for (index, fork) in forks.iter().enumerate() {
        let code = format!("x.append({index}); log.write('{index}'); log.flush(); 0");
        fork.python(&code).await;
    }
    session.python("x.append('origin')").await;
    for (index, fork) in forks.iter().enumerate() {
        let reply = fork.printed("print(x, open('log').read())").await;
        assert_eq!(reply, format!("[1, {index}] begun {index}\n"));
    }
    assert_eq!(session.printed("print(x, open('log').read())").await, "[1, 'origin'] begun \n");
}

#[tokio::test]
async fn volumes_are_there_after_sleep_and_in_forks() {
    let server = Server::start().await;
    server.client().post("/v1/volumes", json!({"name": "shared", "size": "16M"})).await.json(201);
    let session = server.session_with(json!({"volumes": {"shared": "rw"}})).await;
    session.python("x = 1; open('/volumes/shared/n', 'w').write('1')").await;
    session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
    assert_eq!(session.printed("print(x, open('/volumes/shared/n').read())").await, "1 1\n");
    for fork in fork(&session, json!({"count": 2})).await {
        let more = "open('/volumes/shared/n', 'a').write('2'); print(x)";
        assert_eq!(fork.printed(more).await, "1\n");
    }
    assert_eq!(session.printed("print(open('/volumes/shared/n').read())").await, "122\n");
}
