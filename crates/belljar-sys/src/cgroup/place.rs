//! Where in the hierarchies our parent directory is: at the root, or in the cgroup of this process.
//!
//! A container has a cgroup of its own, with its limits. Sandboxes must be below that, or no limit of the container would hold
//! for them, and they would stay behind when it is removed. Everything but [`Surroundings::read`] is a pure function of text.

use std::fs;
use std::path::{Path, PathBuf};

use super::{CgroupError, Layout, read};

/// Where our parent directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At the root of every hierarchy, beside the cgroups of everything else.
    Root,
    /// In the cgroup of this process.
    Own,
}

impl Place {
    /// Splits the name of a parent: `/name` is at the root, `./name` in our own cgroup, and `name` where it belongs.
    #[must_use]
    pub fn split(name: &str) -> (Option<Place>, &str) {
        match (name.strip_prefix("./"), name.strip_prefix('/')) {
            (Some(name), _) => (Some(Place::Own), name),
            (None, Some(name)) => (Some(Place::Root), name),
            (None, None) => (None, name),
        }
    }
}

/// The inode of the machine's own cgroup namespace (`PROC_CGROUP_INIT_INO` of Linux).
const INITIAL_NAMESPACE: &str = "cgroup:[4026531835]";

/// The cgroup for our own processes, while their former cgroup enables controllers for others.
pub(super) const LEAF: &str = "belljar-server";

/// What Linux says about the cgroups of this process.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// `/proc/self/mountinfo`.
    pub(super) mountinfo: String,
    /// `/proc/self/cgroup`.
    pub(super) own: String,
    /// Whether this process has a cgroup namespace other than the machine's.
    pub(super) is_private: bool,
}

impl Surroundings {
    pub fn read() -> Result<Surroundings, CgroupError> {
        let namespace = fs::read_link("/proc/self/ns/cgroup");
        Ok(Surroundings {
            mountinfo: read(Path::new("/proc/self/mountinfo"))?,
            own: read(Path::new("/proc/self/cgroup"))?,
            is_private: namespace.is_ok_and(|name| name != Path::new(INITIAL_NAMESPACE)),
        })
    }

    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout::parse(&self.mountinfo)
    }

    /// Whether this process runs in a container: it has a private view of the cgroups, sees only a part of them, or its cgroup
    /// has a name that container engines use.
    #[must_use]
    pub fn is_container(&self) -> bool {
        let trees = self.layout().trees();
        let is_part = |(mount, _): &(PathBuf, _)| self.mount_root(mount) != Path::new("/");
        let paths = self.own.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        self.is_private
            || trees.iter().any(is_part)
            || paths.flat_map(|path| path.split('/')).any(names_container)
    }

    /// The directory of our own cgroup in the hierarchy that is mounted there. If this process is in the leaf already, it is the
    /// directory above.
    #[must_use]
    pub fn own_directory(&self, mount: &Path, controllers: &[&str]) -> PathBuf {
        let is_ours = |names: &str| match controllers {
            [] => names.is_empty(),
            wanted => names.split(',').any(|name| wanted.contains(&name)),
        };
        let is_unified = matches!(self.layout(), Layout::Unified { .. });
        let path = self.own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (names, path) = (parts.next()?, parts.next()?);
            (is_ours(names) || (is_unified && names.is_empty())).then_some(path)
        });
        let path = Path::new(path.unwrap_or("/"));
        // Outside of what is mounted here, it cannot be named.
        let below = path.strip_prefix(self.mount_root(mount)).unwrap_or(Path::new(""));
        let is_plain = below.components().all(|part| part.as_os_str() != "..");
        let below = if is_plain { below } else { Path::new("") };
        let below = match below.file_name() {
            Some(name) if name == LEAF => below.parent().unwrap_or(Path::new("")),
            _ => below,
        };
        if below.as_os_str().is_empty() { mount.to_owned() } else { mount.join(below) }
    }

    /// Which part of a hierarchy is mounted there.
    fn mount_root(&self, mount: &Path) -> &Path {
        let root = self.mountinfo.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut fields = left.split(' ').skip(3);
            let (root, path) = (fields.next()?, fields.next()?);
            (right.starts_with("cgroup") && Path::new(path) == mount).then_some(root)
        });
        Path::new(root.unwrap_or("/"))
    }
}

