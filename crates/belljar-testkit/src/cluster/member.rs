//! A node or a gateway: its machine, its settings and its process, which can be killed, paused and started again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_sys::cgroup::{Freezer, Parent};
use tokio::sync::Mutex;

use super::network::Machine;
use super::process::{Process, SIGTERM};
use crate::installation::{Installation, command_line};

pub struct Member {
    pub machine: Machine,
    pub installation: Arc<Installation>,
    /// `node` or `gateway`.
    command: &'static str,
    logs: PathBuf,
    process: Mutex<Option<Process>>,
}

impl Member {
    pub(super) fn new(
        command: &'static str,
        machine: Machine,
        env: &[(String, String)],
        logs: PathBuf,
    ) -> Member {
        let installation = env
            .iter()
            .fold(Installation::new(), |installation, (name, value)| installation.env(name, value));
        let installation = Arc::new(installation);
        Member { machine, installation, command, logs, process: Mutex::new(None) }
    }

    /// Where a gateway listens.
    pub fn gateway_address(&self) -> SocketAddr {
        (self.machine.address, 8443).into()
    }

    /// Starts it, unless it runs.
    pub async fn start(&self) {
        let mut process = self.process.lock().await;
        if process.as_mut().is_none_or(Process::has_ended) {
            *process = Some(self.spawn());
        }
    }

    /// Starts it again if it ended by itself, as Kubernetes does. One that the test killed stays away.
    pub async fn restart_if_ended(&self) {
        let mut process = self.process.lock().await;
        if process.as_mut().is_some_and(Process::has_ended) {
            *process = Some(self.spawn());
        }
    }

    fn spawn(&self) -> Process {
        let enter = self.machine.enter();
        let words: Vec<&str> = enter[1..].iter().map(String::as_str).collect();
        let mut command = self.installation.command(&enter[0], &words);
        command.arg(crate::belljar()).arg(self.command);
        Process::start(&self.machine.name, command, &self.log_path())
    }

    /// Kills it with SIGKILL. Its sandboxes go on.
    pub async fn kill(&self) {
        if let Some(process) = self.process.lock().await.take() {
            process.kill();
        }
    }

    /// Asks it to stop, as an operator would, and waits for its end: a node drains.
    pub async fn terminate(&self) {
        if let Some(process) = self.process.lock().await.take() {
            process.end_by(SIGTERM).await;
        }
    }

    /// Asks it to stop and does not wait.
    pub async fn ask_to_stop(&self) {
        if let Some(process) = &*self.process.lock().await {
            process.signal(SIGTERM);
        }
    }

    /// Stops its main process with SIGSTOP.
    pub async fn pause(&self) {
        if let Some(process) = &*self.process.lock().await {
            process.pause();
        }
    }

    pub async fn resume(&self) {
        if let Some(process) = &*self.process.lock().await {
            process.resume();
        }
    }

    /// Kills its lease watchdog with SIGKILL. Returns whether there was one.
    pub fn kill_watchdog(&self) -> bool {
        self.watchdog().is_some_and(|pid| belljar_sys::process::signal(pid, 9).is_ok())
    }

    /// Kills a process of its own with SIGKILL, by words of its command line. Returns whether there was one.
    pub async fn kill_helper(&self, words: &str) -> bool {
        let process = self.process.lock().await;
        let pid = process.as_ref().and_then(|process| process.descendant(words));
        pid.is_some_and(|pid| belljar_sys::process::signal(pid, 9).is_ok())
    }

    /// Whether it ended by itself, without a fault of the test's.
    pub async fn has_died(&self) -> bool {
        self.process.lock().await.as_mut().is_some_and(Process::has_ended)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Whether all its sandboxes are frozen.
    pub fn is_frozen(&self) -> bool {
        let freezer = self.freezer();
        freezer.is_some_and(|freezer| freezer.is_frozen().expect("a cgroup"))
    }

    fn freezer(&self) -> Option<Freezer> {
        let parent = Parent::prepare(self.installation.scratch().cgroup_parent(), true).ok()?;
        parent.freezer().ok()
    }

    /// The pid of its lease watchdog, which outlives it. Its command line names our cgroup.
    fn watchdog(&self) -> Option<u32> {
        let own = self.installation.scratch().cgroup_parent();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.find(|pid| {
            let command = command_line(*pid);
            command.contains(" lease-watchdog ") && command.contains(own)
        })
    }

    /// Host pids of the first processes of its sandboxes.
    pub fn sandboxes(&self) -> Vec<u32> {
        self.installation.pids_inside(1)
    }

    fn log_path(&self) -> PathBuf {
        self.logs.join(format!("{}.log", self.machine.name))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.process.get_mut().take());
        if self.command != "node" {
            return;
        }
        self.kill_watchdog();
        // Frozen processes could not be killed with the rest of the installation.
        if let Some(freezer) = self.freezer() {
            let _ = freezer.kill();
        }
    }
}
