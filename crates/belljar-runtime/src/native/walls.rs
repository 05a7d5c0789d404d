//! The protections ("walls") of a sandbox, and sandboxes that lack one of them, for tests.
//!
//! A protection is useful only if its absence can be noticed. So tests make sandboxes without one wall at a time, and require
//! that an attack of `tests/security/attacks` succeeds (`tests/security/walls.rs`). No setting or command of the binary leads
//! here: the test itself is the server, and the spawner carries out its plan.
//!
//! [`gaps_in`] classifies every step of a plan as a wall or not, so that a new step needs an attack before the tests pass.

use std::path::{Path, PathBuf};

use belljar_sys::cgroup;
use belljar_sys::ids::{Block, IdRange};
use belljar_sys::plan::{Access, FdIndex, IdMap, Namespace, Plan, Source, Step};

use super::image::{self, Image};
use super::plan::{self, SandboxFds};
use super::spawner::STAGE;
use crate::spec::{DataMount, SandboxSpec};

/// The factor by which a missing limit is raised. Attacks stop far above a limit, so this is enough for them; without any limit
/// they would harm the machine.
const RAISED: u64 = 64;

/// The factor for memory is smaller, because the machine has only so much.
const MEMORY_RAISED: u64 = 8;

/// More than the machine has.
const PROCESSORS_RAISED: u32 = 1000;

/// A protection that a sandbox lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gap {
    /// It shares this namespace with the spawner.
    Namespace(Namespace),
    /// All ids of the outer user namespace are mapped.
    AllIds,
    /// Its ids are those of the spawner's own block.
    SpawnersIds,
    /// Ids of the outer user namespace are the host's own.
    HostIds,
    /// This step, by its text, is replaced by others.
    Step {
        text: String,
        instead: Vec<Step>,
    },
    /// The same for a step that assembles the image's root.
    ImageStep {
        text: String,
        instead: Vec<Step>,
    },
    /// A mount at this path lacks this restriction.
    Mount {
        target: PathBuf,
        option: MountOption,
    },
    /// Nothing below the image's root has this restriction.
    ImageOption(MountOption),
    TmpfsSize,
    TmpfsInodes,
    Cgroups,
    Memory,
    Processors,
    Processes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountOption {
    ReadOnly,
    NoExec,
    NoDevices,
    NoSetUserId,
}

const MOUNT_OPTIONS: [MountOption; 4] =
    [MountOption::ReadOnly, MountOption::NoExec, MountOption::NoDevices, MountOption::NoSetUserId];

/// A wall whose absence no attack can notice, because another wall stops the same attacks.
#[derive(Debug)]
pub struct Backed {
    pub wall: &'static str,
    /// The wall that stops the same attacks. Without both, an attack must succeed. If there is none, `why` says why
    /// that cannot be shown.
    pub by: Option<&'static str>,
    pub why: &'static str,
}

/// Walls whose absence no attack notices, each with the reason.
pub const BACKED: &[Backed] = &[
    Backed {
        wall: "make all mounts private",
        by: None,
        why: "the spawner's mounts are private, and so are copies of them",
    },
    Backed {
        wall: "nodev of /session",
        by: None,
        why: "a part of a tmpfs that is nodev; needed where it is a directory of the host",
    },
    Backed { wall: "nodev of /tmp", by: None, why: "a part of a tmpfs that is nodev" },
    Backed { wall: "nodev of /dev/shm", by: None, why: "a part of a tmpfs that is nodev" },
    Backed {
        wall: "nosuid of /session",
        by: None,
        why: "a part of a tmpfs that is nosuid; needed where it is a directory of the host",
    },
    Backed { wall: "nosuid of /tmp", by: None, why: "a part of a tmpfs that is nosuid" },
    Backed { wall: "nosuid of /dev/shm", by: None, why: "a part of a tmpfs that is nosuid" },
    Backed {
        wall: "nosuid of /",
        by: Some("image: nosuid"),
        why: "what it is made of is nosuid by itself",
    },
    Backed {
        wall: "image: nosuid",
        by: Some("nosuid of /"),
        why: "a sandbox's root is made nosuid with all that is mounted below",
    },
    Backed {
        wall: "image: ro",
        by: Some("image: make / read-only"),
        why: "the assembled root is made read-only with all that is mounted below",
    },
    Backed {
        wall: "forbid core dumps",
        by: None,
        why: "the spawner forbids them to itself, and limits are inherited",
    },
    Backed {
        wall: "drop all capabilities",
        by: Some("become uid 1000, gid 1000"),
        why: "a process that stops being root loses them; needed without root, where no id changes",
    },
    Backed {
        wall: "become undumpable",
        by: None,
        why: "a process that changes its ids becomes undumpable, and all do while they are built; needed without root",
    },
];

