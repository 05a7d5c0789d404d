//! Limits on memory, processor time and processes, on v2, v1 and hybrid hosts.
//!
//! A sandbox has one directory of the same name in every hierarchy of the [`Layout`], below our parent directory. The server
//! makes and removes them. A process joins by writing to the `cgroup.procs` descriptors that the server opened, and so needs
//! no rights.

mod freeze;
mod layout;
mod place;

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

pub use freeze::Freezer;
use layout::{CONTROLLERS, parse_cached_files};
pub use layout::{Layout, Limits, parse_oom_kills};
use place::LEAF;
pub use place::{Place, Surroundings};

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("this machine has no cgroups mounted")]
    Absent,
    #[error("failed to make the cgroup `{path}`")]
    Make {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("failed to enable the controllers {controllers} in `{path}`")]
    Enable {
        path: PathBuf,
        controllers: String,
        #[source]
        cause: io::Error,
    },
    #[error("failed to set {value} in `{path}`")]
    Set {
        path: PathBuf,
        value: String,
        #[source]
        cause: io::Error,
    },
    #[error("the cgroups of this machine cannot freeze processes")]
    NoFreezer,
    #[error("failed to open `{path}`")]
    Open {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

/// Our parent directory in each hierarchy, below which sandboxes have theirs.
#[derive(Debug, Clone)]
pub struct Parent {
    layout: Layout,
    place: Place,
    /// Our directory in each hierarchy, with the controllers that are enabled there.
    directories: Vec<(PathBuf, Vec<&'static str>)>,
}

impl Parent {
    /// Prepares the directory `name` in every hierarchy.
    ///
    /// On a machine, root has it at the root of every hierarchy, and an ordinary user in the cgroup that the session manager
    /// delegated. In a container it is in the container's own cgroup. `/name` and `./name` choose the root and our own cgroup.
    pub fn prepare(name: &str, privileged: bool) -> Result<Parent, CgroupError> {
        Parent::prepare_in(&Surroundings::read()?, name, privileged)
    }

    fn prepare_in(
        surroundings: &Surroundings,
        name: &str,
        privileged: bool,
    ) -> Result<Parent, CgroupError> {
        let parent = Parent::planned(surroundings, name, privileged)?;
        for (directory, controllers) in &parent.directories {
            let above = directory.parent().unwrap_or(Path::new("/"));
            let is_unified = matches!(parent.layout, Layout::Unified { .. });
            if is_unified && parent.place == Place::Own {
                make_room(above, privileged && surroundings.is_container())?;
            }
            make_directory(directory)?;
            // A directory that another user made, for example root, exists but is not writable.
            rustix::fs::access(directory, rustix::fs::Access::WRITE_OK)
                .map_err(|e| CgroupError::Make { path: directory.clone(), cause: e.into() })?;
            if is_unified {
                // A controller works in a directory only if all directories above enable it.
                enable(above, controllers)?;
                enable(directory, controllers)?;
            }
        }
        Ok(parent)
    }

    /// Where the directories belong; makes nothing.
    fn planned(
        surroundings: &Surroundings,
        name: &str,
        privileged: bool,
    ) -> Result<Parent, CgroupError> {
        let layout = surroundings.layout();
        let (chosen, name) = Place::split(name);
        let place = chosen.unwrap_or(match &layout {
            Layout::Absent => return Err(CgroupError::Absent),
            _ if surroundings.is_container() => Place::Own,
            Layout::Unified { .. } if !privileged => Place::Own,
            // Version 1 delegates nothing to ordinary users; making the directory fails with the reason.
            _ => Place::Root,
        });
        let directory = |(mount, controllers): (PathBuf, Vec<&'static str>)| {
            let above = match place {
                Place::Root => mount,
                Place::Own => surroundings.own_directory(&mount, &controllers),
            };
            (above.join(name), controllers)
        };
        let directories = layout.trees().into_iter().map(directory).collect();
        Ok(Parent { layout, place, directories })
    }

    /// The directory that an earlier server made, if there is one; makes nothing. Without privileges it cannot be found again: it
    /// is below the cgroup of a process that may be gone.
    #[must_use]
    pub fn find(name: &str, privileged: bool) -> Option<Parent> {
        let mut parent = Parent::planned(&Surroundings::read().ok()?, name, privileged).ok()?;
        parent.directories.retain(|(directory, _)| directory.is_dir());
        (privileged && !parent.directories.is_empty()).then_some(parent)
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Its path in each hierarchy.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.directories.iter().map(|(path, _)| path.as_path())
    }

    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Makes an empty cgroup with these limits. The name must be new: processes of an existing cgroup would be limited, and killed
    /// at the end.
    ///
    /// The limit on processor time holds from [`Cgroup::throttle`] on: otherwise a sandbox with a hundredth of a processor would
    /// take long to build.
    pub fn create(&self, name: &str, limits: &Limits) -> Result<Cgroup, CgroupError> {
        // If a later step fails, dropping this removes what was made.
        let mut cgroup = Cgroup { meters: Meters { directories: Vec::new() }, later: Vec::new() };
        for (parent, controllers) in &self.directories {
            let directory = parent.join(name);
            fs::create_dir(&directory)
                .map_err(|cause| CgroupError::Make { path: directory.clone(), cause })?;
            cgroup.meters.directories.push(directory.clone());
            for controller in controllers {
                for setting in self.layout.settings(controller, limits) {
                    let path = directory.join(setting.file);
                    if *controller == "cpu" {
                        cgroup.later.push((path, setting.value));
                    } else if setting.required || path.exists() {
                        write(&path, &setting.value)?;
                    }
                }
            }
        }
        Ok(cgroup)
    }

    /// Prepares Linux for a process that is about to join a cgroup.
    ///
    /// Joining waits for a grace period of several milliseconds, unless one has just passed. Moving one of our processes to our
    /// own directory makes Linux wait too, and can be done while the sandbox is being cloned. Version 1 moves the process;
    /// version 2 refuses, because a directory with children may hold no processes. Neither matters. To be called from a thread
    /// that may block.
    pub fn anticipate_joining(&self, pid: u32) {
        // Never to the hierarchy of the freezer: the spawner would be frozen with the sandboxes.
        let limits =
            |controllers: &[&str]| controllers.iter().any(|name| CONTROLLERS.contains(name));
        if let Some((directory, _)) = self.directories.iter().find(|(_, names)| limits(names)) {
            let _ = fs::write(directory.join("cgroup.procs"), pid.to_string());
        }
    }

    /// The cgroup of a sandbox that an earlier server made.
    #[must_use]
    pub fn adopt(&self, name: &str) -> Cgroup {
        let directories = self.directories.iter().map(|(path, _)| path.join(name)).collect();
        Cgroup { meters: Meters { directories }, later: Vec::new() }
    }

    /// Names of all cgroups below ours, including those of earlier servers.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .directories
            .iter()
            .filter_map(|(path, _)| fs::read_dir(path).ok())
            .flatten()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                entry.file_type().ok()?.is_dir().then(|| entry.file_name().into_string().ok())?
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

/// The cgroup of one sandbox, removed when dropped. Its processes must have ended by then.
#[derive(Debug)]
pub struct Cgroup {
    meters: Meters,
    /// Settings that [`Cgroup::throttle`] writes: file and value.
    later: Vec<(PathBuf, String)>,
}

/// A cgroup becomes empty a moment after its last process has ended: how often and how long removal is tried.
const REMOVE_ATTEMPTS: u32 = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(2);

/// How often a separate thread repeats that, if the machine is too busy.
const PATIENT_ROUNDS: u32 = 300;

impl Cgroup {
    /// From now on the limit on processor time holds.
    pub fn throttle(&mut self) -> Result<(), CgroupError> {
        self.later.drain(..).try_for_each(|(path, value)| write(&path, &value))
    }

    /// Descriptors of every `cgroup.procs`: writing `0` to all of them joins.
    pub fn procs(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        self.meters
            .directories
            .iter()
            .map(|directory| {
                let path = directory.join("cgroup.procs");
                let file = File::options().write(true).open(&path);
                Ok(file.map_err(|cause| CgroupError::Open { path, cause })?.into())
            })
            .collect()
    }

    /// Its counters.
    #[must_use]
    pub fn meters(&self) -> &Meters {
        &self.meters
    }

    /// The file in which Linux counts processes killed for memory.
    #[must_use]
    pub fn oom_events(&self) -> Option<File> {
        self.meters.oom_events()
    }

    /// Kills every process in the cgroup. The end of the PID namespace kills those in it; this is for a process that was just
    /// joining.
    pub fn kill(&self) {
        if let Some(path) = self.meters.find("cgroup.kill") {
            let _ = fs::write(path, "1");
            return;
        }
        for directory in &self.meters.directories {
            let pids = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            for pid in pids.lines().filter_map(|line| line.parse().ok()) {
                let _ = crate::process::signal(pid, libc::SIGKILL);
            }
        }
    }

    /// Removes the directories, and returns whether that worked. They must be, or become, empty.
    #[must_use]
    pub fn remove(mut self) -> bool {
        self.try_remove()
    }

    fn try_remove(&mut self) -> bool {
        for attempt in 0..REMOVE_ATTEMPTS {
            self.meters.directories.retain(|directory| match fs::remove_dir(directory) {
                Ok(()) => false,
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            });
            if self.meters.directories.is_empty() {
                return true;
            }
            if attempt == REMOVE_ATTEMPTS / 2 {
                self.kill();
            }
            std::thread::sleep(REMOVE_PAUSE);
        }
        false
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if self.meters.directories.is_empty() || self.try_remove() {
            return;
        }
        let directories = std::mem::take(&mut self.meters.directories);
        let removal = Removal::begin();
        // If no thread can be started, the next server removes it.
        let _ = std::thread::Builder::new().name("cgroup-remover".into()).spawn(move || {
            let _removal = removal;
            let mut left = Cgroup { meters: Meters { directories }, later: Vec::new() };
            for _ in 0..PATIENT_ROUNDS {
                left.kill();
                if left.try_remove() {
                    break;
                }
            }
            left.meters.directories.clear();
        });
    }
}

/// How many threads of this process are removing a cgroup.
static REMOVALS: Mutex<usize> = Mutex::new(0);
static REMOVED: Condvar = Condvar::new();

/// Waits, at most for `limit`, until the threads that remove cgroups are done. To be called before the process exits: its
/// threads end with it.
pub fn wait_for_removals(limit: Duration) {
    let removals = REMOVALS.lock().unwrap_or_else(PoisonError::into_inner);
    drop(REMOVED.wait_timeout_while(removals, limit, |removals| *removals > 0));
}

/// Counted in [`REMOVALS`] while it exists.
struct Removal;

impl Removal {
    fn begin() -> Removal {
        *REMOVALS.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Removal
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        *REMOVALS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        REMOVED.notify_all();
    }
}

/// Reads the counters of any cgroup.
#[derive(Debug, Clone)]
pub struct Meters {
    directories: Vec<PathBuf>,
}

impl Meters {
    /// The counters of the cgroup of a process, if it is visible.
    #[must_use]
    pub fn of_process(pid: u32) -> Option<Meters> {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let mut directories = Layout::parse(&mountinfo).directories_of(&cgroups);
        directories.retain(|directory| directory.is_dir());
        (!directories.is_empty()).then_some(Meters { directories })
    }

    /// The file in which Linux counts processes killed for memory.
    #[must_use]
    pub fn oom_events(&self) -> Option<File> {
        self.find("memory.events")
            .or_else(|| self.find("memory.oom_control"))
            .and_then(|path| File::open(path).ok())
    }

    /// How many of its processes Linux has killed for memory.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        let mut text = String::new();
        let read = self.oom_events().map(|mut file| io::Read::read_to_string(&mut file, &mut text));
        read.map_or(0, |_| parse_oom_kills(&text))
    }

    /// How often its processes were throttled.
    #[must_use]
    pub fn throttled(&self) -> u64 {
        let stat = self.find("cpu.stat").and_then(|path| fs::read_to_string(path).ok());
        let field = |line: &str| line.strip_prefix("nr_throttled ")?.trim().parse().ok();
        stat.and_then(|text| text.lines().find_map(field)).unwrap_or(0)
    }

    /// Microseconds of processor time that its processes have used.
    #[must_use]
    pub fn cpu_used_us(&self) -> Option<u64> {
        // The unified hierarchy counts processor time even if the controllers are in other hierarchies.
        let field = |line: &str| line.strip_prefix("usage_usec ")?.trim().parse().ok();
        self.directories.iter().find_map(|directory| {
            let text = fs::read_to_string(directory.join("cpu.stat")).ok()?;
            text.lines().find_map(field)
        })
    }

    /// Bytes charged to the sandbox now.
    #[must_use]
    pub fn memory_used(&self) -> Option<u64> {
        let path = self.find("memory.current").or_else(|| self.find("memory.usage_in_bytes"))?;
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Like `memory_used`, without the page cache of files on disk, which Linux frees when memory is needed.
    #[must_use]
    pub fn memory_held(&self) -> Option<u64> {
        let stat = self.find("memory.stat").and_then(|path| fs::read_to_string(path).ok());
        let cached = stat.map_or(0, |text| parse_cached_files(&text));
        Some(self.memory_used()?.saturating_sub(cached))
    }

    fn find(&self, file: &str) -> Option<PathBuf> {
        self.directories.iter().map(|directory| directory.join(file)).find(|path| path.exists())
    }
}

/// How often the processes of a cgroup are moved, if it gets new ones meanwhile.
const MOVE_ROUNDS: u32 = 20;

/// A cgroup that enables controllers for others may hold no processes, so ours move one level down. `all`: every process that
/// is there moves. In a container these are PID 1, the server and commands that were started beside it.
fn make_room(own: &Path, all: bool) -> Result<(), CgroupError> {
    let leaf = own.join(LEAF);
    make_directory(&leaf)?;
    let procs = leaf.join("cgroup.procs");
    write(&procs, "0")?;
    if !all {
        return Ok(());
    }
    for _ in 0..MOVE_ROUNDS {
        let text = read(&own.join("cgroup.procs"))?;
        // Processes of other PID namespaces are shown as 0.
        let pids: Vec<&str> = text.lines().filter(|pid| *pid != "0").collect();
        if pids.is_empty() {
            break;
        }
        // It may have ended. If it stays, enabling the controllers fails with the reason.
        pids.iter().for_each(|pid| drop(fs::write(&procs, pid)));
    }
    Ok(())
}

fn enable(directory: &Path, controllers: &[&str]) -> Result<(), CgroupError> {
    let wanted: Vec<String> = controllers.iter().map(|c| format!("+{c}")).collect();
    let path = directory.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&path).unwrap_or_default();
    if controllers.iter().all(|c| enabled.split_whitespace().any(|e| e == *c)) {
        return Ok(());
    }
    fs::write(&path, wanted.join(" ")).map_err(|cause| CgroupError::Enable {
        path,
        controllers: controllers.join(", "),
        cause,
    })
}

fn make_directory(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(cause) => Err(CgroupError::Make { path: path.into(), cause }),
    }
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::write(path, value).map_err(|cause| CgroupError::Set {
        path: path.into(),
        value: value.into(),
        cause,
    })
}

fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(|cause| CgroupError::Open { path: path.into(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs root; the tests of sandboxes need it too.
    #[test]
    fn an_existing_cgroup_is_not_joined() {
        if !crate::privileges::is_root() {
            return;
        }
        let name = format!("belljar-test-{}", crate::process::random_name());
        let parent = Parent::prepare(&name, true).unwrap();
        let limits = Limits { memory: 64 << 20, millicpus: 1000, pids: 10 };
        // The name is taken in the last tree: what was made in the other trees is removed again.
        let stranger = parent.directories.last().unwrap().0.join("taken");
        fs::create_dir(&stranger).unwrap();
        let refused = parent.create("taken", &limits).unwrap_err();
        assert!(matches!(&refused, CgroupError::Make { path, .. } if *path == stranger));
        assert_eq!(parent.names(), ["taken"]);
        assert!(stranger.exists(), "it is not ours to remove");
        fs::remove_dir(&stranger).unwrap();
        assert!(parent.names().is_empty(), "and nothing else is left");
        assert!(parent.create("taken", &limits).unwrap().remove());
        for (directory, _) in &parent.directories {
            fs::remove_dir(directory).unwrap();
        }
    }

    /// A unified hierarchy as a pod sees it, in a plain directory.
    struct FakePod {
        root: tempfile::TempDir,
        own: &'static str,
    }

    impl FakePod {
        fn new(own: &'static str) -> FakePod {
            let pod = FakePod { root: tempfile::tempdir().unwrap(), own };
            fs::create_dir_all(pod.path("").join(LEAF)).unwrap();
            fs::create_dir(pod.path("belljar")).unwrap();
            for file in ["cgroup.procs", "cgroup.subtree_control", "belljar/cgroup.subtree_control"]
            {
                fs::write(pod.path(file), "").unwrap();
            }
            pod
        }

        fn path(&self, file: &str) -> PathBuf {
            self.root.path().join(self.own.trim_start_matches('/')).join(file)
        }

        fn surroundings(&self, leaf: &str) -> Surroundings {
            let mount = self.root.path().display();
            Surroundings {
                mountinfo: format!("28 24 0:25 / {mount} rw - cgroup2 cgroup2 rw\n"),
                own: format!("0::{}{leaf}\n", self.own),
                is_private: self.own == "/",
            }
        }
    }

    #[test]
    fn in_a_pod_sandboxes_are_below_its_own_cgroup_and_its_processes_in_a_leaf() {
        for (own, leaf) in [("/kubepods/pod1/ab", "/belljar-server"), ("/", "belljar-server")] {
            let pod = FakePod::new(own);
            for leaf in ["", leaf] {
                let parent = Parent::prepare_in(&pod.surroundings(leaf), "belljar", true).unwrap();
                assert_eq!(parent.place(), Place::Own);
                let directories: Vec<_> = parent.directories().collect();
                assert_eq!(directories, [pod.path("belljar")]);
                let moved = fs::read_to_string(pod.path(LEAF).join("cgroup.procs")).unwrap();
                assert_eq!(moved, "0", "this process is in the leaf");
                for file in ["cgroup.subtree_control", "belljar/cgroup.subtree_control"] {
                    let enabled = fs::read_to_string(pod.path(file)).unwrap();
                    assert_eq!(enabled, "+cpu +memory +pids");
                }
            }
        }
    }

    #[test]
    fn processes_that_were_started_beside_the_server_move_too() {
        let pod = FakePod::new("/kubepods/pod1/ab");
        // The kernel would take them out of the list; here the rounds end.
        fs::write(pod.path("cgroup.procs"), "0\n17\n").unwrap();
        Parent::prepare_in(&pod.surroundings(""), "belljar", true).unwrap();
        let moved = fs::read_to_string(pod.path(LEAF).join("cgroup.procs")).unwrap();
        assert_eq!(moved, "17");
    }

    #[test]
    fn the_name_overrules_what_was_found() {
        let pod = FakePod::new("/kubepods/pod1/ab");
        let planned = |name| Parent::planned(&pod.surroundings(""), name, true).unwrap();
        assert_eq!(planned("./x").directories().collect::<Vec<_>>(), [pod.path("x")]);
        let at_root = planned("/x");
        assert_eq!(at_root.directories().collect::<Vec<_>>(), [pod.root.path().join("x")]);
        assert_eq!(at_root.place(), Place::Root);
    }
}
