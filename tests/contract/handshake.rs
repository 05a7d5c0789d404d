//! The handshake between the server and the guest of a container: other processes cannot connect,
//! and one that does is not taken for the guest.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::backend::{Backend, BackendSite};
use belljar_testkit::session::Session;
use belljar_testkit::values::names;
use belljar_testkit::wait::PATIENCE;

const NOBODY: u32 = 65534;

fn on() -> Option<Backend> {
    Backend::Docker.if_available()
}

/// An attacker that connects to every socket before the guest does, and sends what a guest would send.
struct Intruder {
    enough: Arc<AtomicBool>,
    task: std::thread::JoinHandle<Vec<Vec<u8>>>,
}

impl Intruder {
    /// Runs as the server's own user, whom file permissions do not keep out.
    fn at(doors: PathBuf) -> Intruder {
        let enough = Arc::new(AtomicBool::new(false));
        let reply = Arc::clone(&enough);
        let task = std::thread::spawn(move || {
            let mut heard = Vec::new();
            while !reply.load(Ordering::Relaxed) {
                for name in names(&doors) {
                    let Ok(stream) = UnixStream::connect(doors.join(name).join("host.sock")) else {
                        continue;
                    };
                    heard.push(converse(stream));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            heard
        });
        Intruder { enough, task }
    }

    /// What it received on each of its connections.
    fn leaves(self) -> Vec<Vec<u8>> {
        self.enough.store(true, Ordering::Relaxed);
        self.task.join().expect("it did not panic")
    }
}

/// Sends what a guest sends on its first connection, and reads until the connection is closed.
fn converse(mut stream: UnixStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let _ = stream.write_all(&[0; 32]);
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    heard
}

#[tokio::test]
async fn a_process_that_connects_before_the_guest_learns_nothing() {
    let Some(on) = on() else { return };
    let site = on.site(&[]);
    let server = site.serve().await;
    let doors = site.installation.scratch().run_dir().join("doors");
    let intruder = Intruder::at(doors.clone());
    let session = server.session().await;
    assert_eq!(session.printed("print(6 * 7)").await, "42\n");
    let heard = tokio::task::spawn_blocking(|| intruder.leaves()).await.expect("it ended");
    assert!(!heard.is_empty(), "nobody was there before the guest");
    assert!(heard.iter().all(Vec::is_empty), "{}", String::from_utf8_lossy(&heard.concat()));
    // The guest is connected: the socket is gone, also for code inside.
    let [door] = &names(&doors)[..] else { panic!("not one door") };
    assert_eq!(names(&doors.join(door)), [""; 0]);
    let inside = "import os; print(os.path.exists('/run/belljar/host.sock'))";
    assert_eq!(session.printed(inside).await, "False\n");

    // A server that takes over makes the socket again, and connects to the same guest despite the attacker.
    let installation = server.kill().await;
    let intruder = Intruder::at(doors);
    let server = installation.serve().await;
    let session = Session::of(&server.client(), &session.id);
    assert_eq!(session.printed("print(6 * 7)").await, "42\n");
    let heard = tokio::task::spawn_blocking(|| intruder.leaves()).await.expect("it ended");
    assert!(heard.iter().all(Vec::is_empty), "{}", String::from_utf8_lossy(&heard.concat()));
}

/// The same attack by another user of the machine, whom only file permissions keep out.
const OF_NOBODY: &str = r"
import glob, os, socket, sys
doors = sys.argv[1]
print('begun', flush=True)
while True:
    for path in [doors, *glob.glob(doors + '/*')]:
        try: print('listed', os.listdir(path), flush=True)
        except OSError: pass
    for path in glob.glob(doors + '/*/host.sock'):
        probe = socket.socket(socket.AF_UNIX)
        try: probe.connect(path); print('connected to', path, flush=True)
        except OSError: pass
        probe.close()
";

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Opens `path` and its parents to every user. Then only the server's own permissions keep others out.
fn open_up_to(path: &Path) {
    for directory in path.ancestors().take_while(|path| *path != std::env::temp_dir()) {
        if directory.starts_with(std::env::temp_dir()) {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("ours");
        }
    }
}

#[tokio::test]
async fn other_users_do_not_get_to_the_door() {
    belljar_testkit::skip_unless_root!("only root can do this to a container engine");
    let Some(on) = on() else { return };
    let site = on.site(&[]);
    let run_dir = site.installation.scratch().run_dir();
    open_up_to(run_dir);
    let server = site.serve().await;
    let spy = Command::new("python3")
        .args(["-c", OF_NOBODY])
        .arg(run_dir.join("doors"))
        .uid(NOBODY)
        .gid(NOBODY)
        .stdout(Stdio::piped())
        .spawn();
    let mut spy = Running(spy.expect("python3 starts"));
    let mut said = BufReader::new(spy.0.stdout.take().expect("it was piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it talks");
    assert_eq!(line, "begun\n");
    server.session().await;
    drop(spy);
    let mut seen = String::new();
    said.read_to_string(&mut seen).expect("text");
    assert_eq!(seen, "", "another user saw something");
}

#[tokio::test]
async fn a_run_directory_that_is_not_ours_is_refused() {
    belljar_testkit::skip_unless_root!("only root can do this to a container engine");
    let Some(on) = on() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    // What an attacker who knows this name could prepare: a directory, and a link.
    fs::create_dir(path("theirs")).expect("a directory");
    chown(path("theirs"), Some(NOBODY), Some(NOBODY)).expect("root may");
    fs::create_dir(path("ours")).expect("a directory");
    symlink(path("ours"), path("link")).expect("a link");
    lchown(path("link"), Some(NOBODY), Some(NOBODY)).expect("root may");
    for backend in [on, Backend::Native] {
        for name in ["theirs", "link"] {
            let run_dir = path(name).display().to_string();
            let site =
                BackendSite::of(backend, backend.installation().env("BELLJAR_RUN_DIR", &run_dir));
            let output =
                site.installation.belljar(&["run", "-c", "1"]).output().expect("belljar starts");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{backend:?} {name}");
            assert!(said.contains(&run_dir) && said.contains("BELLJAR_RUN_DIR"), "{said}");
        }
    }
    assert_eq!(names(&path("ours")), [""; 0]);
    // A socket directory that the operator chose is not changed, but must be private.
    fs::set_permissions(path("ours"), fs::Permissions::from_mode(0o755)).expect("ours");
    let site = on.site(&[("BELLJAR_SOCKET_DIR", &path("ours").display().to_string())]);
    let output = site.installation.belljar(&["run", "-c", "1"]).output().expect("belljar starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("chmod 700"), "{said}");
    fs::set_permissions(path("ours"), fs::Permissions::from_mode(0o700)).expect("ours");
    let server = site.serve().await;
    let ran = server.post("/v1/run", json!({"code": "print('ran')"})).await.json(200);
    assert_eq!(ran["stdout"], "ran\n", "{ran:#}");
}
