//! How long a sandbox lives without a connection, and what a client finds when it connects again.

use std::time::{Duration, Instant};

use belljar_proto::guest::KnownExec;
use tokio::time::{sleep, timeout};

use crate::lab::{Lab, PATIENCE, Session};

#[tokio::test]
async fn a_host_that_comes_back_finds_what_it_left() {
    let session = Lab::cold().session().await;
    let mut running = session.begin("x = 'kept'\nprint('on')\nimport time; time.sleep(1000)").await;
    running.has_printed("on\n").await;
    let known = session.connect().await.known_execs().to_vec();
    assert_eq!(known, [KnownExec { exec_id: running.id.clone(), running: true }]);
    session.sandbox.interrupt(&running.id).await.expect("it runs");
    session.sandbox.interrupt(&running.id).await.expect("as often as you like");
    let id = running.id.clone();
    running.finish().await;
    session.sandbox.interrupt(&id).await.expect("also when it is over");
    let known = session.connect().await.known_execs().to_vec();
    assert_eq!(known, [KnownExec { exec_id: id, running: false }]);
    assert_eq!(session.value("x").await, "'kept'");
}

#[tokio::test]
async fn a_sandbox_without_a_host_ends_when_its_time_is_up() {
    let lab = Lab::cold();
    ends_with_its_last_connection(lab.session_without_kernel().await).await;
    goes_on_alone_for_a_while(lab.session_without_kernel().await).await;
}

/// Closes the connection, as if the server had died. Returns how long the sandbox takes to end.
async fn left_alone(session: &Session) -> Duration {
    let start = Instant::now();
    session.sandbox.link().close();
    timeout(PATIENCE, session.sandbox.ended()).await.expect("it ends");
    start.elapsed()
}

async fn ends_with_its_last_connection(session: Session) {
    let other = session.connect().await;
    session.sandbox.link().close();
    // Long enough for the sandbox to end, if it ended with its first connection.
    sleep(Duration::from_millis(200)).await;
    assert!(other.is_open(), "somebody is still connected");
    drop(other);
    assert!(left_alone(&session).await < Duration::from_secs(2), "at once");
}

async fn goes_on_alone_for_a_while(session: Session) {
    session.sandbox.outlive_host(2).await.expect("it can be told");
    session.shell("echo kept > /tmp/kept").await;
    session.sandbox.link().close();
    // Shorter than the time that the sandbox lives without a connection.
    sleep(Duration::from_secs(1)).await;
    let successor = session.sandbox.link().again().await.expect("it is there");
    // Longer than that time.
    sleep(Duration::from_secs(3)).await;
    assert!(successor.is_open(), "and stays there while somebody is connected");
    assert_eq!(successor.known_execs().len(), 1);
    drop(successor);
    let alone = left_alone(&session).await;
    assert!((1..6).contains(&alone.as_secs()), "it took {alone:?}");
}