/// The walls of a sandbox with `/data`, each with its name and its gap.
#[must_use]
pub fn walls(image: &Image) -> Vec<(String, Gap)> {
    let data = Some(DataMount { host_path: "/data".into() });
    let spec = SandboxSpec { data, ..SandboxSpec::default() };
    let fds = SandboxFds {
        cgroups: 1,
        data: Some(FdIndex(1)),
        session: None,
        volumes: None,
        workspace: None,
    };
    let plan = plan::sandbox(
        &image::staged_root(),
        &spec,
        Some(Block { number: 1, range: IdRange::USUAL }),
        fds,
    );
    let mut walls: Vec<(String, Gap)> = Vec::new();
    for namespace in &plan.namespaces {
        walls.push((format!("{namespace:?} namespace"), Gap::Namespace(*namespace)));
    }
    walls.push(("a block of ids".into(), Gap::AllIds));
    walls.push(("a block of ids of its own".into(), Gap::SpawnersIds));
    walls.push(("outer ids are nobody's".into(), Gap::HostIds));
    for step in &plan.steps {
        walls.extend(gaps_in(step));
    }
    for option in MOUNT_OPTIONS {
        walls.push((format!("image: {}", option.name()), Gap::ImageOption(option)));
    }
    for step in image::steps(image) {
        for (name, gap) in gaps_in(&step) {
            // Mounts are covered above, by their options.
            if let Gap::Step { text, instead } = gap {
                walls.push((format!("image: {name}"), Gap::ImageStep { text, instead }));
            }
        }
    }
    walls.push(("control groups".into(), Gap::Cgroups));
    walls.push(("limit of memory".into(), Gap::Memory));
    walls.push(("limit of processors".into(), Gap::Processors));
    walls.push(("limit of processes".into(), Gap::Processes));
    walls
}

/// The walls of a step, each with its gap; empty for a step that protects nothing.
fn gaps_in(step: &Step) -> Vec<(String, Gap)> {
    let replaced = |name: &str, instead: Vec<Step>| {
        (name.to_owned(), Gap::Step { text: step.to_string(), instead })
    };
    let missing = || vec![replaced(&inside(&step.to_string()), Vec::new())];
    match step {
        // Not walls: without these steps a sandbox works less well, but is as safe.
        Step::SetIds { uid: 0, .. }
        | Step::LoopbackUp
        | Step::MakeDir { .. }
        | Step::MakeFile { .. }
        | Step::Symlink { .. }
        | Step::Overlay { .. }
        | Step::Detach { .. }
        | Step::ChangeDir { .. }
        // One wall for all trees of control groups: see `walls`.
        | Step::JoinCgroup { .. } => Vec::new(),
        Step::Bind { target, access, .. } => {
            let restricted = MOUNT_OPTIONS.into_iter().filter(|option| option.is_in(*access));
            let without = restricted.map(|option| {
                let name = inside(&format!("{} of {}", option.name(), target.display()));
                (name, Gap::Mount { target: target.clone(), option })
            });
            without.collect()
        }
        Step::Tmpfs { .. } => vec![
            ("size of the tmpfs".into(), Gap::TmpfsSize),
            ("inodes of the tmpfs".into(), Gap::TmpfsInodes),
        ],
        Step::Devpts { target, .. } => {
            let many = Step::Devpts { target: target.clone(), terminals: 4096 };
            vec![replaced("number of terminals", vec![many])]
        }
        Step::Proc { target } => {
            let source = Source::Path("/proc".into());
            let access = Access { set_user_id: true, ..Access::AS_MOUNTED };
            let outer = Step::Bind { source, target: target.clone(), access };
            vec![replaced("a proc of its own", vec![outer])]
        }
        Step::HideCgroupPath
        | Step::SetIds { .. }
        | Step::SetHostname { .. }
        | Step::PrivateMounts
        | Step::ReadOnly { .. }
        | Step::Mask { .. }
        | Step::Seal { .. }
        | Step::PivotRoot { .. }
        | Step::NoCoreDumps
        | Step::NoRealtime
        | Step::MaxOpenFiles { .. }
        | Step::DropBoundingSet
        | Step::DropCapabilities
        | Step::LimitCapabilities
        | Step::NoNewPrivileges
        | Step::Landlock { .. }
        | Step::NoSetIds
        | Step::Seccomp
        | Step::Undumpable => missing(),
    }
}

/// A step's text with paths as they are inside the sandbox.
fn inside(text: &str) -> String {
    let root = format!("{STAGE}/root");
    let image = format!("{STAGE}/image");
    text.replace(&format!("{root}/"), "/").replace(&root, "/").replace(&image, "/")
}

