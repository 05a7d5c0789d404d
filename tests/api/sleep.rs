//! Hibernation: only files of a session are left, and it wakes in the same state.

use std::sync::Arc;

use serde_json::{Value, json};

use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

async fn hibernate(session: &Session, force: bool) -> Value {
    let ask = json!({"force": force});
    session.client.post(&session.path("/hibernate"), ask).await.json(200)
}

#[tokio::test]
async fn files_are_as_they_were_after_a_sleep() {
    let server = Server::start().await;
    let session = server.session().await;
    let made = session
        .shell(
            "mkdir -p a/b && printf hello > a/b/c && chmod 741 a/b/c && ln -s a/b/c link \
             && touch -d @1000000000 a/b/c && printf t > /tmp/t && printf s > /dev/shm/s \
             && mkdir empty",
        )
        .await;
    assert_eq!(made["status"], "ok", "{made:#}");
    let asleep = hibernate(&session, true).await;
    assert_eq!((&asleep["state"], &asleep["memory_used"]), (&json!("hibernated"), &json!(null)));
    server.installation.has_no_traces().await;
    assert_eq!(session.show().await["state"], "hibernated");

    let seen = session
        .shell("cat link /tmp/t /dev/shm/s; stat -c ' %a %Y' a/b/c; ls -d empty; find . | sort | wc -l")
        .await;
    assert_eq!(text(&seen["stdout"]), "hellots 741 1000000000\nempty\n8\n", "{seen:#}");
    assert_eq!(session.show().await["state"], "ready");
    // Once more, after it was woken.
    hibernate(&session, true).await;
    assert_eq!(session.shell("cat link").await["stdout"], "hello");
    session.stop().await;
    assert_eq!(server.installation.sleepers(), [""; 0]);
}

#[tokio::test]
async fn what_was_said_can_be_read_without_waking_it() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("print('before'); open('artifacts/a.txt', 'w').write('x')").await;
    hibernate(&session, true).await;
    let log = session.client.get(&session.path("/log")).await.json(200);
    assert_eq!(log["entries"][0]["stdout"], "before\n", "{log:#}");
    let artifacts = session.client.get(&session.path("/artifacts")).await.json(200);
    assert_eq!(artifacts["artifacts"].as_array().map(Vec::len), Some(1), "{artifacts:#}");
    session.client.patch(&session.path(""), json!({"ttl": 900})).await.json(200);
    assert_eq!(session.show().await["state"], "hibernated");
    let read = session.client.get(&session.path("/files/data?list")).await;
    assert_eq!(read.status, 200);
    assert_eq!(session.show().await["state"], "ready");
}

#[tokio::test]
async fn what_cannot_be_kept_is_named_and_with_force_said_to_be_lost() {
    let server = Server::start().await;
    let session = server.session().await;
    session.exec(json!({"code": "x=1", "language": "bash"})).await.json(200);
    let refused = session.client.post(&session.path("/hibernate"), json!({})).await;
    let error = refused.json(409)["error"].clone();
    assert_eq!(error["code"], "not_quiescent");
    assert!(text(&error["message"]).contains("bash kernel is alive"), "{error:#}");
    assert_eq!(session.show().await["state"], "ready");
    let x = session.exec(json!({"code": "echo $x", "language": "bash"})).await.json(200);
    assert_eq!((&x["stdout"], &x["kernel_state"]), (&json!("1\n"), &json!("kept")));

    let asleep = hibernate(&session, true).await;
    assert_eq!(asleep["lost"].as_array().map(Vec::len), Some(1), "{asleep:#}");
    assert!(text(&asleep["lost"][0]).contains("bash kernel"), "{asleep:#}");
    // A second request returns the same.
    assert_eq!(hibernate(&session, false).await["lost"], asleep["lost"]);
    let x = session.exec(json!({"code": "echo $x", "language": "bash"})).await.json(200);
    assert_eq!((&x["stdout"], &x["kernel_state"]), (&json!("\n"), &json!("lost")), "{x:#}");
    assert!(text(&x["reason"]).contains("left behind"), "{x:#}");
}

