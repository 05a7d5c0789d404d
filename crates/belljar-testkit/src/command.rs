//! Calls of `belljar` from a test's own directory, with their output and exit status.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use belljar_sys::{process, procfs};
use serde_json::Value;
use tempfile::TempDir;

use crate::scratch_host::ScratchHost;

/// Inherited variables: where things are on this machine. All other settings start from the
/// defaults.
const INHERITED: [&str; 5] =
    ["PATH", "HOME", "BELLJAR_HOME", "BELLJAR_RUN_DIR", "BELLJAR_CGROUP_PARENT"];

pub struct TestContext {
    directory: TempDir,
    env: Vec<(String, String)>,
}

impl Default for TestContext {
    fn default() -> TestContext {
        TestContext::new()
    }
}

impl TestContext {
    pub fn new() -> TestContext {
        TestContext { directory: tempfile::tempdir().expect("a directory"), env: Vec::new() }
    }

    /// Sandboxes use the run directory and control groups of `scratch`.
    pub fn inside(scratch: &ScratchHost) -> TestContext {
        TestContext::new()
            .env("BELLJAR_RUN_DIR", &scratch.run_dir().display().to_string())
            .env("BELLJAR_CGROUP_PARENT", scratch.cgroup_parent())
    }

    pub fn env(mut self, name: &str, value: &str) -> TestContext {
        self.set_env(name, value);
        self
    }

    pub fn set_env(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    /// The last value of a variable.
    pub fn value(&self, name: &str) -> String {
        let set = self.env.iter().rev().find(|(set, _)| set == name);
        set.map(|(_, value)| value.clone()).unwrap_or_default()
    }

    /// Writes a file in the current directory, and makes the directories that lead to it.
    pub fn file(self, name: &str, contents: impl AsRef<[u8]>) -> TestContext {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("below our directory")).expect("a directory");
        fs::write(path, contents).expect("a file");
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `belljar run ARGS`, to its end.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Finished {
        self.finish(self.belljar(["run"]).args(args))
    }

    /// `belljar run ARGS` with something on its standard input.
    pub fn run_with_input<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
        input: impl AsRef<[u8]>,
    ) -> Finished {
        let started = Instant::now();
        let mut command = self.belljar(["run"]);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("belljar starts");
        let mut stdin = child.stdin.take().expect("it was piped");
        // The command may end without reading all of it.
        let _ = stdin.write_all(input.as_ref());
        drop(stdin);
        self.transcript(started, child.wait_with_output().expect("belljar ends"))
    }

    /// The result of `belljar run --json ARGS`.
    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Value {
        self.finish(self.belljar(["run", "--json"]).args(args)).json()
    }

    /// Any `belljar` command, to its end.
    pub fn call<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Finished {
        self.finish(&mut self.belljar(args))
    }

    /// `belljar run ARGS`, left running.
    pub fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        self.leave_running(self.belljar(["run"]).args(args))
    }

    pub fn leave_running(&self, command: &mut Command) -> Running {
        use std::os::unix::process::CommandExt as _;
        // Its own process group, as from a shell: Ctrl-C goes to the whole group and to no other
        // process.
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn().expect("belljar starts");
        let lines = BufReader::new(child.stdout.take().expect("it was piped")).lines();
        let directory = self.directory.path().display().to_string();
        Running { child: Some(child), lines: Some(lines), started, directory }
    }

    pub fn belljar<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.program(crate::belljar());
        command.args(args);
        command
    }

    /// Any program, called as `belljar` is.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.current_dir(self.directory.path()).stdin(Stdio::null()).env_clear();
        for name in INHERITED {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.envs(self.env.iter().cloned());
        command
    }

    pub fn finish(&self, command: &mut Command) -> Finished {
        let started = Instant::now();
        let output = command.output().expect("belljar starts");
        self.transcript(started, output)
    }

    fn transcript(&self, started: Instant, output: Output) -> Finished {
        Finished {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: output.stderr,
            took: started.elapsed(),
            directory: self.directory.path().display().to_string(),
        }
    }
}

/// Output and exit status of a call. `Display` leaves out what differs from one call to the next.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub took: Duration,
    directory: String,
}

