//! Commands: which processes they leave behind, and which ones end when a command is stopped.

use belljar_proto::exec::{ExecSpec, Language, Status, What};
use belljar_runtime::Limits;

use crate::lab::{Cell, Lab, Session, cell, eventually};

/// Ways for a process to hide from its parent: in the background, orphaned, in its own process
/// session, or all of these with an empty environment.
const DAEMONS: &str = "\
sleep 1000 &
(sleep 1000 &)
setsid sleep 1000 &
(setsid env -i sh -c 'trap \"\" INT TERM; sleep 1000 & wait; sleep 1000' </dev/null >/dev/null 2>&1 &)
";

async fn begin(session: &Session, script: &str, timeout_ms: u64) -> Cell {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let what = What::Command { argv, cwd: "/tmp".into() };
    let env = session.sandbox.environment();
    let spec = ExecSpec { what, env, timeout_ms, grace_ms: 500, ..cell(&session.fresh_id()) };
    session.try_begin(spec, "").await.expect("commands need no kernel")
}

#[tokio::test]
async fn a_command_that_is_stopped_takes_everything_along() {
    let session = Lab::cold().session().await;
    session.sandbox.start_kernel(Language::Bash).await.expect("a shell");
    session.run("import subprocess; child = subprocess.Popen(['sleep', '1000'])").await;
    session.bash("sleep 1000 & child=$!").await;
    let bystander = begin(&session, "setsid sleep 1000 & wait; sleep 1000", 60_000).await;
    let mut before = 0;
    // Two kernels, their children, and the bystander: a keeper, a shell and a daemon.
    eventually("all have started", || {
        before = session.processes().len();
        before == 7
    })
    .await;
    let start = |ending: &str| format!("{DAEMONS}echo on; {ending}");

    for ending in
        ["sleep 1000", "trap 'exit 3' INT; sleep 1000; sleep 1000", "trap '' INT; sleep 1000"]
    {
        let mut command = begin(&session, &start(ending), 60_000).await;
        command.has_printed("on\n").await;
        session.sandbox.interrupt(&command.id).await.expect("it runs");
        let result = command.finish().await;
        assert_eq!((result.status, result.exit_code), (Status::Interrupted, 130), "{ending}");
        eventually("its daemons are gone", || session.processes().len() == before).await;
    }
    let slow = begin(&session, &start("sleep 1000"), 300).await.finish().await;
    assert_eq!((slow.status, slow.exit_code), (Status::Timeout, 124));
    eventually("its daemons are gone", || session.processes().len() == before).await;

    assert_eq!(session.value("child.poll() is None").await, "True", "nothing else was touched");
    assert_eq!(session.bash_says("kill -0 $child").await.1, 0);
    session.sandbox.interrupt(&bystander.id).await.expect("it runs");
    assert_eq!(bystander.finish().await.status, Status::Interrupted);
}

#[tokio::test]
async fn a_command_that_ends_leaves_what_it_wants() {
    let session = Lab::cold().session_with(Limits::default()).await;
    let before = session.processes().len();
    for (script, status, exit_code) in [
        ("exit 0", Status::Ok, 0),
        ("exit 3", Status::Error, 3),
        ("kill -9 $$", Status::Error, 137),
        ("kill -TERM $$", Status::Error, 143),
    ] {
        let result = begin(&session, script, 60_000).await.finish().await;
        assert_eq!((result.status, result.exit_code), (status, exit_code), "{script}");
    }
    eventually("no keeper stays behind", || session.processes().len() == before).await;
    let daemon = begin(&session, "setsid sleep 1000 & echo $!", 60_000).await.finish().await;
    let pid = daemon.stdout.trim();
    session.shell(&format!("kill -0 {pid}")).await;
    outlives_its_keeper(&session).await;
    let missing = What::Command { argv: vec!["/no/such/program".into()], cwd: "/tmp".into() };
    let refused = session.try_begin(ExecSpec { what: missing, ..cell("missing") }, "").await;
    assert!(refused.expect_err("it cannot start").to_string().contains("/no/such/program"));
}

/// A command that kills its parent process (the keeper) is still supervised by the guest.
async fn outlives_its_keeper(session: &Session) {
    let script = "kill -9 $PPID; while kill -0 $PPID; do :; done 2>/dev/null; echo alone; exit 4";
    let result = begin(session, script, 60_000).await.finish().await;
    assert_eq!((result.exit_code, result.stdout.as_str()), (4, "alone\n"), "{result:#?}");
    let script = "kill -9 $PPID; echo on; sleep 1000";
    let mut command = begin(session, script, 60_000).await;
    command.has_printed("on\n").await;
    session.sandbox.interrupt(&command.id).await.expect("it runs");
    assert_eq!(command.finish().await.status, Status::Interrupted);
}
