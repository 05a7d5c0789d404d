//! Sessions end when their time is up, never during an execution, and report why.

use std::time::Duration;

use belljar_engine::clock;
use serde_json::{Value, json};

use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

/// Waits until a session would have expired if it were not in use.
async fn outlast(session: &Session) -> Value {
    let expires = session.show().await;
    let deadline = text(&expires["expires"]).to_owned();
    while clock::rfc3339(clock::now_ms()) <= deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // If the driver was going to end the session, it has done so before it answers this.
    session.shell("true").await
}

#[tokio::test]
async fn a_session_expires_unless_it_is_used() {
    let server = Server::start().await;
    let short = server.session_with(json!({"ttl": 1})).await;
    let idle = server.session_with(json!({"ttl": 600, "idle_timeout": 1})).await;
    let used = server.session_with(json!({"ttl": 600})).await;
    assert_eq!(short.becomes("stopped").await["ended_because"], "it expired");
    assert_eq!(idle.becomes("stopped").await["ended_because"], "it was idle for too long");
    assert_eq!(used.show().await["state"], "ready");
    assert_eq!(server.metric("belljar_sessions_expired_total").await, 2.0);
    let gone = short.exec(json!({"code": "1"})).await.error(410, "session_ended");
    assert!(gone.ends_with("has ended: it expired"), "{gone}");
    used.stop().await;
    server.installation.has_no_traces().await;
}

#[tokio::test]
async fn expiry_waits_for_what_runs() {
    let server = Server::start().await;
    let session = server.session_with(json!({"ttl": 1})).await;
    let held = session.hold("held").await;
    let idle = server.session_with(json!({"ttl": 600, "idle_timeout": 1})).await;
    let also_held = idle.hold("held").await;
    assert_eq!(outlast(&session).await["status"], "ok");
    session.release().await;
    let result = held.result().await;
    assert_eq!(
        (&result["status"], &result["stdout"]),
        (&json!("ok"), &json!("holding\nreleased\n"))
    );
    assert_eq!(session.becomes("stopped").await["ended_because"], "it expired");
    idle.release().await;
    assert_eq!(also_held.result().await["status"], "ok");
    assert_eq!(idle.becomes("stopped").await["ended_because"], "it was idle for too long");
}

#[tokio::test]
async fn what_runs_in_the_background_ends_with_the_session_and_says_so() {
    let server = Server::start().await;
    let session = server.session_with(json!({"ttl": 1})).await;
    let ask = json!({"command": "echo begun; sleep 1000", "background": true, "exec_id": "behind"});
    let accepted = session.exec(ask).await.json(202);
    assert_eq!(accepted["background"], true);
    session.has_printed("behind", "begun").await;
    session.becomes("stopped").await;
    let behind = session.exec_info("behind").await;
    assert_eq!(behind["state"], "finished");
    let result = &behind["result"];
    assert_eq!((&result["status"], &result["stdout"]), (&json!("interrupted"), &json!("begun\n")));
    assert_eq!(result["reason"], "the session was ended: it expired");
    server.installation.has_no_traces().await;
}