impl Finished {
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}\n{self}"))
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code.map_or("by a signal".to_owned(), |code| code.to_string());
        let text = format!(
            "exit {code}\n--- stdout\n{}--- stderr\n{}",
            with_newline(self.stdout()),
            self.stderr()
        );
        f.write_str(&hide_ids(&text.replace(&self.directory, "[CWD]")))
    }
}

fn with_newline(mut text: String) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push_str("[no newline]\n");
    }
    text
}

/// `run_0123456789ab` becomes `run_[ID]`, and so do the ids of sessions, executions and artifacts.
fn hide_ids(text: &str) -> String {
    let text = hide_ids_of(text, "run_", 12);
    let text = hide_ids_of(&text, "ses_", 32);
    let text = hide_ids_of(&text, "art_", 32);
    hide_ids_of(&text, "exec_", 32)
}

fn hide_ids_of(text: &str, prefix: &str, length: usize) -> String {
    let mut pieces = text.split(prefix);
    let mut hidden = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let id = piece.bytes().take_while(u8::is_ascii_hexdigit).count() == length;
        hidden += prefix;
        hidden += if id { "[ID]" } else { "" };
        hidden += if id { &piece[length..] } else { piece };
    }
    hidden
}

/// A `belljar` command that is running; killed if the test fails before the command ends.
pub struct Running {
    /// `Some` until it was waited for.
    child: Option<Child>,
    /// `Some` until the output is no longer read.
    lines: Option<Lines<BufReader<ChildStdout>>>,
    started: Instant,
    directory: String,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Waits for the next line of its output.
    pub fn line(&mut self) -> String {
        let lines = self.lines.as_mut().expect("the output is still read");
        lines.next().expect("it goes on").expect("its output is text")
    }

    /// Does what Ctrl-C does: the whole process group gets the signal.
    pub fn press_ctrl_c(&self) {
        const SIGINT: i32 = 2;
        process::signal_group(self.pid(), SIGINT).expect("it runs");
    }

    /// The command, its spawner, and everything in its sandbox.
    pub fn processes(&self) -> Vec<LiveProcess> {
        let mut pids = procfs::descendants(&procfs::parents(), self.pid());
        pids.push(self.pid());
        pids.into_iter().filter_map(LiveProcess::find).collect()
    }

    pub fn kill(mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().and_then(|()| child.wait()).expect("it can be killed");
    }

    pub fn is_over(&mut self) -> bool {
        self.child.as_mut().expect("it was not waited for").try_wait().expect("a child").is_some()
    }

    /// Waits for its end, and reads the rest of its output.
    pub fn finish(mut self) -> Finished {
        let mut rest = String::new();
        for line in self.lines.take().into_iter().flatten() {
            rest += &(line.expect("its output is text") + "\n");
        }
        self.end(rest)
    }

    /// Waits for its end without reading its output.
    pub fn finish_unheard(mut self) -> Finished {
        drop(self.lines.take());
        self.end(String::new())
    }

    fn end(mut self, stdout: String) -> Finished {
        let child = self.child.take().expect("it was not waited for");
        let output = child.wait_with_output().expect("belljar ends");
        Finished {
            code: output.status.code(),
            stdout: stdout.into_bytes(),
            stderr: output.stderr,
            took: self.started.elapsed(),
            directory: self.directory.clone(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A process, distinguished from a later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveProcess {
    pub pid: u32,
    started: u64,
}

impl LiveProcess {
    fn find(pid: u32) -> Option<LiveProcess> {
        Some(LiveProcess { pid, started: procfs::start_time(pid).ok()? })
    }

    pub fn command(self) -> String {
        let words = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        String::from_utf8_lossy(&words).replace('\0', " ")
    }

    pub fn is_gone(self) -> bool {
        procfs::start_time(self.pid).ok() != Some(self.started) || procfs::is_zombie(self.pid)
    }
}

/// Every path below a directory, sorted, relative to it.
pub fn tree(root: &Path) -> Vec<String> {
    fn walk(directory: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                walk(&path, root, found);
            }
            let relative = path.strip_prefix(root).expect("found below it");
            found.push(hide_ids(&relative.display().to_string()));
        }
    }
    let mut found = Vec::new();
    walk(root, root, &mut found);
    found.sort();
    found
}