impl MountOption {
    fn name(self) -> &'static str {
        match self {
            MountOption::ReadOnly => "ro",
            MountOption::NoExec => "noexec",
            MountOption::NoDevices => "nodev",
            MountOption::NoSetUserId => "nosuid",
        }
    }

    fn is_in(self, access: Access) -> bool {
        self.taken_from(access) != access
    }

    fn taken_from(self, access: Access) -> Access {
        match self {
            MountOption::ReadOnly => Access { write: true, ..access },
            MountOption::NoExec => Access { exec: true, ..access },
            MountOption::NoDevices => Access { devices: true, ..access },
            MountOption::NoSetUserId => Access { set_user_id: true, ..access },
        }
    }
}

/// What sandboxes lack; nothing, except in tests.
#[derive(Debug, Clone, Default)]
pub struct Weakening {
    gaps: Vec<Gap>,
}

impl Weakening {
    #[must_use]
    pub fn new(gaps: Vec<Gap>) -> Weakening {
        Weakening { gaps }
    }

    /// A sandbox's plan without the missing wall.
    #[must_use]
    pub fn plan(&self, plan: Plan) -> Plan {
        self.gaps.iter().fold(plan, without)
    }

    pub(super) fn image(&self, steps: Vec<Step>) -> Vec<Step> {
        self.gaps.iter().fold(steps, |steps, gap| match gap {
            Gap::ImageStep { text, instead } => replace(steps, text, instead),
            Gap::ImageOption(option) => {
                steps.into_iter().map(|step| option.left_out(step, |_| true)).collect()
            }
            _ => steps,
        })
    }

    pub(super) fn limits(&self, limits: cgroup::Limits) -> cgroup::Limits {
        self.gaps.iter().fold(limits, |mut limits, gap| {
            match gap {
                Gap::Memory => limits.memory *= MEMORY_RAISED,
                Gap::Processors => limits.millicpus *= PROCESSORS_RAISED,
                Gap::Processes => limits.pids *= RAISED,
                _ => {}
            }
            limits
        })
    }

    pub(super) fn outer_ids(&self, map: IdMap) -> IdMap {
        let hosts = self.gaps.contains(&Gap::HostIds);
        // Above the ids of real users, which must not be affected.
        let first = if hosts { 100_000 } else { map.outside };
        let count = if hosts { 64 * IdRange::USUAL.block_size } else { map.count };
        IdMap { outside: first, outside_group: first, count, ..map }
    }
}

impl MountOption {
    fn left_out(self, step: Step, is_meant: impl Fn(&Path) -> bool) -> Step {
        match step {
            Step::Bind { source, target, access } if is_meant(&target) => {
                Step::Bind { source, target, access: self.taken_from(access) }
            }
            step => step,
        }
    }
}

fn without(mut plan: Plan, gap: &Gap) -> Plan {
    match gap {
        Gap::Namespace(namespace) => {
            plan.namespaces.retain(|kept| kept != namespace);
            match namespace {
                Namespace::User => plan.ids = None,
                // Only the owner of such a namespace may carry out these steps. They would fail, and no sandbox would
                // be made.
                Namespace::Net => plan.steps.retain(|step| *step != Step::LoopbackUp),
                Namespace::Uts => {
                    plan.steps.retain(|step| !matches!(step, Step::SetHostname { .. }));
                }
                Namespace::Mount | Namespace::Pid | Namespace::Ipc => {}
            }
        }
        Gap::AllIds => map_to(&mut plan, 0, IdRange::USUAL.outer_map().count),
        Gap::SpawnersIds => map_to(&mut plan, 0, IdRange::USUAL.block_size),
        Gap::Step { text, instead } => plan.steps = replace(plan.steps, text, instead),
        Gap::Mount { target, option } => {
            let steps = plan.steps.into_iter();
            plan.steps = steps.map(|step| option.left_out(step, |at| at == target)).collect();
        }
        Gap::TmpfsSize | Gap::TmpfsInodes => {
            for step in &mut plan.steps {
                if let Step::Tmpfs { size, inodes, .. } = step {
                    let raised = if *gap == Gap::TmpfsSize { size } else { inodes };
                    *raised *= RAISED;
                }
            }
        }
        Gap::Cgroups => plan.steps.retain(|step| !matches!(step, Step::JoinCgroup { .. })),
        Gap::HostIds
        | Gap::ImageStep { .. }
        | Gap::ImageOption(_)
        | Gap::Memory
        | Gap::Processors
        | Gap::Processes => {}
    }
    plan
}

fn map_to(plan: &mut Plan, outside: u32, count: u32) {
    if let Some(map) = &mut plan.ids {
        *map = IdMap { outside, outside_group: outside, count, ..*map };
    }
}

fn replace(steps: Vec<Step>, text: &str, instead: &[Step]) -> Vec<Step> {
    let taken = |step: Step| {
        if step.to_string() == text { instead.to_vec() } else { vec![step] }
    };
    steps.into_iter().flat_map(taken).collect()
}
