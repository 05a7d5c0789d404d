//! A run directory and a control group for one test, so that what its sandboxes leave can be distinguished from the
//! rest.

use std::fs;
use std::path::Path;

use belljar_sys::cgroup::Parent;
use belljar_sys::{privileges, process};
use tempfile::TempDir;

/// A run directory and control groups that only this test uses. Both are removed when it is dropped.
pub struct ScratchHost {
    run_dir: TempDir,
    cgroup_parent: String,
}

impl Default for ScratchHost {
    fn default() -> ScratchHost {
        ScratchHost::new()
    }
}

impl ScratchHost {
    pub fn new() -> ScratchHost {
        ScratchHost {
            run_dir: tempfile::tempdir().expect("a directory"),
            cgroup_parent: format!("belljar-test-{}", &process::random_name()[..12]),
        }
    }

    pub fn run_dir(&self) -> &Path {
        self.run_dir.path()
    }

    pub fn cgroup_parent(&self) -> &str {
        &self.cgroup_parent
    }

    /// What sandboxes have left, or are using at the moment: sockets, control groups, processes.
    pub fn traces(&self) -> Vec<String> {
        let mut traces = self.sockets();
        if let Some(parent) = self.parent() {
            traces.extend(parent.names().iter().map(|name| format!("cgroup {name}")));
        }
        traces.extend(self.processes().iter().map(|pid| format!("process {pid}")));
        traces
    }

    fn sockets(&self) -> Vec<String> {
        let entries = fs::read_dir(self.run_dir()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.ends_with(".sock")).map(|name| format!("socket {name}")).collect()
    }

    /// Processes in our control groups.
    pub fn processes(&self) -> Vec<u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/cgroup"))
                .is_ok_and(|groups| groups.contains(&self.cgroup_parent))
        })
        .collect()
    }

    /// `None` without root: then there are no control groups of ours.
    fn parent(&self) -> Option<Parent> {
        privileges::is_root().then(|| Parent::prepare(&self.cgroup_parent, true).ok())?
    }
}

impl Drop for ScratchHost {
    fn drop(&mut self) {
        if let Some(parent) = self.parent() {
            for name in parent.names() {
                let left = parent.adopt(&name);
                left.kill();
                let _ = left.remove();
            }
            // The parent control group itself, in every hierarchy.
            let _ = parent.adopt("").remove();
        }
    }
}
