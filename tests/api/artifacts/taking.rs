//! Which files are taken, when, and how often.

use serde_json::json;

use super::ArtifactSession as _;
use super::{only, refused, reply};
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;

#[tokio::test]
async fn whatever_runs_is_asked_what_it_left() {
    let server = Server::start().await;
    let session = server.session().await;
    let nothing = session.python("1").await;
    assert_eq!((&nothing["artifacts"], &nothing["artifact_map"]), (&json!([]), &json!({})));
    assert!(nothing.get("artifacts_refused").is_none(), "{nothing:#}");

    assert_eq!(reply(&session.leaves("cell", "1").await), ["cell"]);
    let shell_cell = json!({"language": "bash", "code": "echo 2 > /session/artifacts/shell_cell"});
    assert_eq!(reply(&session.exec(shell_cell).await.json(200)), ["shell_cell"]);
    assert_eq!(reply(&session.shell("echo 3 > artifacts/command").await), ["command"]);
    // Failed executions leave artifacts too.
    let failed = session.python("open('/session/artifacts/failed', 'w').write('4')\n1 / 0").await;
    assert_eq!((reply(&failed), &failed["status"]), (vec!["failed"], &json!("error")));
    let late = json!({"code": "open('/session/artifacts/late', 'w').write('5')\nwhile True: pass",
                      "timeout": 0.3});
    let late = session.exec(late).await.json(200);
    assert_eq!((reply(&late), &late["status"]), (vec!["late"], &json!("timeout")));
    let behind = json!({"command": "echo 6 > artifacts/behind", "background": true,
                        "exec_id": "behind"});
    session.exec(behind).await.json(202);
    session.reaches("behind", "finished").await;
    assert_eq!(reply(&session.exec_info("behind").await["result"]), ["behind"]);
    assert_eq!(session.inside().await, "", "what was taken is gone");
}

#[tokio::test]
async fn new_and_changed_files_are_taken_and_folders_stay() {
    let server = Server::start().await;
    let session = server.session().await;
    let many =
        "cd artifacts; mkdir -p a/b/c empty; echo 1 > top; echo 2 > a/one; echo 3 > a/b/c/two";
    assert_eq!(reply(&session.shell(many).await), ["a/b/c/two", "a/one", "top"]);
    let folders = session.shell("cd artifacts; find . | sort").await;
    assert_eq!(folders["stdout"], ".\n./a\n./a/b\n./a/b/c\n./empty\n");
    // The same path again, with the same content and with different content.
    let first = session.leaves("a/one", "2\n").await;
    let second = session.leaves("a/one", "changed").await;
    assert_ne!(only(&first)["sha256"], only(&second)["sha256"]);
    assert_ne!(only(&first)["id"], only(&second)["id"]);
    let listed = server.get(&session.path("/artifacts")).await.json(200);
    assert_eq!(reply(&listed), ["a/one", "a/one", "top", "a/one", "a/b/c/two"]);
    assert_eq!(server.metric("belljar_artifacts_total").await, 5.0);
}

/// An artifact that was reported once is not reported again, not even by a server that started
/// later.
#[tokio::test]
async fn files_that_stay_are_reported_once() {
    let server = Server::with(&[("BELLJAR_KEEP_ARTIFACTS", "1")]).await;
    let session = server.session().await;
    assert_eq!(reply(&session.leaves("one", "1").await), ["one"]);
    assert_eq!(reply(&session.leaves("two", "2").await), ["two"]);
    assert_eq!(reply(&session.python("1").await), [""; 0]);
    assert_eq!(session.inside().await, "one two");
    assert_eq!(reply(&session.shell("echo changed > artifacts/one").await), ["one"]);

    let installation = server.kill().await;
    let server = installation.serve().await;
    let session = Session::of(&server, &session.id);
    assert_eq!(reply(&session.python("2").await), [""; 0]);
    assert_eq!(reply(&session.leaves("three", "3").await), ["three"]);
    assert_eq!(reply(&session.shell("echo again > artifacts/two").await), ["two"]);
    let back = session.shell("printf 2 > artifacts/two").await;
    assert_eq!(reply(&back), ["two"], "what it was before is news again");
    assert_eq!(session.inside().await, "one three two");
    let installation = server.kill().await;
    let server = installation.serve().await;
    let session = Session::of(&server, &session.id);
    assert_eq!(reply(&session.shell("echo last > artifacts/one").await), ["one"]);
    let listed = server.get(&session.path("/artifacts")).await.json(200);
    assert_eq!(reply(&listed), ["one", "two", "two", "three", "one", "two", "one"]);
}

#[tokio::test]
async fn files_that_cannot_be_removed_are_reported_once() {
    let server = Server::start().await;
    let session = server.session().await;
    let stuck = "mkdir artifacts/a; echo 1 > artifacts/a/stuck; chmod 555 artifacts/a";
    assert_eq!(reply(&session.shell(stuck).await), ["a/stuck"]);
    for _ in 0..2 {
        let quiet = session.python("1").await;
        assert_eq!((reply(&quiet), refused(&quiet)), (vec![], vec![]), "{quiet:#}");
    }
    assert_eq!(reply(&session.leaves("other", "2").await), ["other"]);
    assert_eq!(session.inside().await, "a/stuck");
    let freed = session.shell("chmod 755 artifacts/a; echo changed > artifacts/a/stuck").await;
    assert_eq!(reply(&freed), ["a/stuck"]);
    assert_eq!(session.inside().await, "");
}
