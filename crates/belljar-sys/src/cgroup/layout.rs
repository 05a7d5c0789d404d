//! Where the cgroup controllers of this machine are mounted, and what to write where.
//!
//! Everything here is a pure function of text, so that hosts we do not have can be tested as
//! fixtures: unified (v2), legacy (v1) and hybrid, where the controllers are on v1 and an empty
//! unified tree still offers `cgroup.kill` and `cgroup.freeze`.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The limits of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes, swap included.
    pub memory: u64,
    /// Thousandths of a processor.
    pub millicpus: u32,
    /// Processes and threads.
    pub pids: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// One tree with all controllers.
    Unified {
        root: PathBuf,
    },
    /// One tree per controller, and perhaps a unified one without controllers beside them.
    Legacy {
        controllers: BTreeMap<&'static str, PathBuf>,
        unified: Option<PathBuf>,
    },
    Absent,
}

/// The controllers that limit a sandbox.
pub(super) const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// Freezes sandboxes where there is no unified tree, which freezes without a controller.
const FREEZER: &str = "freezer";

impl Layout {
    /// Parses `/proc/self/mountinfo`.
    #[must_use]
    pub fn parse(mountinfo: &str) -> Layout {
        let mut unified = None;
        let mut controllers = BTreeMap::new();
        for line in mountinfo.lines() {
            // 31 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let (Some(path), Some(kind)) = (left.split(' ').nth(4), right.split(' ').next()) else {
                continue;
            };
            // The first mount of a tree counts; later ones are copies elsewhere.
            match kind {
                "cgroup2" if unified.is_none() => unified = Some(PathBuf::from(path)),
                "cgroup" => {
                    let options = right.split(' ').nth(2).unwrap_or_default();
                    for controller in CONTROLLERS.into_iter().chain([FREEZER]) {
                        if options.split(',').any(|option| option == controller) {
                            controllers.entry(controller).or_insert_with(|| PathBuf::from(path));
                        }
                    }
                }
                _ => {}
            }
        }
        let limited = CONTROLLERS.iter().any(|name| controllers.contains_key(name));
        if unified.is_some() {
            controllers.remove(FREEZER);
        }
        match unified {
            _ if limited => Layout::Legacy { controllers, unified },
            Some(root) => Layout::Unified { root },
            None => Layout::Absent,
        }
    }

    /// The cgroup of a process in each of the trees, from its `/proc/PID/cgroup`.
    #[must_use]
    pub fn directories_of(&self, cgroups: &str) -> Vec<PathBuf> {
        // 4:memory:/docker/0f3c or, for the unified tree, 0::/system.slice/docker-0f3c.scope
        let places: Vec<(&str, &str)> = cgroups
            .lines()
            .filter_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                Some((parts.next()?, parts.next()?.trim_start_matches('/')))
            })
            .collect();
        let in_tree = |root: &PathBuf, names: &dyn Fn(&str) -> bool| {
            places.iter().find(|(names_of, _)| names(names_of)).map(|(_, path)| root.join(path))
        };
        match self {
            Layout::Unified { root } => in_tree(root, &str::is_empty).into_iter().collect(),
            Layout::Legacy { controllers, unified } => {
                let legacy = controllers.iter().filter_map(|(controller, root)| {
                    in_tree(root, &|names| names.split(',').any(|name| name == *controller))
                });
                let unified = unified.iter().filter_map(|root| in_tree(root, &str::is_empty));
                legacy.chain(unified).collect()
            }
            Layout::Absent => Vec::new(),
        }
    }

    /// A description for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Layout::Unified { .. } => "v2",
            Layout::Legacy { unified: Some(_), .. } => "hybrid",
            Layout::Legacy { unified: None, .. } => "v1",
            Layout::Absent => "absent",
        }
    }

    /// The roots of all trees that a sandbox is put into, each with its controllers.
    pub(super) fn trees(&self) -> Vec<(PathBuf, Vec<&'static str>)> {
        match self {
            Layout::Unified { root } => vec![(root.clone(), CONTROLLERS.to_vec())],
            Layout::Legacy { controllers, unified } => {
                let mut trees: Vec<(PathBuf, Vec<&'static str>)> = Vec::new();
                for (controller, path) in controllers {
                    // Two controllers may share a mount, as cpu and cpuacct often do.
                    match trees.iter_mut().find(|(known, _)| known == path) {
                        Some((_, names)) => names.push(controller),
                        None => trees.push((path.clone(), vec![controller])),
                    }
                }
                trees.extend(unified.iter().map(|path| (path.clone(), Vec::new())));
                trees
            }
            Layout::Absent => Vec::new(),
        }
    }

    /// The files to write in a sandbox's directory of the tree that holds `controller`.
    pub(super) fn settings(&self, controller: &str, limits: &Limits) -> Vec<Setting> {
        const PERIOD_US: u64 = 100_000;
        let quota = u64::from(limits.millicpus) * PERIOD_US / 1000;
        let memory = limits.memory.to_string();
        match (self, controller) {
            (Layout::Unified { .. }, "memory") => {
                vec![Setting::must("memory.max", memory), Setting::if_there("memory.swap.max", "0")]
            }
            (Layout::Unified { .. }, "cpu") => {
                vec![Setting::must("cpu.max", format!("{quota} {PERIOD_US}"))]
            }
            (Layout::Legacy { .. }, "memory") => vec![
                Setting::must("memory.limit_in_bytes", memory.clone()),
                // Memory and swap together. Exists only if Linux accounts for swap.
                Setting::if_there("memory.memsw.limit_in_bytes", memory),
            ],
            (Layout::Legacy { .. }, "cpu") => vec![
                Setting::must("cpu.cfs_period_us", PERIOD_US.to_string()),
                Setting::must("cpu.cfs_quota_us", quota.to_string()),
            ],
            (_, "pids") => vec![Setting::must("pids.max", limits.pids.to_string())],
            _ => Vec::new(),
        }
    }
}

