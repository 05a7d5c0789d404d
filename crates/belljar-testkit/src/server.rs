//! A `belljar serve` of our own, in a corner of its own, and a client to talk to it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use belljar_sys::{privileges, process, procfs};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Answer, Client, Target};
use crate::corner::Corner;

/// How long anything may take that takes a moment, on a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Where things are on this machine; everything else starts from the defaults.
const INHERITED: [&str; 3] = ["PATH", "HOME", "BELLJAR_HOME"];

const SIGTERM: i32 = 15;

/// Everything a server leaves on disk and in the kernel; outlives the servers that use it.
pub struct Place {
    corner: Corner,
    directory: TempDir,
    env: Vec<(String, String)>,
    args: Vec<String>,
}

impl Place {
    pub fn new() -> Place {
        let place = Place {
            corner: Corner::new(),
            directory: tempfile::tempdir().expect("a directory"),
            env: Vec::new(),
            args: Vec::new(),
        };
        remember_limits(&place.corner, "native");
        let path = |name: &str| place.path(name).display().to_string();
        let own = [
            ("BELLJAR_RUN_DIR", place.corner.run_dir().display().to_string()),
            ("BELLJAR_CGROUP_PARENT", place.corner.cgroup_parent().to_owned()),
            ("BELLJAR_STATE_DIR", path("state")),
            ("SESSIONS_ROOT", path("sessions")),
            ("BLOBSTORE_DIR", path("blobstore")),
            ("BELLJAR_OUTPUTS_DIR", path("outputs")),
            ("BELLJAR_DATASET_CACHE", path("cache")),
            ("BELLJAR_VOLUMES_DIR", path("volumes")),
            ("BELLJAR_LISTEN", "127.0.0.1:0".to_owned()),
            ("BELLJAR_POOL", "0".to_owned()),
            // Should a test be killed, its sandboxes do not stay for a day.
            ("BELLJAR_ALONE", "60".to_owned()),
            // Nothing to import: the zygote is warm at once.
            ("BELLJAR_PRELOAD", "json".to_owned()),
        ];
        own.into_iter().fold(place, |place, (name, value)| place.env(name, &value))
    }

