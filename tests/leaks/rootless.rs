//! Belljar without root: it works, and says exactly what it cannot enforce.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use belljar_sys::procfs;
use insta::assert_snapshot;
use tempfile::TempDir;

/// A user id that is unused on every machine we know of.
const UID: u32 = 54_321;

/// How long processes may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn an_ordinary_user_gets_sandboxes_and_the_truth_about_them() {
    belljar_testkit::skip_unless_root!("becoming another user needs root");
    let user = User::new();
    code_runs(&user);
    doctor_names_what_is_not_enforced(&user);
    strict_refuses(&user);
    volumes_are_directories(&user);
    no_sandbox_outlives_a_killed_host(&user);
    nothing_is_left(&user);
}

/// With the distribution's Python: this user has no environment of packages.
fn code_runs(user: &User) {
    let run = user.belljar(&["run", "-c", "print(1)\nimport os; os.getuid()"]);
    assert_eq!(text(&run.stdout), "1\n1000\n", "{run:?}");
    assert_eq!(run.status.code(), Some(0));
    let warning = text(&run.stderr);
    assert!(warning.starts_with("belljar: warning: not enforced on this machine: "), "{warning}");
    for limit in ["process limit", "memory limit", "cpu limit"] {
        assert!(warning.contains(limit), "{warning}");
    }
    assert!(!warning.contains("network"), "{warning}");

    let data = user.belljar(&["run", "--data", ".", "-c", "open('/data/new', 'w')"]);
    assert_eq!(data.status.code(), Some(1), "{data:?}");
    assert!(text(&data.stderr).contains("Read-only file system"), "{data:?}");
    let late = user.belljar(&["run", "--timeout", "0.5", "-c", "while True: pass"]);
    assert_eq!(late.status.code(), Some(124), "{late:?}");
    let artifact = user.belljar(&["run", "-c", "open('/work/artifacts/a', 'w').write('mine')"]);
    assert_eq!(artifact.status.code(), Some(0), "{artifact:?}");
    let outputs = fs::read_dir(user.directory.path().join("home/outputs")).expect("outputs");
    let run_id = outputs.flatten().next().expect("a run").path();
    assert_eq!(fs::read_to_string(run_id.join("a")).expect("the artifact"), "mine");
}

