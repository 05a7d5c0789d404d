//! `belljar init` as PID 1 of a PID namespace, as in a pod.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use belljar_sys::{process, procfs};
use belljar_testkit::installation::{Installation, command_line};
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::skip_unless_root;
use belljar_testkit::wait::{eventually, eventually_blocking};
use serde_json::json;
use tokio::net::UnixStream;

const SIGHUP: i32 = 1;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// `belljar init -- COMMAND` as PID 1. It dies with the program that starts it.
fn init(installation: &Installation, command: &[&str]) -> Command {
    let mut unshare = installation.command("unshare", &["--pid", "--fork", "--mount-proc"]);
    unshare.args(["--kill-child=KILL", "--", belljar_testkit::belljar(), "init", "--"]);
    unshare.args(command);
    unshare
}

fn installation() -> Arc<Installation> {
    let installation = Installation::new();
    let socket = installation.path("api.sock").display().to_string();
    Arc::new(installation.env("BELLJAR_UNIX", &socket))
}

async fn serve(installation: &Arc<Installation>) -> Server {
    installation.serve_by(init(installation, &[belljar_testkit::belljar(), "serve"])).await
}

/// The pid, outside, of the server below `root`.
fn server_below(root: u32) -> Option<u32> {
    let pids = procfs::descendants(&procfs::parents(), root);
    let server = format!("{} serve", belljar_testkit::belljar());
    pids.into_iter().find(|pid| command_line(*pid).trim_end() == server)
}

fn server_pid(server: &Server) -> u32 {
    server_below(server.pid()).expect("a server")
}

fn init_pid(server: &Server) -> u32 {
    let children = procfs::parents();
    children
        .iter()
        .find_map(|(pid, parent)| (*parent == server.pid()).then_some(*pid))
        .expect("init")
}

/// Signals the server, and waits until another one listens.
async fn replaced_after(server: &Server, pid: u32, signal: i32) {
    let before = server_pid(server);
    process::signal(pid, signal).expect("it lives");
    let socket = server.path("api.sock");
    eventually("another server listens", async || {
        server_below(server.pid()).is_some_and(|pid| pid != before)
            && UnixStream::connect(&socket).await.is_ok()
    })
    .await;
    eventually("it is ready", async || server.get("/readyz").await.status == 200).await;
}

#[tokio::test]
async fn sessions_survive_a_killed_server() {
    skip_unless_root!("a PID namespace needs root here");
    let server = serve(&installation()).await;
    let session = server.session_with(json!({"key": "k"})).await;
    session.python("x = [1, 2]").await;
    let info = session.show().await;
    replaced_after(&server, server_pid(&server), SIGKILL).await;
    assert!(server.said().contains("was killed by signal 9"), "{}", server.said());
    let again = Session::of(&server.client(), &session.id);
    assert_eq!(again.printed("x.append(3); print(x)").await, "[1, 2, 3]\n");
    assert_eq!(again.show().await["created_at"], info["created_at"]);
    // A server that does not handle SIGHUP ends by it, and is started again.
    replaced_after(&server, init_pid(&server), SIGHUP).await;
    assert_eq!(again.printed("print(x)").await, "[1, 2, 3]\n");
}

#[tokio::test]
async fn orphans_are_reaped_and_the_server_stops_in_order() {
    skip_unless_root!("a PID namespace needs root here");
    let server = serve(&installation()).await;
    let session = server.session().await;
    session.python("x = 1").await;
    replaced_after(&server, server_pid(&server), SIGKILL).await;
    // The guest of this session is a child of init now.
    server.delete(&session.path("")).await.json(200);
    let init = init_pid(&server);
    let zombies = || {
        let children = procfs::parents().into_iter().filter(|(_, parent)| *parent == init);
        children.filter(|(pid, _)| procfs::is_zombie(*pid)).count()
    };
    eventually("no zombie is left", async || {
        zombies() == 0 && procfs::descendants(&procfs::parents(), init).len() <= 3
    })
    .await;
    process::signal(init, SIGTERM).expect("it lives");
    let mut server = server;
    let status = server.wait().await;
    assert_eq!(status.code(), Some(0), "{}", server.said());
    assert!(server.said().contains("belljar: stopped"), "{}", server.said());
}

fn run(script: &str) -> (Output, Installation) {
    let installation = Installation::new();
    let output = init(&installation, &["sh", "-c", script]).stdin(Stdio::null()).output();
    (output.expect("unshare starts"), installation)
}

#[test]
fn init_ends_with_the_code_of_its_server() {
    skip_unless_root!("a PID namespace needs root here");
    let (stopped, _) = run("exit 0");
    assert_eq!((stopped.status.code(), stopped.stderr), (Some(0), Vec::new()));
    // The first start failed: there is nothing to keep.
    let (failed, _) = run("exit 7");
    assert_eq!((failed.status.code(), failed.stderr), (Some(7), Vec::new()));
    let (missing, _) = {
        let installation = Installation::new();
        (init(&installation, &["/no/such/server"]).output().expect("unshare starts"), installation)
    };
    let said = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(125), "{said}");
    assert!(said.contains("failed to start `/no/such/server`"), "{said}");
}

#[test]
fn a_server_that_is_killed_is_started_again_after_a_pause() {
    skip_unless_root!("a PID namespace needs root here");
    let (output, installation) =
        run("echo start >> starts; [ $(wc -l < starts) = 3 ] || kill -9 $$");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let starts = fs::read_to_string(installation.path("starts")).expect("it was started");
    assert_eq!(starts.lines().count(), 3);
    assert!(said.contains("it is started again in 100 ms"), "{said}");
    assert!(said.contains("it is started again in 200 ms"), "{said}");
}

#[test]
fn signals_are_passed_on_and_not_inherited_blocked() {
    skip_unless_root!("a PID namespace needs root here");
    let installation = Installation::new();
    let script = "trap 'echo usr1 >> got' USR1; trap 'echo term >> got; exit 3' TERM; \
                  touch ready; while :; do sleep 0.01; done";
    let mut child = init(&installation, &["sh", "-c", script]).spawn().expect("unshare starts");
    eventually_blocking("the server runs", || installation.path("ready").exists());
    let parents = procfs::parents();
    let init = parents.iter().find_map(|(pid, parent)| (*parent == child.id()).then_some(*pid));
    let init = init.expect("init");
    let got = || fs::read_to_string(installation.path("got")).unwrap_or_default();
    process::signal(init, 10).expect("it lives");
    eventually_blocking("it got SIGUSR1", || got() == "usr1\n");
    process::signal(init, SIGTERM).expect("it lives");
    assert_eq!(child.wait().expect("our child").code(), Some(3));
    assert_eq!(got(), "usr1\nterm\n");
}