/// One file to write, and whether it must exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) file: &'static str,
    pub(super) value: String,
    pub(super) required: bool,
}

impl Setting {
    fn must(file: &'static str, value: impl Into<String>) -> Self {
        Setting { file, value: value.into(), required: true }
    }

    fn if_there(file: &'static str, value: impl Into<String>) -> Self {
        Setting { file, value: value.into(), required: false }
    }
}

/// How many processes Linux killed for memory, from `memory.events` (v2) or `memory.oom_control` (v1).
#[must_use]
pub fn parse_oom_kills(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

/// Bytes of the page cache for files on disk, from `memory.stat`. Files of a tmpfs are not included.
pub(super) fn parse_cached_files(text: &str) -> u64 {
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    field("active_file ").unwrap_or(0) + field("inactive_file ").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN_12: &str = "\
28 24 0:25 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
";
    const HYBRID: &str = "\
26 20 0:23 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
27 26 0:24 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
31 26 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 26 0:30 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
34 26 0:31 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
35 26 0:32 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
36 26 0:33 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const UBUNTU_18: &str = "\
31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:13 - cgroup cgroup rw,cpu,cpuacct
33 24 0:29 / /sys/fs/cgroup/memory rw,relatime shared:15 - cgroup cgroup rw,memory
35 24 0:31 / /sys/fs/cgroup/pids rw,relatime shared:17 - cgroup cgroup rw,pids
36 24 0:32 / /sys/fs/cgroup/freezer rw,relatime shared:18 - cgroup cgroup rw,freezer
";

    #[test]
    fn layouts_are_recognised() {
        assert_eq!(Layout::parse(DEBIAN_12), Layout::Unified { root: "/sys/fs/cgroup".into() });
        assert_eq!(Layout::parse(HYBRID).name(), "hybrid");
        assert_eq!(Layout::parse(UBUNTU_18).name(), "v1");
        assert_eq!(Layout::parse("25 1 8:1 / / rw - ext4 /dev/sda rw\n"), Layout::Absent);
        assert_eq!(Layout::parse("nonsense\n\n - \n"), Layout::Absent);
    }

    fn written(mountinfo: &str) -> String {
        let layout = Layout::parse(mountinfo);
        let limits = Limits { memory: 512 << 20, millicpus: 1500, pids: 256 };
        let mut text = String::new();
        for (root, controllers) in layout.trees() {
            text += &format!("{}\n", root.display());
            for setting in controllers.iter().flat_map(|c| layout.settings(c, &limits)) {
                let mark = if setting.required { "" } else { " (where it exists)" };
                text += &format!("  {} = {}{mark}\n", setting.file, setting.value);
            }
        }
        text
    }

    #[test]
    fn limits_are_written_where_each_layout_wants_them() {
        insta::assert_snapshot!(written(DEBIAN_12), @r"
        /sys/fs/cgroup
          cpu.max = 150000 100000
          memory.max = 536870912
          memory.swap.max = 0 (where it exists)
          pids.max = 256
        ");
        insta::assert_snapshot!(written(HYBRID), @r"
        /sys/fs/cgroup/cpu
          cpu.cfs_period_us = 100000
          cpu.cfs_quota_us = 150000
        /sys/fs/cgroup/memory
          memory.limit_in_bytes = 536870912
          memory.memsw.limit_in_bytes = 536870912 (where it exists)
        /sys/fs/cgroup/pids
          pids.max = 256
        /sys/fs/cgroup/unified
        ");
        insta::assert_snapshot!(written(UBUNTU_18), @r"
        /sys/fs/cgroup/cpu,cpuacct
          cpu.cfs_period_us = 100000
          cpu.cfs_quota_us = 150000
        /sys/fs/cgroup/freezer
        /sys/fs/cgroup/memory
          memory.limit_in_bytes = 536870912
          memory.memsw.limit_in_bytes = 536870912 (where it exists)
        /sys/fs/cgroup/pids
          pids.max = 256
        ");
    }

    #[test]
    fn kills_for_memory_are_counted_in_both_generations() {
        assert_eq!(parse_oom_kills("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n"), 2);
        assert_eq!(parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), 7);
        assert_eq!(parse_oom_kills(""), 0);
        let stat = "cache 9\ninactive_file 3\nactive_file 4\ntotal_active_file 70\n";
        assert_eq!((parse_cached_files(stat), parse_cached_files("")), (7, 0));
    }
}
