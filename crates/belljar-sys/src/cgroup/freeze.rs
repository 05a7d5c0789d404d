//! Freezes, thaws and kills all processes below one cgroup, such as all sandboxes of a server.
//!
//! The server and its spawner are outside of that cgroup, so they go on. A frozen process keeps its memory and its connections;
//! it only stops to run. A process that joins a frozen cgroup is frozen too, so no new sandbox escapes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{CgroupError, Parent};

/// Linux freezes asynchronously: how often [`Freezer::wait`] looks whether it is done.
const POLL: Duration = Duration::from_millis(1);

/// How often processes are looked for and killed where Linux cannot kill a whole cgroup, and the pause between.
const KILL_ROUNDS: u32 = 50;
const KILL_PAUSE: Duration = Duration::from_millis(10);

/// The files of a cgroup that freeze, thaw and kill. They are open from the beginning: freezing is one system call.
#[derive(Debug)]
pub struct Freezer {
    directory: PathBuf,
    generation: Generation,
    /// `cgroup.freeze` or `freezer.state`.
    switch: File,
    /// `cgroup.kill`, since Linux 5.14.
    kill: Option<File>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Generation {
    V1,
    V2,
}

impl Freezer {
    /// The freezer of the cgroup with this directory.
    pub fn open(directory: &Path) -> Result<Freezer, CgroupError> {
        let (generation, file) = if directory.join("cgroup.freeze").exists() {
            (Generation::V2, "cgroup.freeze")
        } else {
            (Generation::V1, "freezer.state")
        };
        let path = directory.join(file);
        let switch = File::options().write(true).read(true).open(&path);
        let kill = File::options().write(true).open(directory.join("cgroup.kill")).ok();
        Ok(Freezer {
            directory: directory.to_owned(),
            generation,
            switch: switch.map_err(|cause| CgroupError::Open { path, cause })?,
            kill,
        })
    }

    /// Its directory, with which another process can open the same freezer.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// From now on no process of the cgroup returns to its code. Does not wait for processes that are in a system call.
    pub fn freeze(&self) -> io::Result<()> {
        self.switch(match self.generation {
            Generation::V1 => "FROZEN",
            Generation::V2 => "1",
        })
    }

    /// All processes of the cgroup go on.
    pub fn thaw(&self) -> io::Result<()> {
        self.switch(match self.generation {
            Generation::V1 => "THAWED",
            Generation::V2 => "0",
        })
    }

    /// Whether all processes of the cgroup stand still.
    pub fn is_frozen(&self) -> io::Result<bool> {
        match self.generation {
            Generation::V1 => {
                let mut state = [0; 16];
                let len = self.switch.read_at(&mut state, 0)?;
                Ok(state[..len].starts_with(b"FROZEN"))
            }
            Generation::V2 => {
                let events = fs::read_to_string(self.directory.join("cgroup.events"))?;
                Ok(events.lines().any(|line| line == "frozen 1"))
            }
        }
    }

    /// Waits, at most for `limit`, until all processes of the cgroup stand still. Returns whether they do.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        while !self.is_frozen()? {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(POLL);
        }
        Ok(true)
    }

    /// Kills all processes of the cgroup, frozen or not, and leaves it thawed. None of them runs code of its own again.
    pub fn kill(&self) -> io::Result<()> {
        if let Some(kill) = &self.kill {
            kill.write_all_at(b"1", 0)?;
            return self.thaw();
        }
        for _ in 0..KILL_ROUNDS {
            // A frozen process cannot fork, so none is missed. Version 1 delivers the signal when the process is thawed.
            self.freeze()?;
            self.wait(KILL_PAUSE)?;
            let pids = processes(&self.directory);
            for &pid in &pids {
                let _ = crate::process::signal(pid, libc::SIGKILL);
            }
            self.thaw()?;
            if pids.is_empty() {
                return Ok(());
            }
            std::thread::sleep(KILL_PAUSE);
        }
        Err(io::Error::other("processes are left after they were killed"))
    }

    fn switch(&self, state: &str) -> io::Result<()> {
        self.switch.write_all_at(state.as_bytes(), 0)
    }
}

impl Parent {
    /// Freezes all sandboxes at once. All servers with the same parent share it.
    pub fn freezer(&self) -> Result<Freezer, CgroupError> {
        let can_freeze = |directory: &&Path| {
            directory.join("cgroup.freeze").exists() || directory.join("freezer.state").exists()
        };
        Freezer::open(self.directories().find(can_freeze).ok_or(CgroupError::NoFreezer)?)
    }
}

