//! The directories, settings and control groups of a server. They outlive the servers that use them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use belljar_sys::{privileges, procfs};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scratch_host::ScratchHost;
use crate::values::names;
use crate::wait::PATIENCE;

/// Inherited variables: where things are on this machine. All other settings start from the
/// defaults.
const INHERITED: [&str; 3] = ["PATH", "HOME", "BELLJAR_HOME"];

/// The directories, settings and control groups of a server. They outlive the servers that use them.
pub struct Installation {
    scratch: ScratchHost,
    directory: TempDir,
    env: Vec<(String, String)>,
    pub(crate) args: Vec<String>,
}

impl Default for Installation {
    fn default() -> Installation {
        Installation::new()
    }
}

impl Installation {
    pub fn new() -> Installation {
        let installation = Installation {
            scratch: ScratchHost::new(),
            directory: tempfile::tempdir().expect("a directory"),
            env: Vec::new(),
            args: Vec::new(),
        };
        remember_limits(&installation.scratch, "native");
        let path = |name: &str| installation.path(name).display().to_string();
        let own = [
            ("BELLJAR_RUN_DIR", installation.scratch.run_dir().display().to_string()),
            ("BELLJAR_CGROUP_PARENT", installation.scratch.cgroup_parent().to_owned()),
            ("BELLJAR_STATE_DIR", path("state")),
            ("SESSIONS_ROOT", path("sessions")),
            ("BLOBSTORE_DIR", path("blobstore")),
            ("BELLJAR_OUTPUTS_DIR", path("outputs")),
            ("BELLJAR_DATASET_CACHE", path("cache")),
            ("BELLJAR_VOLUMES_DIR", path("volumes")),
            ("BELLJAR_LISTEN", "127.0.0.1:0".to_owned()),
            ("BELLJAR_POOL", "0".to_owned()),
            // If a test is killed, its sandboxes do not stay for a day.
            ("BELLJAR_ALONE", "60".to_owned()),
            // Nothing to import: the zygote is warm at once.
            ("BELLJAR_PRELOAD", "json".to_owned()),
        ];
        own.into_iter()
            .fold(installation, |installation, (name, value)| installation.env(name, &value))
    }

    pub fn env(mut self, name: &str, value: &str) -> Installation {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn args(mut self, args: &[&str]) -> Installation {
        self.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where its server stores snapshots; one directory for each session.
    pub fn frozen(&self) -> PathBuf {
        let owners = self.path("state/frozen");
        owners.join(names(&owners).first().expect("a server was here"))
    }

    /// The sessions that have snapshots.
    pub fn sleepers(&self) -> Vec<String> {
        let mut sleepers = names(&self.frozen());
        // Layers that many sessions have in common.
        sleepers.retain(|name| name != "commons");
        sleepers
    }

    pub fn scratch(&self) -> &ScratchHost {
        &self.scratch
    }

    /// `belljar ARGS` with these settings.
    pub fn belljar(&self, args: &[&str]) -> Command {
        self.command(crate::belljar(), args)
    }

    /// Any program with these settings.
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
        let mut traces = self.scratch.traces();
        traces.retain(|trace| match trace.strip_prefix("process ") {
            Some(pid) => pid_inside(pid.parse().expect("a number")).is_some(),
            None => true,
        });
        traces
    }

    /// Host pids of the processes that have this pid in their sandbox; 1 is the guest.
    pub fn pids_inside(&self, number: u32) -> Vec<u32> {
        let mut pids = self.scratch.processes();
        // The sandbox that loads a zygote may exist for a moment.
        let is_of_zygote = |pid: u32| {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"));
            groups.is_ok_and(|groups| groups.contains(".zygote-"))
        };
        pids.retain(|pid| pid_inside(*pid) == Some(number) && !is_of_zygote(*pid));
        pids
    }
}

/// Stores what `belljar doctor` would find out, so that servers do not try it again in every test.
pub fn remember_limits(scratch: &ScratchHost, backend: &str) {
    let verdict = |limit: &str| json!({"limit": limit, "enforced": true, "detail": "as before"});
    let verdicts = ["network", "processes", "memory", "cpu"].map(verdict);
    let remembered = json!({
        "circumstances": {
            "boot": procfs::boot_id(),
            "version": env!("CARGO_PKG_VERSION"),
            "uid": privileges::own_ids().0,
            "cgroup_parent": scratch.cgroup_parent(),
            "backend": backend,
            "sets_limits": true,
            "cgroup": fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
        },
        "verdicts": verdicts,
    });
    fs::write(scratch.run_dir().join("selftest.json"), remembered.to_string()).expect("a file");
}

/// The pid of a process inside its sandbox; none outside.
pub(crate) fn pid_inside(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The command line of a process; empty if there is none.
pub fn command_line(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ")
}