/// Whether a part of a cgroup's path is one that Kubernetes or a container engine makes.
fn names_container(part: &str) -> bool {
    const SCOPES: [&str; 4] = ["docker-", "libpod-", "crio-", "cri-containerd-"];
    part == "docker"
        || part.starts_with("kubepods")
        || (part.ends_with(".scope") && SCOPES.iter().any(|scope| part.starts_with(scope)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "28 24 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
    const LEGACY: &str = "\
27 26 0:24 ROOT /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
31 26 0:28 ROOT /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
";

    fn seen(mountinfo: &str, own: &str, is_private: bool) -> Surroundings {
        Surroundings { mountinfo: mountinfo.into(), own: own.into(), is_private }
    }

    #[test]
    fn a_plain_machine_is_not_a_container() {
        for own in [
            "0::/\n",
            "0::/user.slice/user-0.slice/session-3.scope\n",
            "0::/system.slice/belljar.service\n",
            "0::/system.slice/docker.service\n",
        ] {
            assert!(!seen(UNIFIED, own, false).is_container(), "{own}");
        }
        let machine = LEGACY.replace("ROOT", "/");
        let own = "2:memory:/process_api/ab\n1:cpu,cpuacct:/\n0::/\n";
        assert!(!seen(&machine, own, false).is_container());
    }

    #[test]
    fn containers_are_recognised() {
        let pod = "/kubepods.slice/kubepods-podab.slice/cri-containerd-cd.scope";
        // A privileged pod sees the whole machine.
        assert!(seen(UNIFIED, &format!("0::{pod}\n"), false).is_container());
        assert!(seen(UNIFIED, "0::/kubepods/burstable/podab/cd\n", false).is_container());
        assert!(seen(UNIFIED, "0::/system.slice/docker-ab.scope\n", false).is_container());
        // A private view.
        assert!(seen(UNIFIED, "0::/\n", true).is_container());
        // A part of each hierarchy.
        let part = LEGACY.replace("ROOT", "/lxc/ab");
        assert!(seen(&part, "2:memory:/lxc/ab\n1:cpu,cpuacct:/lxc/ab\n", false).is_container());
    }

    #[test]
    fn our_own_directory_is_found_in_every_kind_of_container() {
        let of = |seen: &Surroundings, mount: &str, controllers: &[&str]| {
            seen.own_directory(Path::new(mount), controllers).display().to_string()
        };
        let all = ["cpu", "memory", "pids"];
        let pod = seen(UNIFIED, "0::/kubepods.slice/pod.slice/cd.scope\n", false);
        let expected = "/sys/fs/cgroup/kubepods.slice/pod.slice/cd.scope";
        assert_eq!(of(&pod, "/sys/fs/cgroup", &all), expected);
        let moved = seen(UNIFIED, "0::/kubepods.slice/pod.slice/cd.scope/belljar-server\n", false);
        assert_eq!(of(&moved, "/sys/fs/cgroup", &all), expected);
        let private = seen(UNIFIED, "0::/\n", true);
        assert_eq!(of(&private, "/sys/fs/cgroup", &all), "/sys/fs/cgroup");
        let moved = seen(UNIFIED, "0::/belljar-server\n", true);
        assert_eq!(of(&moved, "/sys/fs/cgroup", &all), "/sys/fs/cgroup");
        let outside = seen(UNIFIED, "0::/../other\n", true);
        assert_eq!(of(&outside, "/sys/fs/cgroup", &all), "/sys/fs/cgroup");
        // Docker mounts the container's own directory of each version 1 hierarchy.
        let own = "4:memory:/docker/ab\n1:cpu,cpuacct:/docker/ab\n0::/docker/ab\n";
        let docker = seen(&LEGACY.replace("ROOT", "/docker/ab"), own, false);
        assert_eq!(of(&docker, "/sys/fs/cgroup/memory", &["memory"]), "/sys/fs/cgroup/memory");
        let whole = seen(&LEGACY.replace("ROOT", "/"), own, false);
        let expected = "/sys/fs/cgroup/cpu/docker/ab";
        assert_eq!(of(&whole, "/sys/fs/cgroup/cpu", &["cpu"]), expected);
    }

    #[test]
    fn a_name_may_say_where_it_belongs() {
        assert_eq!(Place::split("belljar"), (None, "belljar"));
        assert_eq!(Place::split("/belljar"), (Some(Place::Root), "belljar"));
        assert_eq!(Place::split("./belljar"), (Some(Place::Own), "belljar"));
    }
}
