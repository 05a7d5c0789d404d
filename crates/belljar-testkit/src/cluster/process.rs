//! A program on a machine of the test's network, with its log.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use belljar_sys::{process, procfs};

use crate::wait::PATIENCE;

const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
pub const SIGTERM: i32 = 15;
pub const SIGQUIT: i32 = 3;

/// How often the end of a process is looked for.
const INTERVAL: Duration = Duration::from_millis(5);

/// A running program; killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it. Its output is appended to `log`.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Process {
        let file = File::options().create(true).append(true).open(log).expect("a log");
        let errors = file.try_clone().expect("a descriptor");
        command.stdin(Stdio::null()).stdout(Stdio::from(file)).stderr(Stdio::from(errors));
        let child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        Process { name: name.to_owned(), child, log: log.to_owned() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its log, and those of earlier processes of this name.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn signal(&self, signal: i32) {
        // It may have ended by itself.
        let _ = process::signal(self.pid(), signal);
    }

    /// Stops it with SIGSTOP. Its children go on.
    pub fn pause(&self) {
        self.signal(SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(SIGCONT);
    }

    /// The pid of a descendant outside of sandboxes with these words in its command line.
    pub fn descendant(&self, words: &str) -> Option<u32> {
        let pids = procfs::descendants(&procfs::parents(), self.pid());
        pids.into_iter().find(|pid| {
            crate::installation::pid_inside(*pid).is_none()
                && crate::installation::command_line(*pid).contains(words)
                && !procfs::is_zombie(*pid)
        })
    }

    /// Kills it with SIGKILL and waits for its end. Its children may go on.
    pub fn kill(mut self) {
        self.end();
    }

    /// Sends a signal that ends it, and waits. Panics after [`PATIENCE`].
    pub async fn end_by(mut self, signal: i32) -> ExitStatus {
        self.signal(signal);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status;
            }
            assert!(Instant::now() < deadline, "{} does not end:\n{}", self.name, self.log());
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
