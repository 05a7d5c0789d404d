//! Counts everything on the machine that sandboxes use.

use std::fs;
use std::time::{Duration, Instant};

use belljar_sys::ids::{IdBlocks, IdRange};
use belljar_sys::procfs;

use belljar_testkit::scratch_host::ScratchHost;

/// How long the machine may take to remove the traces of ended sandboxes.
const PATIENCE: Duration = Duration::from_secs(30);

/// What exists at one moment. Two censuses are equal if nothing was lost or left in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Census {
    /// Our descendants, zombies included.
    processes: Vec<String>,
    mounts: Vec<String>,
    /// Descriptors of this process, by their targets.
    descriptors: Vec<String>,
    /// Sockets, control groups and processes of sandboxes.
    traces: Vec<String>,
    files: Vec<String>,
}

impl Census {
    pub(crate) fn take(scratch: &ScratchHost) -> Census {
        let descendants = procfs::descendants(&procfs::parents(), std::process::id());
        Census {
            processes: sorted(descendants.into_iter().map(|pid| pid.to_string())),
            mounts: sorted(mounts()),
            descriptors: sorted(descriptors()),
            traces: sorted(scratch.traces()),
            files: sorted(names(scratch.run_dir().to_str().expect("text"))),
        }
    }

    /// Takes a census when nothing changes any more: the first sandbox may still be ending.
    pub(crate) fn settled(scratch: &ScratchHost) -> Census {
        const QUIET: Duration = Duration::from_millis(500);
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Census::take(scratch);
        let mut since = Instant::now();
        while since.elapsed() < QUIET && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            let now = Census::take(scratch);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
        seen
    }

    /// Waits until everything is as it was in this census.
    #[track_caller]
    pub(crate) fn wait_until_restored(&self, scratch: &ScratchHost) {
        let deadline = Instant::now() + PATIENCE;
        let mut now = Census::take(scratch);
        while now != *self && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            now = Census::take(scratch);
        }
        // Compared one by one, so that a failure shows which one differs.
        assert_eq!(now.processes, self.processes);
        assert_eq!(now.mounts, self.mounts);
        assert_eq!(now.descriptors, self.descriptors);
        assert_eq!(now.traces, self.traces);
        assert_eq!(now.files, self.files);
    }
}

/// Checks that every block of user ids that was ever allocated can be allocated again.
pub(crate) fn assert_no_ids_are_taken(scratch: &ScratchHost) {
    let directory = scratch.run_dir().join("ids");
    let ever_used = names(directory.to_str().expect("text")).len();
    assert!(ever_used > 0, "ids were used");
    let mut blocks = IdBlocks::new(directory, IdRange::USUAL).expect("the directory is there");
    let taken: Vec<_> = (0..ever_used).map(|_| blocks.take().expect("a block")).collect();
    let numbers: Vec<usize> = taken.iter().map(|taken| taken.block.number as usize).collect();
    assert_eq!(numbers, (1..=ever_used).collect::<Vec<_>>());
}

/// All mounts of the machine, except those of containers, which other tests make at the same time.
fn mounts() -> Vec<String> {
    const CONTAINERS: [&str; 3] = ["/var/lib/docker/", "/run/docker/", "/var/lib/containers/"];
    let mountinfo = read("/proc/self/mountinfo");
    let of_container =
        |line: &str| CONTAINERS.iter().any(|directory| line.contains(&format!(" {directory}")));
    mountinfo.lines().filter(|line| !of_container(line)).map(str::to_owned).collect()
}

fn descriptors() -> impl Iterator<Item = String> {
    let entries = fs::read_dir("/proc/self/fd").expect("we have descriptors").flatten();
    let targets: Vec<_> = entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    // Removes the inode numbers of sockets and pipes. The list includes the directory that was just
    // read.
    let kinds = targets.into_iter().map(|target| target.display().to_string());
    kinds.map(|kind| kind.split(":[").next().unwrap_or_default().to_owned())
}

fn names(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).expect("it is always there")
}

fn sorted<I: IntoIterator<Item = String>>(names: I) -> Vec<String> {
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort();
    names
}