    pub fn env(mut self, name: &str, value: &str) -> Place {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn args(mut self, args: &[&str]) -> Place {
        self.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where its server keeps sessions as files; below it, one directory for each.
    pub fn frozen(&self) -> PathBuf {
        let owners = self.path("state/frozen");
        owners.join(names(&owners).first().expect("a server was here"))
    }

    /// Of which sessions it has such files.
    pub fn sleepers(&self) -> Vec<String> {
        let mut sleepers = names(&self.frozen());
        // What many have in common.
        sleepers.retain(|name| name != "commons");
        sleepers
    }

    pub fn corner(&self) -> &Corner {
        &self.corner
    }

    /// Starts a server here and waits until it listens.
    pub async fn serve(self: &Arc<Self>) -> Server {
        self.serve_by(self.belljar(&["serve"])).await
    }

    /// The same by another command, which becomes the server.
    pub async fn serve_by(self: &Arc<Self>, command: Command) -> Server {
        match self.try_serve_by(command).await {
            Ok(server) => server,
            Err((status, said)) => panic!("the server did not start ({status}):\n{said}"),
        }
    }

    /// What a server says that cannot start here.
    pub async fn refusal(self: &Arc<Self>) -> String {
        self.refusal_by(self.belljar(&["serve"])).await
    }

    pub async fn refusal_by(self: &Arc<Self>, command: Command) -> String {
        match self.try_serve_by(command).await {
            Ok(server) => panic!("the server did start:\n{}", server.said()),
            Err((status, said)) => {
                assert!(!status.success(), "{said}");
                said
            }
        }
    }

    async fn try_serve_by(
        self: &Arc<Self>,
        mut command: Command,
    ) -> Result<Server, (ExitStatus, String)> {
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("belljar starts");
        let stderr = child.stderr.take().expect("it was piped");
        let said = Arc::new(Mutex::new(String::new()));
        let (address, announced) = tokio::sync::oneshot::channel();
        let heard = Arc::clone(&said);
        std::thread::spawn(move || listen_to(stderr, &heard, address));
        let mut server = Server {
            client: Client::new(Target::Nowhere),
            child: Some(child),
            said,
            place: Arc::clone(self),
        };
        let waited = tokio::time::timeout(PATIENCE, announced).await;
        match waited.unwrap_or_else(|_| panic!("it says nothing:\n{}", server.said())) {
            Ok(url) => {
                server.client = Client::new(Target::parse(&url));
                Ok(server)
            }
            Err(_) => {
                let status = server.wait().await;
                Err((status, server.said()))
            }
        }
    }

    /// `belljar ARGS` with the settings of this place.
    pub fn belljar(&self, args: &[&str]) -> Command {
        self.command(crate::belljar(), args)
    }

    /// Any program with the settings of this place.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.directory.path()).env_clear();
        for name in INHERITED {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.envs(self.env.iter().cloned());
        command
    }

    /// `belljar key create ARGS --json`.
    pub fn key(&self, args: &[&str]) -> Value {
        let output =
            self.belljar(&["key", "create", "--json"]).args(args).output().expect("belljar starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The audit log, line by line.
    pub fn audit(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.path("state/audit.log")).expect("an audit log");
        log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// The log of refused requests; none before the first.
    pub fn refusals(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.path("state/refusals.log")).unwrap_or_default();
        log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Waits until nothing of any sandbox is left.
    pub async fn has_no_traces(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let traces = self.traces();
            if traces.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: {traces:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What sandboxes have left. The spawner may be in our control group too, but in no sandbox.
    fn traces(&self) -> Vec<String> {
        let mut traces = self.corner.traces();
        traces.retain(|trace| match trace.strip_prefix("process ") {
            Some(pid) => pid_inside(pid.parse().expect("a number")).is_some(),
            None => true,
        });
        traces
    }

    /// Host pids of those who have this number in their sandbox; 1 is the guest.
    pub fn pids_inside(&self, number: u32) -> Vec<u32> {
        let mut pids = self.corner.processes();
        // The sandbox in which a zygote is loaded may be there for a moment.
        let is_of_zygote = |pid: u32| {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"));
            groups.is_ok_and(|groups| groups.contains(".zygote-"))
        };
        pids.retain(|pid| pid_inside(*pid) == Some(number) && !is_of_zygote(*pid));
        pids
    }
}

/// What `belljar doctor` would have found out: trying it again in every test proves nothing new.
pub fn remember_limits(corner: &Corner, backend: &str) {
    let verdict = |limit: &str| json!({"limit": limit, "enforced": true, "detail": "as before"});
    let verdicts = ["network", "processes", "memory", "cpu"].map(verdict);
    let remembered = json!({
        "circumstances": {
            "boot": procfs::boot_id(),
            "version": env!("CARGO_PKG_VERSION"),
            "uid": privileges::own_ids().0,
            "cgroup_parent": corner.cgroup_parent(),
            "backend": backend,
            "sets_limits": true,
            "cgroup": fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
        },
        "verdicts": verdicts,
    });
    fs::write(corner.run_dir().join("selftest.json"), remembered.to_string()).expect("a file");
}

/// The number that a process has in its sandbox; none outside.
fn pid_inside(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Keeps what the server says, and tells the address as soon as it is said.
fn listen_to(stderr: impl Read, said: &Mutex<String>, tell: tokio::sync::oneshot::Sender<String>) {
    let mut tell = Some(tell);
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        {
            let mut said = said.lock().expect("nobody panics with it");
            said.push_str(&line);
            said.push('\n');
        }
        if let Some((_, url)) = line.split_once(" listens on ")
            && (url.starts_with("http") || url.starts_with("unix:"))
            && let Some(tell) = tell.take()
        {
            // In a log of JSON a quote follows.
            let url = url.split('"').next().unwrap_or(url);
            let _ = tell.send(url.trim().to_owned());
        }
    }
}

/// A server that runs; killed when dropped. What it leaves goes with its place.
pub struct Server {
    client: Client,
    child: Option<Child>,
    said: Arc<Mutex<String>>,
    pub place: Arc<Place>,
}

impl std::ops::Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Server {
    pub async fn start() -> Server {
        Server::with(&[]).await
    }

    pub async fn with(env: &[(&str, &str)]) -> Server {
        let place = env.iter().fold(Place::new(), |place, (name, value)| place.env(name, value));
        Arc::new(place).serve().await
    }

    /// Waits until packages are loaded: the sandbox in which that happens is gone.
    pub async fn warmed_up(&self) {
        let is_warm = async || self.get("/healthz").await.json(200)["zygote"] == "warm";
        eventually("the zygote is warm", is_warm).await;
    }

    /// A client that outlives the borrow, for what happens at the same time.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Everything it has said so far.
    pub fn said(&self) -> String {
        self.said.lock().expect("nobody panics with it").clone()
    }

    /// Resident memory, in bytes.
    pub fn rss(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib << 10
    }

    /// One of its own processes, outside of sandboxes, with these words in its command line.
    pub fn descendant(&self, words: &str) -> Option<u32> {
        let mut pids = procfs::descendants(&procfs::parents(), self.pid());
        pids.retain(|pid| pid_inside(*pid).is_none() && command_line(*pid).contains(words));
        pids.into_iter().find(|pid| !procfs::is_zombie(*pid))
    }

    /// The value of a counter or gauge; 0 where it does not stand there yet.
    pub async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text(200);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.trim().parse().expect("a number"))
    }

    /// Asks it to stop, as an operator would, and waits for its end.
    pub async fn terminate(mut self) -> String {
        self.ask_to_stop();
        let status = self.wait().await;
        assert!(status.success(), "{status}:\n{}", self.said());
        self.said()
    }

    pub fn ask_to_stop(&self) {
        process::signal(self.pid(), SIGTERM).expect("it runs");
    }

    /// Ends it at once, without a word.
    pub async fn kill(mut self) -> Arc<Place> {
        self.child.as_mut().expect("it runs").kill().expect("it can be killed");
        self.wait().await;
        Arc::clone(&self.place)
    }

    /// Waits for its end.
    pub async fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("nobody has waited for it");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().expect("it is our child") {
                return status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("it does not end:\n{}", self.said());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn session(&self) -> Session {
        self.session_with(json!({})).await
    }

    /// What the server answers to a call of this path of a session.
    pub async fn post_path(&self, session: &Session, path: &str) -> Value {
        self.post_answer(session, path).await.json(200)
    }

    pub async fn post_answer(&self, session: &Session, path: &str) -> Answer {
        self.post(&session.path(path), json!({})).await
    }

    pub async fn session_with(&self, ask: Value) -> Session {
        self.client.session_with(ask).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                eprintln!("--- the server said:\n{}", self.said());
            }
        }
    }
}

pub fn command_line(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ")
}

impl Client {
    pub async fn session_with(&self, ask: Value) -> Session {
        let made = self.post("/v1/sessions", ask).await.json(201);
        Session::of(self, text(&made["id"]))
    }
}

/// A session, seen from outside.
#[derive(Clone)]
pub struct Session {
    pub client: Client,
    pub id: String,
}

/// Runs until somebody makes the file `/session/go`.
pub const HOLD: &str = "\
import os, time
print('holding', flush=True)
while not os.path.exists('/session/go'):
    time.sleep(0.01)
print('released')";

impl Session {
    pub fn of(client: &Client, id: &str) -> Session {
        Session { client: client.clone(), id: id.to_owned() }
    }

    pub fn path(&self, rest: &str) -> String {
        format!("/v1/sessions/{}{rest}", self.id)
    }

    pub async fn show(&self) -> Value {
        self.client.get(&self.path("")).await.json(200)
    }

    pub async fn exec(&self, ask: Value) -> Answer {
        self.client.post(&self.path("/exec"), ask).await
    }

    /// The result of a cell.
    pub async fn python(&self, code: &str) -> Value {
        self.exec(json!({"code": code})).await.json(200)
    }

    /// What a cell has printed that went well.
    pub async fn printed(&self, code: &str) -> String {
        let result = self.python(code).await;
        assert_eq!(result["status"], "ok", "{result:#}");
        text(&result["stdout"]).to_owned()
    }

    /// The result of a shell command beside the kernels.
    pub async fn shell(&self, command: &str) -> Value {
        self.exec(json!({"command": command})).await.json(200)
    }

    /// Begins an execution and waits until it is where it should be.
    pub async fn begin(&self, exec_id: &str, state: &str, mut ask: Value) -> Pending {
        ask["exec_id"] = exec_id.into();
        let session = self.clone();
        let answer = tokio::spawn(async move { session.exec(ask).await });
        let pending = Pending { answer };
        self.reaches(exec_id, state).await;
        pending
    }

    /// A cell that runs until it is released; [`HOLD`].
    pub async fn hold(&self, exec_id: &str) -> Pending {
        let pending = self.begin(exec_id, "running", json!({"code": HOLD})).await;
        self.has_printed(exec_id, "holding").await;
        pending
    }

    /// Waits until an execution has said this on its standard output.
    pub async fn has_printed(&self, exec_id: &str, text: &str) {
        let path = self.path(&format!("/execs/{exec_id}/events"));
        let mut events = self.client.follow(&path).await;
        let mut seen = String::new();
        while !seen.contains(text) {
            let event = events.next().await.expect("it goes on");
            assert_ne!(event.name, "done", "it never said {text:?} but {seen:?}: {event:?}");
            seen += event.data["text"].as_str().unwrap_or_default();
        }
    }

    /// Lets whoever holds go on.
    pub async fn release(&self) {
        let touched = self.shell("touch /session/go").await;
        assert_eq!(touched["status"], "ok", "{touched:#}");
    }

    pub async fn exec_info(&self, exec_id: &str) -> Value {
        self.client.get(&self.path(&format!("/execs/{exec_id}"))).await.json(200)
    }

    /// Waits until an execution is queued, running or finished.
    pub async fn reaches(&self, exec_id: &str, state: &str) {
        let path = self.path(&format!("/execs/{exec_id}"));
        eventually(&format!("{exec_id} is {state}"), async || {
            let answer = self.client.get(&path).await;
            answer.status == 200 && answer.json(200)["state"] == state
        })
        .await;
    }

    /// Waits until the session is in this state.
    pub async fn becomes(&self, state: &str) -> Value {
        eventually(&format!("the session is {state}"), async || {
            self.show().await["state"] == state
        })
        .await;
        self.show().await
    }

    pub async fn stop(&self) -> Value {
        self.client.delete(&self.path("")).await.json(200)
    }
}

/// An execution that somebody waits for.
pub struct Pending {
    answer: tokio::task::JoinHandle<Answer>,
}

impl Pending {
    pub async fn answer(self) -> Answer {
        tokio::time::timeout(PATIENCE, self.answer).await.expect("an answer").expect("no panic")
    }

    pub async fn result(self) -> Value {
        self.answer().await.json(200)
    }

    /// Goes away without waiting for the answer.
    pub fn abandon(self) {
        self.answer.abort();
    }
}

#[track_caller]
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value:#}"))
}

/// Looks again and again until it is so; fails when it does not become so.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Every path below a directory, sorted, relative to it.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