fn doctor_names_what_is_not_enforced(user: &User) {
    let doctor = user.belljar(&["doctor", "--json"]);
    assert_eq!(doctor.status.code(), Some(0), "{doctor:?}");
    let diagnosis: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    assert_eq!(diagnosis["usable"], true);
    assert_eq!(diagnosis["all_enforced"], false);
    let findings = diagnosis["findings"].as_array().expect("a list").iter();
    // Landlock and these other features depend on the machine, not on the user.
    let others = ["landlock", "docker", "chromium", "node"];
    let findings = findings.filter(|it| !others.iter().any(|name| it["feature"] == *name));
    let states = findings.map(|it| {
        format!(
            "{}: {}",
            it["feature"].as_str().unwrap_or("?"),
            it["state"].as_str().unwrap_or("?")
        )
    });
    assert_snapshot!(states.collect::<Vec<_>>().join("\n"), @r"
    kernel: ok
    seccomp: ok
    volumes: weak
    session files: weak
    python: weak
    user ids: weak
    cgroups: weak
    namespaces: ok
    no network: ok
    cpu limit: weak
    memory limit: weak
    process limit: weak
    ");
    for finding in diagnosis["findings"].as_array().expect("a list") {
        let helpless = finding["state"] == "weak" && finding["advice"].is_null();
        assert!(!helpless, "no advice: {finding:#}");
    }
}

fn strict_refuses(user: &User) {
    let refused = user.command(&["run", "-c", "print(1)"]).env("BELLJAR_STRICT", "1").output();
    let refused = refused.expect("setpriv starts");
    assert_eq!((refused.status.code(), text(&refused.stdout)), (Some(125), String::new()));
    let why = text(&refused.stderr);
    assert!(why.contains("memory limit") && why.contains("BELLJAR_STRICT=1"), "{why}");
}

/// Volumes are shared, can be removed whatever they contain, and are reported as not enforced.
fn volumes_are_directories(user: &User) {
    let socket = user.directory.path().join("home/socket").display().to_string();
    let server = user.command(&["serve", "--unix", &socket, "--stop-sessions"]);
    let server = Server::start(user, server, &socket);
    let (ask, ok) = (|args: &[&str]| server.ask(args), |args: &[&str]| server.ok(args));
    ok(&["volume", "create", "soft", "--size", "4M"]);
    assert!(ok(&["volume", "show", "soft"]).contains("not enforced"));
    let create = |volume| ok(&["session", "create", "--volume", volume]).trim().to_owned();
    let sessions = [create("soft"), create("soft"), create("soft:ro")];
    let sh = |n: usize, code: &str| {
        ask(&["session", "exec", &sessions[n], "--lang", "bash", "-c", code])
    };
    assert!(
        sh(0, "cd /volumes/soft; echo one > a; mkdir -p d/e; touch d/e/f; chmod 0 d")
            .status
            .success()
    );
    assert!(sh(1, "echo two >> /volumes/soft/a").status.success());
    let read = sh(2, "cat /volumes/soft/a; touch /volumes/soft/b");
    assert_eq!(text(&read.stdout), "one\ntwo\n");
    assert!(text(&read.stderr).contains("Read-only file system"), "{read:?}");
    assert!(!ask(&["volume", "remove", "soft"]).status.success(), "it is used");
    ok(&["session", "stop", &sessions[0], &sessions[1], &sessions[2]]);
    ok(&["volume", "remove", "soft"]);
    let volumes = user.directory.path().join("home/belljar/volumes");
    let owner = fs::read_dir(volumes).expect("a directory").flatten().next().expect("its own");
    assert_eq!(fs::read_dir(owner.path()).expect("a directory").count(), 0);
    server.end();
}

/// Sessions with storage BIND have plain files. They can be removed whatever they are, and are
/// reported as not enforced. Private directories of other users are refused as data.
#[test]
fn files_of_an_ordinary_user_are_plain_and_his_own() {
    belljar_testkit::skip_unless_root!("becoming another user needs root");
    let user = User::new();
    private_directories_of_others_are_refused_as_data(&user);
    let socket = user.directory.path().join("home/socket3").display().to_string();
    let server = user.command(&["serve", "--unix", &socket, "--stop-sessions"]);
    let server = Server::start(&user, server, &socket);
    let ok = |args: &[&str]| server.ok(args);
    ok(&["session", "create", "--storage", "BIND", "--key", "k"]);
    let shown = ok(&["session", "show", "k"]);
    assert!(shown.contains("files on disk is not enforced"), "{shown}");
    let write = "echo one > /session/a; mkdir -p d/e; touch d/e/f; chmod 0 d";
    ok(&["session", "exec", "k", "--lang", "bash", "-c", write]);
    let sessions = user.directory.path().join("home/belljar/sessions");
    let file = sessions.join("by-key/k/files/a");
    assert_eq!(fs::read_to_string(file).expect("a file"), "one\n");
    ok(&["session", "stop", "k"]);
    ok(&["session", "remove", "k"]);
    let left = fs::read_dir(&sessions).expect("a directory").flatten();
    let left: Vec<_> =
        left.map(|entry| entry.file_name()).filter(|name| name != "by-key").collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(fs::read_dir(sessions.join("by-key")).expect("a directory").count(), 0);
    server.end();
}

fn private_directories_of_others_are_refused_as_data(user: &User) {
    let private = user.directory.path().join("private");
    fs::DirBuilder::new().mode(0o700).create(&private).expect("a directory");
    let refused = user.belljar(&["run", "--data", &private.display().to_string(), "-c", "1"]);
    let why = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{why}");
    assert!(why.contains("mode 0700") && why.contains("chmod -R o+rX"), "{why}");
}

/// Executes a program under a seccomp filter that makes Landlock unavailable (ENOSYS).
const WITHOUT_LANDLOCK: &str = "
import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7fff0000)]
filter = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(code), ctypes.addressof(filter)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
";

/// Tries to change every file that the kernel gets for writing a snapshot or for being restored
/// from one.
const PLANT: &str = "
import os, stat, belljar_kernel.snapshot as frozen
tried, planted, really = 0, 0, frozen._freeze
def freeze(request, fds, kernel, line):
    global tried, planted
    for fd in fds:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            before, tried = os.pread(fd, 8, 0), tried + 1
            try:
                os.fchmod(fd, 0o600)
                with open(os.open(f'/proc/self/fd/{fd}', os.O_RDWR), 'rb') as again:
                    os.pwrite(again.fileno(), b'planted!', 0)
            except OSError: pass
            planted += os.pread(fd, 8, 0) != before
    return really(request, fds, kernel, line)
frozen._freeze = freeze
";

