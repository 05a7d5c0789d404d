//! A container engine that is killed, restarted or out of disk space while sessions run. The tests
//! start their own engine and never touch the machine's.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use belljar_sys::{privileges, process};
use serde_json::json;
use tempfile::TempDir;

use crate::backend::{Backend, BackendSite, SHELL_IMAGE};
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::{PATIENCE, eventually};

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

/// A `dockerd` that shares nothing with the machine's, and has the image without Python. Removed on drop.
struct Engine {
    directory: TempDir,
    live_restore: bool,
    daemon: Option<Child>,
}

impl Engine {
    fn start(live_restore: bool) -> Engine {
        let directory = tempfile::tempdir().expect("a directory");
        let mut engine = Engine { directory, live_restore, daemon: None };
        engine.run();
        engine.load_image();
        engine
    }

    /// An engine whose disk has this size.
    fn on_a_small_disk(size: &str) -> Engine {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path().join("data");
        fs::create_dir(&data).expect("a directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&data);
        assert!(mount.status().expect("mount starts").success());
        let mut engine = Engine { directory, live_restore: false, daemon: None };
        engine.run();
        engine.load_image();
        engine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn host(&self) -> String {
        format!("unix://{}", self.path("engine.sock").display())
    }

    fn run(&mut self) {
        let log = File::options().create(true).append(true).open(self.path("log")).expect("a log");
        let flag = |name: &str, path: PathBuf| format!("--{name}={}", path.display());
        let mut command = Command::new("dockerd");
        command
            .args([
                flag("data-root", self.path("data")),
                flag("exec-root", self.path("exec")),
                flag("pidfile", self.path("pid")),
                flag("config-file", self.path("no-such.json")),
                format!("--host={}", self.host()),
            ])
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false", "--group="])
            // Separate namespaces, in case the daemon uses a containerd that others use too.
            .args([
                "--containerd-namespace=belljar-test",
                "--containerd-plugins-namespace=belljar-test-plugins",
            ])
            .args(self.live_restore.then_some("--live-restore"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        fs::write(self.path("no-such.json"), "{}").expect("a file");
        self.daemon = Some(command.spawn().expect("dockerd starts"));
        let deadline = Instant::now() + PATIENCE;
        while !self
            .docker(&["version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
        {
            let log = || fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "dockerd does not answer:\n{}", log());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    fn load_image(&self) {
        let mut saving = Command::new("docker")
            .args(["save", SHELL_IMAGE])
            .stdout(Stdio::piped())
            .spawn()
            .expect("docker starts");
        let image = saving.stdout.take().expect("it was piped");
        let loaded =
            self.docker(&["load", "--quiet"]).stdin(image).output().expect("docker starts");
        assert!(saving.wait().expect("ours").success() && loaded.status.success(), "{loaded:?}");
    }

    fn docker(&self, args: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.arg("--host").arg(self.host()).args(args);
        command
    }

    fn containers(&self) -> usize {
        let listed = self.docker(&["ps", "--all", "--quiet"]).output().expect("docker starts");
        String::from_utf8_lossy(&listed.stdout).lines().count()
    }

    /// Ends the daemon, and waits until it has exited.
    fn end(&mut self, signal: i32) {
        let Some(mut daemon) = self.daemon.take() else { return };
        let _ = process::signal(daemon.id(), signal);
        let deadline = Instant::now() + PATIENCE;
        while daemon.try_wait().expect("it is ours").is_none() {
            if Instant::now() > deadline {
                let _ = daemon.kill();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        // A killed daemon leaves these files, with process ids. Those processes may not have been
        // reaped yet, and the next daemon would wait for them forever.
        for left in ["pid", "exec/containerd/containerd.pid"] {
            let _ = fs::remove_file(self.path(left));
        }
    }

    async fn serve(&self) -> (BackendSite, Server) {
        let installation = Backend::Docker.installation().env("DOCKER_HOST", &self.host());
        // `Native`, because the containers are removed with this engine, not with the site.
        let site = BackendSite::of(Backend::Native, installation.env("SANDBOX_IMAGE", SHELL_IMAGE));
        let server = site.serve().await;
        (site, server)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.daemon.is_none() {
            self.run();
        }
        let listed = self.docker(&["ps", "--all", "--quiet"]).output();
        let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        for container in listed.unwrap_or_default().lines() {
            let _ = self.docker(&["rm", "--force", container]).output();
        }
        self.live_restore = false;
        self.end(SIGTERM);
        // A daemon does not always unmount what it mounted. The last mount is unmounted first.
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = table.lines().filter_map(|line| line.split(' ').nth(4)).rev();
        for mounted in mounts.filter(|path| Path::new(path).starts_with(self.directory.path())) {
            let mut unmount = Command::new("umount");
            let _ = unmount.args(["--lazy", mounted]).stderr(Stdio::null()).status();
        }
    }
}

/// Only root can start an engine. `dockerd` is installed where the other container tests run.
fn can_start_one() -> bool {
    if !privileges::is_root() {
        belljar_testkit::skip::record("only root can start a container engine");
        return false;
    }
    Backend::Docker.if_available().is_some()
}

async fn bash(session: &Session, code: &str) -> String {
    let result = session.exec(json!({"language": "bash", "code": code})).await.json(200);
    assert_eq!(result["status"], "ok", "{result:#}");
    text(&result["stdout"]).to_owned()
}

#[tokio::test]
async fn sessions_outlive_an_engine_that_lets_them() {
    if !can_start_one() {
        return;
    }
    let mut engine = Engine::start(true);
    let (_site, server) = engine.serve().await;
    let session = server.session().await;
    bash(&session, "x=kept").await;
    for signal in [SIGTERM, SIGKILL] {
        engine.end(signal);
        // Running sessions do not need the engine.
        assert_eq!(bash(&session, "echo $x").await, "kept\n");
        assert_eq!(session.shell("echo beside").await["stdout"], "beside\n");
        let refused = server.post("/v1/sessions", json!({})).await;
        let message = refused.error(503, "engine_unreachable");
        assert!(message.contains("start it"), "{message}");
        assert!(refused.retry_after() > 0);
        engine.run();
        assert_eq!(bash(&session, "echo $x").await, "kept\n");
        eventually("sessions can be had again", async || {
            let made = server.post("/v1/sessions", json!({})).await;
            made.status == 201 && {
                Session::of(&server, text(&made.json(201)["id"])).stop().await;
                true
            }
        })
        .await;
        assert_eq!(session.show().await["state"], "ready");
    }
    session.stop().await;
    eventually("nothing is left", async || engine.containers() == 0).await;
}

/// A stopped process, which continues on drop.
struct Stopped(u32);

impl Stopped {
    fn stop(pid: u32) -> Stopped {
        process::signal(pid, SIGSTOP).expect("it runs");
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = process::signal(self.0, SIGCONT);
    }
}

#[tokio::test]
async fn an_engine_that_hangs_later_is_soon_said_to() {
    if !can_start_one() {
        return;
    }
    let engine = Engine::start(false);
    let (_site, server) = engine.serve().await;
    let session = server.session().await;
    bash(&session, "x=kept").await;
    let stopped = Stopped::stop(engine.daemon.as_ref().expect("it runs").id());
    let begun = Instant::now();
    let refused = server.post("/v1/sessions", json!({})).await;
    let message = refused.error(503, "engine_unreachable");
    assert!(message.contains("has not answered for"), "{message}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // Running sessions do not need the engine.
    assert_eq!(bash(&session, "echo $x").await, "kept\n");
    drop(stopped);
    // The container of the earlier request, which the engine creates only now, is removed.
    server.session().await.stop().await;
    eventually("only the first is left", async || engine.containers() == 1).await;
    assert_eq!(bash(&session, "echo $x").await, "kept\n");
}

#[tokio::test]
async fn sessions_that_end_with_their_engine_say_so() {
    if !can_start_one() {
        return;
    }
    let mut engine = Engine::start(false);
    let (_site, server) = engine.serve().await;
    for signal in [SIGTERM, SIGKILL] {
        let session = server.session_with(json!({"key": "k"})).await;
        let ask = json!({"command": "echo on; sleep 1000"});
        let running = session.begin("running", "running", ask).await;
        session.has_printed("running", "on").await;
        engine.end(signal);
        engine.run();
        let result = running.result().await;
        assert_eq!(result["status"], "crashed", "{result:#}");
        assert_eq!(result["stdout"], "on\n");
        let failed = session.becomes("failed").await;
        assert_eq!(failed["ended_because"], "its sandbox ended");
        eventually("nothing is left", async || engine.containers() == 0).await;
    }
    let next = server.post("/v1/sessions", json!({"key": "k"})).await.json(201);
    assert_eq!(next["replaced"]["because"], "its sandbox ended", "{next:#}");
}

#[tokio::test]
async fn a_session_stopped_while_the_engine_is_away_leaves_nothing() {
    if !can_start_one() {
        return;
    }
    let mut engine = Engine::start(true);
    let (site, server) = engine.serve().await;
    let session = server.session().await;
    engine.end(SIGKILL);
    let stopped = session.stop().await;
    assert_eq!(stopped["state"], "stopped", "{stopped:#}");
    engine.run();
    eventually("nothing is left", async || engine.containers() == 0).await;
    let doors = site.installation.scratch().run_dir().join("doors");
    eventually("no door is left", async || belljar_testkit::values::names(&doors).is_empty()).await;
    server.session().await;
}

#[tokio::test]
async fn an_engine_without_room_says_so() {
    if !can_start_one() {
        return;
    }
    let engine = Engine::on_a_small_disk("48m");
    let (_site, server) = engine.serve().await;
    let session = server.session().await;
    bash(&session, "x=kept").await;
    // Fills the disk completely.
    let filler = engine.path("data/filler");
    let _ = fs::write(&filler, vec![0; 64 << 20]);
    let message = server.post("/v1/sessions", json!({})).await.error(507, "out_of_space");
    assert!(message.contains("the disk of the container engine is full"), "{message}");
    assert_eq!(bash(&session, "echo $x").await, "kept\n");
    fs::remove_file(filler).expect("it was there");
    assert_eq!(bash(&server.session().await, "echo room").await, "room\n");
}