/// The processes of a cgroup and of all cgroups below it.
fn processes(directory: &Path) -> Vec<u32> {
    let own = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<u32> = own.lines().filter_map(|line| line.parse().ok()).collect();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            pids.extend(processes(&entry.path()));
        }
    }
    pids
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::super::Limits;
    use super::*;

    #[test]
    fn version_2_is_frozen_thawed_and_killed_by_one_write_each() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        fs::write(file("cgroup.freeze"), "0\n").unwrap();
        fs::write(file("cgroup.kill"), "").unwrap();
        fs::write(file("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        let freezer = Freezer::open(dir.path()).unwrap();
        freezer.freeze().unwrap();
        assert_eq!(fs::read_to_string(file("cgroup.freeze")).unwrap(), "1\n");
        assert!(!freezer.wait(Duration::from_millis(5)).unwrap());
        fs::write(file("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        assert!(freezer.wait(Duration::from_secs(10)).unwrap());
        freezer.kill().unwrap();
        assert_eq!(fs::read_to_string(file("cgroup.kill")).unwrap(), "1");
        assert_eq!(fs::read_to_string(file("cgroup.freeze")).unwrap(), "0\n");
    }

    #[test]
    fn a_cgroup_that_cannot_freeze_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Freezer::open(dir.path()), Err(CgroupError::Open { .. })));
    }

    /// A process that counts in a file, in a cgroup below `directory`.
    struct Counting {
        child: Child,
        cgroup: PathBuf,
        file: PathBuf,
    }

    impl Counting {
        fn start(directory: &Path, file: PathBuf) -> Counting {
            let cgroup = directory.join("counting");
            fs::create_dir(&cgroup).unwrap();
            let script = "echo $$ > \"$1\"; while :; do i=$((i+1)); echo $i > \"$2\"; done";
            let child = Command::new("/bin/sh")
                .args(["-c", script, "sh"])
                .args([&cgroup.join("cgroup.procs"), &file])
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            Counting { child, cgroup, file }
        }

        fn count(&self) -> u64 {
            // The file is empty for a moment at each write.
            loop {
                let text = fs::read_to_string(&self.file).unwrap_or_default();
                if let Ok(count) = text.trim().parse() {
                    return count;
                }
            }
        }

        fn counts(&self) -> bool {
            let before = self.count();
            let deadline = Instant::now() + Duration::from_secs(20);
            while self.count() == before && Instant::now() < deadline {
                std::thread::sleep(POLL);
            }
            self.count() > before
        }
    }

    impl Drop for Counting {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = fs::remove_dir(&self.cgroup);
        }
    }

    fn freezes_for_real(directory: &Path) {
        let dir = tempfile::tempdir().unwrap();
        let freezer = Freezer::open(directory).unwrap();
        let mut counting = Counting::start(directory, dir.path().join("count"));
        assert!(counting.counts());
        freezer.freeze().unwrap();
        assert!(freezer.wait(Duration::from_secs(20)).unwrap());
        // Written in one piece while it stands still, unless it was frozen between emptying and writing.
        let text = fs::read_to_string(&counting.file).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(fs::read_to_string(&counting.file).unwrap(), text, "it counts on");
        freezer.thaw().unwrap();
        assert!(counting.counts());
        freezer.freeze().unwrap();
        assert!(freezer.wait(Duration::from_secs(20)).unwrap());
        freezer.kill().unwrap();
        assert!(!counting.child.wait().unwrap().success(), "a frozen process can be killed");
        assert!(!freezer.is_frozen().unwrap());
    }

    /// Needs root, as the tests of sandboxes do.
    #[test]
    fn processes_of_this_machine_are_frozen_and_go_on() {
        if !crate::privileges::is_root() {
            return;
        }
        let name = format!("belljar-test-{}", &crate::process::random_name()[..12]);
        let parent = Parent::prepare(&name, true).unwrap();
        let directory = parent.freezer().unwrap().directory().to_owned();
        freezes_for_real(&directory);
        assert!(parent.create("sandbox", &LIMITS).unwrap().remove());
        parent.directories().for_each(|directory| fs::remove_dir(directory).unwrap());
    }

    const LIMITS: Limits = Limits { memory: 64 << 20, millicpus: 1000, pids: 10 };

    /// Version 1 alone, where this machine has its freezer.
    #[test]
    fn the_freezer_of_version_1_does_the_same() {
        let root = Path::new("/sys/fs/cgroup/freezer");
        if !crate::privileges::is_root() || !root.join("cgroup.procs").exists() {
            return;
        }
        let directory = root.join(format!("belljar-test-{}", &crate::process::random_name()[..12]));
        fs::create_dir(&directory).unwrap();
        freezes_for_real(&directory);
        fs::remove_dir(&directory).unwrap();
    }
}