#[tokio::test]
async fn it_does_not_sleep_while_something_goes_on() {
    let server = Server::start().await;
    let session = server.session().await;
    let pending = session.hold("busy").await;
    let refused = session.client.post(&session.path("/hibernate"), json!({})).await.json(409);
    assert!(text(&refused["error"]["message"]).contains("`busy` runs"), "{refused:#}");
    session.release().await;
    assert_eq!(pending.result().await["status"], "ok");

    session.shell("sleep 1000 > /dev/null 2>&1 &").await;
    let refused = session.client.post(&session.path("/hibernate"), json!({})).await.json(409);
    assert!(text(&refused["error"]["message"]).contains("sleep 1000"), "{refused:#}");
}

#[tokio::test]
async fn one_wake_serves_all_who_call() {
    let server = Server::start().await;
    let session = server.session().await;
    session.shell("printf 7 > n").await;
    hibernate(&session, true).await;
    let calls: Vec<_> = (0..12)
        .map(|_| {
            let session = session.clone();
            tokio::spawn(async move { session.shell("cat n").await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.expect("an answer")["stdout"], "7");
    }
    assert_eq!(server.installation.pids_inside(1).len(), 1, "one sandbox");
}

#[tokio::test]
async fn it_wakes_only_if_there_is_room() {
    let server = Server::with(&[("BELLJAR_MAX_SESSIONS", "1")]).await;
    let session = server.session().await;
    session.shell("printf 7 > n").await;
    hibernate(&session, true).await;
    let other = server.session().await;
    let refused = session.exec(json!({"command": "cat n"})).await.json(429);
    assert_eq!(refused["error"]["code"], "no_room", "{refused:#}");
    assert_eq!(session.show().await["state"], "hibernated");
    other.stop().await;
    assert_eq!(session.shell("cat n").await["stdout"], "7");
}

#[tokio::test]
async fn it_sleeps_by_itself_and_expires_asleep() {
    let installation =
        Installation::new().env("BELLJAR_HIBERNATE_SEC", "1").env("IDLE_HIBERNATE_SEC", "0");
    let server = Arc::new(installation).serve().await;
    let session = server.session_with(json!({"ttl": 4})).await;
    session.python("x = 5").await;
    session.becomes("hibernated").await;
    let ended = session.becomes("stopped").await;
    assert_eq!(ended["ended_because"], "it expired", "{ended:#}");
    assert_eq!(server.installation.sleepers(), [""; 0]);
    server.installation.has_no_traces().await;
}

#[tokio::test]
async fn variables_are_as_they_were_after_a_sleep() {
    let server = Server::start().await;
    let session = server.session().await;
    session
        .python(
            "import os, collections\nx = list(range(100_000))\nclass C: pass\nc = C(); c.me = c\n\
             def count():\n    n = 0\n    while True:\n        n += 1\n        yield n\n\
             g = count(); next(g)\nos.chdir('/tmp')\nf = open('/session/f', 'w'); f.write('ab'); f.flush()",
        )
        .await;
    for round in 2..5 {
        hibernate(&session, false).await;
        server.installation.has_no_traces().await;
        let seen = session
            .python("f.write('c'); f.flush(); print(sum(x), c.me is c, next(g), os.getcwd())")
            .await;
        assert_eq!(text(&seen["stdout"]), format!("4999950000 True {round} /tmp\n"), "{seen:#}");
        assert_eq!(seen["kernel_state"], "kept", "{seen:#}");
    }
    assert_eq!(session.shell("cat f").await["stdout"], "abccc");
}

#[tokio::test]
async fn a_session_on_disk_keeps_its_files_and_variables() {
    let server = Server::start().await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    session.python("x = 41; open('f', 'w').write('1'); open('/tmp/t', 'w').write('2')").await;
    hibernate(&session, false).await;
    assert_eq!(
        session.printed("print(x + 1, open('f').read(), open('/tmp/t').read())").await,
        "42 1 2\n"
    );
}

#[tokio::test]
async fn a_live_thread_is_named_and_with_force_nothing_else_is_lost() {
    let server = Server::start().await;
    let session = server.session().await;
    session
        .python(
            "import random, threading, time\n\
             t = threading.Thread(target=time.sleep, args=(1000,), name='worker', daemon=True)\n\
             t.start()\nx = 1; random.seed(7)",
        )
        .await;
    let refused = session.client.post(&session.path("/hibernate"), json!({})).await.json(409);
    assert!(text(&refused["error"]["message"]).contains("worker"), "{refused:#}");
    assert_eq!(session.printed("print(x)").await, "1\n");
    let ask = json!({"force": true});
    let forked = session.client.post(&session.path("/fork"), ask).await.json(201);
    let lost = json!(["thread `worker` is alive"]);
    assert_eq!(forked["sessions"][0]["lost"], lost, "{forked:#}");
    assert_eq!(hibernate(&session, true).await["lost"], lost);
    // The thread is dead after the wake, and does not prevent the next hibernation.
    let code = "t.join(); print(x, t.is_alive(), threading.active_count(), random.random())\n\
                again = threading.Thread(target=print, args=('again',)); again.start(); again.join()";
    let seen = session.printed(code).await;
    assert!(seen.starts_with("1 False 1 0.32383276483316237\n"), "{seen}");
    assert_eq!(hibernate(&session, false).await["lost"], json!(null));
    assert_eq!(session.printed("print(x)").await, "1\n");
}

/// `force` drops variables only if the kernel itself cannot be kept, and this is reported before
/// and after.
#[tokio::test]
async fn variables_that_cannot_be_kept_are_said_to_be_lost() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("import mmap; x = 1; shared = mmap.mmap(-1, 4096)").await;
    session.shell("printf 7 > n").await;
    let refused = session.client.post(&session.path("/hibernate"), json!({})).await;
    let message = refused.error(409, "not_kept");
    assert!(message.contains("shared with other processes"), "{message}");
    assert!(refused.text(409).contains("loses the kernel's variables"), "{refused}");
    assert_eq!(session.printed("print(x)").await, "1\n");
    let asleep = hibernate(&session, true).await;
    let lost = text(&asleep["lost"][0]);
    assert!(lost.contains("variables of the python kernel") && lost.contains("shared"), "{lost}");
    // Woken by a command, and hibernated again before a cell could report the loss.
    assert_eq!(session.shell("cat n").await["stdout"], "7");
    assert_eq!(hibernate(&session, false).await["lost"], asleep["lost"]);
    let seen = session.python("print('x' in globals())").await;
    assert_eq!((&seen["stdout"], &seen["kernel_state"]), (&json!("False\n"), &json!("lost")));
    assert!(text(&seen["reason"]).contains("shared with other processes"), "{seen:#}");
}

/// A kernel that died unnoticed is reported after hibernation too.
#[tokio::test]
async fn a_kernel_that_died_before_hibernation_is_reported_after_it() {
    let server = Server::start().await;
    let session = server.session().await;
    let pid = session.printed("import os; x = 1; print(os.getpid())").await;
    let pid = pid.trim();
    // Waits until it is gone, and hibernates at once.
    session.shell(&format!("kill -9 {pid}; while kill -0 {pid} 2> /dev/null; do :; done")).await;
    let asleep = hibernate(&session, false).await;
    assert!(text(&asleep["lost"][0]).contains("python kernel"), "{asleep:#}");
    let seen = session.python("print('x' in globals())").await;
    assert_eq!((&seen["stdout"], &seen["kernel_state"]), (&json!("False\n"), &json!("lost")));
}

/// The process that supervises a command ends a moment after it. It is ours, and must not prevent
/// hibernation.
#[tokio::test]
async fn right_after_a_command_nothing_is_in_the_way() {
    let server = Server::start().await;
    // With so little CPU time its end takes a while.
    let session = server.session_with(json!({"limits": {"cpus": 0.05}})).await;
    for round in 0..8 {
        assert_eq!(session.shell("echo $$ | cat").await["status"], "ok");
        let answer = session.client.post(&session.path("/hibernate"), json!({})).await;
        assert_eq!(answer.status, 200, "in round {round}: {answer}");
    }
}
