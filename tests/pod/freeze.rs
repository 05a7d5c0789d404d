//! All sandboxes of a server are frozen and go on afterwards; the server does not stop meanwhile.

use std::time::{Duration, Instant};

use belljar_sys::cgroup::{Freezer, Parent};
use belljar_testkit::client::Events;
use belljar_testkit::server::Server;
use belljar_testkit::skip_unless_root;
use belljar_testkit::wait::PATIENCE;
use serde_json::json;

/// Freezes all sandboxes of the server, and waits until they stand still.
fn freeze(server: &Server) -> Freezer {
    let parent =
        Parent::find(server.installation.scratch().cgroup_parent(), true).expect("cgroups");
    let freezer = parent.freezer().expect("a freezer");
    let started = Instant::now();
    freezer.freeze().expect("frozen");
    let call = started.elapsed();
    assert!(freezer.wait(PATIENCE).expect("a state"));
    eprintln!("frozen in {call:?}, at rest after {:?}", started.elapsed());
    freezer
}

/// Follows the output of an execution. Returns whether more comes within `limit`.
async fn prints(events: &mut Events, limit: Duration) -> bool {
    tokio::time::timeout(limit, events.next()).await.is_ok()
}

#[tokio::test]
async fn a_busy_sandbox_stops_and_goes_on() {
    skip_unless_root!("only root has cgroups everywhere");
    let server = Server::start().await;
    let session = server.session().await;
    session.python("x = 'kept'").await;
    // It counts in a plain loop, and prints now and then.
    let code = "import os\ni = 0\nwhile not os.path.exists('/session/go'):\n    i += 1\n    \
                if i % 100000 == 0: print(i, flush=True)\nprint('end')";
    let pending = session.begin("counts", "running", json!({"code": code})).await;
    let mut events = server.follow(&session.path("/execs/counts/events")).await;
    assert!(prints(&mut events, PATIENCE).await, "it counts");
    let freezer = freeze(&server);
    // What was printed before is still read.
    while prints(&mut events, Duration::from_millis(500)).await {}
    assert!(!prints(&mut events, Duration::from_secs(1)).await, "it counts while it is frozen");
    assert_eq!(server.get("/readyz").await.status, 200, "the server goes on");
    freezer.thaw().expect("thawed");
    assert!(prints(&mut events, PATIENCE).await, "it counts on");
    drop(events);
    session.release().await;
    assert_eq!(pending.result().await["status"], "ok");
    assert_eq!(session.printed("print(x)").await, "kept\n");
}

#[tokio::test]
async fn a_sandbox_that_is_made_while_all_are_frozen_waits() {
    skip_unless_root!("only root has cgroups everywhere");
    let server = Server::start().await;
    server.warmed_up().await;
    let freezer = freeze(&server);
    let client = server.client();
    let made = tokio::spawn(async move { client.session_with(json!({})).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!made.is_finished(), "it runs in a frozen cgroup");
    assert_eq!(server.get("/readyz").await.status, 200, "the server goes on");
    freezer.thaw().expect("thawed");
    let session = made.await.expect("a session");
    assert_eq!(session.printed("print(1)").await, "1\n");
}

#[tokio::test]
async fn frozen_sandboxes_can_be_killed() {
    skip_unless_root!("only root has cgroups everywhere");
    let server = Server::start().await;
    let session = server.session().await;
    session.python("x = 1").await;
    let freezer = freeze(&server);
    freezer.kill().expect("killed");
    let failed = session.becomes("failed").await;
    eprintln!("{failed:#}");
    assert_eq!(server.session().await.printed("print(2)").await, "2\n");
}