/// All sandboxes run as the same user as the server. Only the files themselves can prevent changes.
#[test]
fn nothing_can_be_planted_in_what_is_kept_of_kernels() {
    belljar_testkit::skip_unless_root!("becoming another user needs root");
    let user = User::new();
    let socket = user.directory.path().join("home/socket2").display().to_string();
    let belljar = user.directory.path().join("belljar").display().to_string();
    let serve = ["-c", WITHOUT_LANDLOCK, &belljar, "serve", "--unix", &socket, "--stop-sessions"];
    let server = user.program("python3", &serve);
    let server = Server::start(&user, server, &socket);
    let ok = |args: &[&str]| server.ok(args);
    let session = ok(&["session", "create"]).trim().to_owned();
    ok(&["session", "exec", &session, "-c", PLANT]);
    // The second snapshot refers to the first, and so does the one after hibernation.
    ok(&["session", "fork", &session]);
    ok(&["session", "fork", &session]);
    ok(&["session", "hibernate", &session]);
    ok(&["session", "exec", &session, "-c", "x = 41"]);
    let fork = ok(&["session", "fork", &session]).trim().to_owned();
    let seen = ok(&["session", "exec", &session, "-c", "print(tried, planted)"]);
    let (tried, planted) = seen.trim().split_once(' ').expect("two numbers");
    assert!(tried.parse::<u32>().expect("a number") >= 4, "{seen}");
    assert_eq!(planted, "0", "of {tried} files");
    assert_eq!(ok(&["session", "exec", &fork, "-c", "print(x + 1)"]), "42\n");
    server.end();
}

/// Without control groups, only the guest itself can end if its host died before connecting to it.
fn no_sandbox_outlives_a_killed_host(user: &User) {
    for milliseconds in (2..50).step_by(2).chain((2..50).step_by(2)) {
        let mut run = user.command(&["run", "-c", "import time; time.sleep(1000)"]);
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(milliseconds));
        run.kill().and_then(|()| run.wait()).expect("it can be killed");
    }
    let deadline = Instant::now() + PATIENCE;
    while !user.processes().is_empty() {
        assert!(Instant::now() < deadline, "they live on: {:?}", user.processes());
        std::thread::sleep(Duration::from_millis(50));
    }
    // The next run removes the sockets.
    user.belljar(&["run", "-c", "1"]);
}

fn nothing_is_left(user: &User) {
    let run_dir = fs::read_dir(user.directory.path().join("run")).expect("its run directory");
    let left: Vec<_> = run_dir.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["selftest.json"]);
    assert_eq!(user.processes(), [0; 0]);
}

/// An ordinary user with a directory and a copy of the binary.
struct User {
    directory: TempDir,
}

impl User {
    fn new() -> User {
        let directory = tempfile::tempdir().expect("a directory");
        let everybody = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), everybody).expect("it is ours");
        fs::copy(belljar_testkit::belljar(), directory.path().join("belljar")).expect("a copy");
        for name in ["home", "run"] {
            let path = directory.path().join(name);
            fs::create_dir(&path).expect("a directory");
            chown(&path, Some(UID), Some(UID)).expect("root may");
        }
        User { directory }
    }

    /// Live processes only. Dead ones wait for the machine's init.
    fn processes(&self) -> Vec<u32> {
        let entries = fs::read_dir("/proc").expect("processes").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let ours = |pid: &u32| procfs::status_field(*pid, "Uid") == Some(u64::from(UID));
        pids.filter(ours).filter(|pid| !procfs::is_zombie(*pid)).collect()
    }

    fn belljar(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("setpriv starts")
    }

    fn command(&self, args: &[&str]) -> Command {
        self.program(self.directory.path().join("belljar"), args)
    }

    fn program(&self, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Command {
        let home = self.directory.path().join("home");
        let mut command = Command::new("setpriv");
        command
            .args([format!("--reuid={UID}"), format!("--regid={UID}"), "--clear-groups".into()])
            .arg(program)
            .args(args)
            .current_dir(&home)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &home)
            .env("BELLJAR_HOME", home.join("belljar"))
            .env("BELLJAR_RUN_DIR", self.directory.path().join("run"));
        command
    }
}

/// A server of that user. It ends with the test, also if the test fails.
struct Server<'a> {
    user: &'a User,
    url: String,
    process: Child,
}

impl<'a> Server<'a> {
    /// Starts the server and waits until it answers.
    fn start(user: &'a User, mut command: Command, socket: &str) -> Server<'a> {
        command.env("BELLJAR_POOL", "0").stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("setpriv starts");
        let server = Server { user, url: format!("unix:{socket}"), process };
        let deadline = Instant::now() + PATIENCE;
        while !server.ask(&["session", "list"]).status.success() {
            assert!(Instant::now() < deadline, "it does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Runs a command that talks to this server.
    fn ask(&self, args: &[&str]) -> Output {
        let mut command = self.user.command(args);
        command.env("BELLJAR_URL", &self.url).output().expect("setpriv starts")
    }

    /// Runs a command that must succeed, and returns its output.
    fn ok(&self, args: &[&str]) -> String {
        let done = self.ask(args);
        assert!(done.status.success(), "{done:?}");
        text(&done.stdout)
    }

    /// Stops the server in an orderly way.
    fn end(mut self) {
        belljar_sys::process::signal(self.process.id(), 15).expect("it runs");
        self.process.wait().expect("it ends");
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
