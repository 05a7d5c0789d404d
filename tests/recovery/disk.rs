//! Sessions hibernate and fork while the disk of the server is full, also across restarts.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};

use belljar_testkit::client::Answer;
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::{HOLD, Session};
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::eventually;

/// A small disk in its own mount namespace, which ends with the test.
pub(crate) struct Disk {
    holder: Child,
    root: PathBuf,
}

impl Disk {
    /// Puts the state of this installation's servers on a disk of this size.
    pub(crate) fn below(installation: &Installation, size: &str) -> Disk {
        let root = installation.path("state");
        fs::create_dir(&root).expect("a directory");
        let script = format!(
            "mount -t tmpfs -o size={size} tmpfs '{}' && echo mounted && exec cat",
            root.display()
        );
        let mut holder = Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut said = String::new();
        let stdout = holder.stdout.take().expect("it was piped");
        BufReader::new(stdout).read_line(&mut said).expect("a line");
        assert_eq!(said, "mounted\n");
        Disk { holder, root }
    }

    /// Starts a server that sees the disk.
    pub(crate) async fn serve(&self, installation: &Arc<Installation>) -> Server {
        let holder = self.holder.id().to_string();
        let belljar = belljar_testkit::belljar();
        installation
            .serve_by(installation.command("nsenter", &["-m", "-t", &holder, belljar, "serve"]))
            .await
    }

    /// The path of a file on the disk, seen from outside of its namespace.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let root = self.root.strip_prefix("/").expect("an absolute path");
        Path::new(&format!("/proc/{}/root", self.holder.id())).join(root).join(name)
    }

    /// How much space each part of the disk takes, for people to read.
    pub(crate) fn usage(&self) -> String {
        let output = Command::new("du").args(["-ak", "."]).current_dir(self.path("")).output();
        String::from_utf8_lossy(&output.expect("du starts").stdout).into_owned()
    }

    fn filler(&self) -> PathBuf {
        self.path("filler")
    }

    /// Fills the disk except for this many bytes.
    pub(crate) fn fill(&self, leave: u64) {
        let mut file =
            File::options().append(true).create(true).open(self.filler()).expect("a file");
        for piece in [1 << 20, 4096] {
            // Writes as much as fits.
            while file.write(&vec![0; piece]).is_ok_and(|written| written > 0) {}
        }
        let taken = file.metadata().expect("it is there").len();
        file.set_len(taken.saturating_sub(leave)).expect("less of it");
    }

    pub(crate) fn free(&self) {
        let _ = fs::remove_file(self.filler());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Locks the server's database, so that nothing can be written to it.
pub(crate) struct DatabaseLock {
    holder: Child,
}

impl DatabaseLock {
    pub(crate) fn new(state: &Path) -> DatabaseLock {
        let database = state.join("belljar.db");
        assert!(database.exists(), "{database:?}");
        let script = "import sqlite3, sys\n\
                      held = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)\n\
                      held.execute('BEGIN IMMEDIATE')\nprint('held', flush=True)\nsys.stdin.read()";
        let mut holder = Command::new("python3")
            .args(["-c", script, &database.display().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let mut said = String::new();
        let stdout = holder.stdout.take().expect("it was piped");
        BufReader::new(stdout).read_line(&mut said).expect("a line");
        assert_eq!(said, "held\n");
        DatabaseLock { holder }
    }
}

impl Drop for DatabaseLock {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

async fn ask(session: &Session, what: &str, force: bool) -> Answer {
    session.client.post(&session.path(what), json!({"force": force})).await
}

/// The error reports a full disk, and never suggests `force`, which could not help.
#[track_caller]
fn is_full(answer: &Answer) {
    let error: Value = answer.json(507)["error"].clone();
    assert_eq!(error["code"], "out_of_space", "{error:#}");
    assert!(!error.to_string().contains("force"), "{error:#}");
}

/// While the disk is full, every attempt is answered with an error that says so, and nothing is lost. This is true
/// under each server and for any small amount of free space.
#[tokio::test]
async fn a_full_disk_costs_no_variable() {
    let installation = Arc::new(Installation::new().env("BELLJAR_LOG", "off"));
    let disk = Disk::below(&installation, "160m");
    let mut server = disk.serve(&installation).await;
    server.warmed_up().await;
    disk.fill(300_000);
    // Its kernel starts with the zygote's memory while the disk is full.
    let id = server.session().await.id;
    for round in 0..2 {
        let session = Session::of(&server.client(), &id);
        session.python("x = list(range(300_000)); open('f', 'w').write('hi')").await;
        for leave in [0, 20_000, 2 << 20] {
            disk.fill(leave);
            for force in [false, true] {
                is_full(&ask(&session, "/hibernate", force).await);
            }
            is_full(&ask(&session, "/fork", true).await);
            assert_eq!(session.show().await["state"], "ready", "in round {round}");
        }
        disk.free();
        let look = "print(len(x), x[-1], open('f').read())";
        assert_eq!(session.printed(look).await, "300000 299999 hi\n", "in round {round}");
        // With free space the session hibernates, and the memory that kernels have in common is
        // shared now.
        ask(&session, "/hibernate", false).await.json(200);
        let frozen = disk.path("frozen");
        let owner = names(&frozen).remove(0);
        let commons = names(&frozen.join(owner).join("commons"));
        assert_eq!(commons.len(), 1, "{commons:?}");
        assert_eq!(session.printed(look).await, "300000 299999 hi\n", "in round {round}");
        // The next server has another zygote.
        server.kill().await;
        server = disk.serve(&installation).await;
        server.warmed_up().await;
    }
    let session = Session::of(&server.client(), &id);
    let forked = ask(&session, "/fork", false).await.json(201);
    let fork = Session::of(&server.client(), text(&forked["sessions"][0]["id"]));
    assert_eq!(fork.printed("print(len(x))").await, "300000\n");
}

/// An execution ended while the disk was full, and its result could not be stored. The session does not hibernate
/// before the result is stored, and the error says why.
#[tokio::test]
async fn what_could_not_be_stored_is_why_it_does_not_sleep() {
    let installation = Arc::new(Installation::new().env("BELLJAR_LOG", "off"));
    let disk = Disk::below(&installation, "32m");
    let server = disk.serve(&installation).await;
    let session = server.session().await;
    let held = json!({"code": format!("{HOLD}\nx = 5; print('y' * 200_000)"), "timeout": 60});
    let pending = session.begin("held", "running", held).await;
    session.has_printed("held", "holding").await;
    disk.fill(0);
    let put = server.request(hyper::Method::PUT, &session.path("/files/go"), "");
    server.send(put).await.json(200);
    assert_eq!(pending.result().await["status"], "ok");
    is_full(&ask(&session, "/hibernate", true).await);
    assert_eq!(session.show().await["state"], "ready");
    disk.free();
    // The result is stored soon. Then nothing prevents hibernation.
    eventually("it sleeps", async || ask(&session, "/hibernate", false).await.status == 200).await;
    assert_eq!(session.printed("print(x)").await, "5\n");
    assert_eq!(session.exec_info("held").await["state"], "finished");
}
