//! A sandbox as data: which namespaces, and which steps, in which order.
//!
//! Nothing here touches the system. The server builds a [`Plan`], tests show it as text, and the spawner's child carries it out
//! ([`crate::apply`]). Errors name the step that failed.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Position of a descriptor in the list that travels beside the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdIndex(pub usize);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub namespaces: Vec<Namespace>,
    /// How ids inside a new user namespace map to ids outside.
    pub ids: Option<IdMap>,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Namespace {
    User,
    Mount,
    Pid,
    Net,
    Ipc,
    Uts,
}

/// One range of ids, for users and groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMap {
    pub inside: u32,
    pub inside_group: u32,
    pub outside: u32,
    pub outside_group: u32,
    pub count: u32,
    /// A second range, if the first does not reach to the sandbox's user.
    pub user: Option<UserIds>,
    /// Whether the writer may map groups without first giving up `setgroups`.
    pub setgroups: bool,
}

/// The sandbox's user, and ids after it. The same for users and groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserIds {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Enter the cgroup whose `cgroup.procs` this is; what follows is charged to it.
    JoinCgroup {
        procs: FdIndex,
    },
    /// See the cgroup just joined as the root of the tree.
    HideCgroupPath,
    /// Become this user and group, which must be mapped.
    SetIds {
        uid: u32,
        gid: u32,
    },
    SetHostname {
        name: String,
    },
    LoopbackUp,
    /// From here on, no mount propagates to the namespace we came from, or from there to ours.
    PrivateMounts,
    Bind {
        source: Source,
        target: PathBuf,
        access: Access,
    },
    Tmpfs {
        target: PathBuf,
        size: u64,
        inodes: u64,
        mode: u32,
    },
    /// Writes below `target` go to `upper`. Files of `lower` (several layers, separated by colons) are visible too,
    /// unless `upper` replaces them. Names are looked up from the current directory.
    Overlay {
        lower: String,
        upper: String,
        work: String,
        target: PathBuf,
    },
    /// A new procfs, which shows our own PID namespace.
    Proc {
        target: PathBuf,
    },
    /// A fresh, empty set of pseudo terminals, for this many. They are a resource of the whole machine.
    Devpts {
        target: PathBuf,
        terminals: u32,
    },
    MakeDir {
        path: PathBuf,
        mode: u32,
        owner: Option<u32>,
    },
    MakeFile {
        path: PathBuf,
        contents: String,
    },
    Symlink {
        path: PathBuf,
        to: PathBuf,
    },
    /// Nothing below this mount can be written from here on.
    ReadOnly {
        target: PathBuf,
    },
    /// Put an empty directory, or the empty file `cover`, over a path, if it exists.
    Mask {
        path: PathBuf,
        cover: PathBuf,
    },
    /// Make a path unwritable by mounting it over itself, if it exists.
    Seal {
        path: PathBuf,
    },
    /// Unmount, with everything mounted on it. Copies of the mount stay.
    Detach {
        target: PathBuf,
    },
    /// Make this the root and drop the old one.
    PivotRoot {
        root: PathBuf,
    },
    ChangeDir {
        path: PathBuf,
    },
    /// No core dumps; they would write memory to disk.
    NoCoreDumps,
    /// No real-time scheduling and no negative niceness, even if we inherited the right to them.
    NoRealtime,
    MaxOpenFiles {
        count: u64,
    },
    /// No capability can be gained again. Must come before the change of ids, which removes the right to do this.
    DropBoundingSet,
    DropCapabilities,
    /// Root keeps the capabilities that are needed to install packages, and none that affect the machine.
    LimitCapabilities,
    NoNewPrivileges,
    /// A second protection behind read-only mounts: writing is possible only below these paths.
    Landlock {
        writable: Vec<PathBuf>,
    },
    /// No file can be made to run as its owner or group: where files belong to a user of the host's, it
    /// would run as that user.
    NoSetIds,
    Seccomp,
    /// Processes inside, of any uid, must not read the memory of this one or trace it.
    Undumpable,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    Path(PathBuf),
    /// A detached mount that a process with more rights has opened.
    Tree(FdIndex),
}

/// What may be done below a bind mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    pub write: bool,
    pub exec: bool,
    pub devices: bool,
    /// Set-user-id bits have effect. They have in no sandbox; only tests of the protections set this.
    pub set_user_id: bool,
}

impl Access {
    /// Programs and libraries.
    pub const READ_EXEC: Access = Access { exec: true, ..Access::READ };
    /// Data, which cannot be executed.
    pub const READ: Access =
        Access { write: false, exec: false, devices: false, set_user_id: false };
    pub const WRITE: Access = Access { write: true, exec: true, ..Access::READ };
    /// Device nodes.
    pub const DEVICE: Access = Access { write: true, devices: true, ..Access::READ };
    /// Everything that the mounts themselves allow.
    pub const AS_MOUNTED: Access = Access { devices: true, ..Access::WRITE };
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.write { "rw" } else { "ro" })?;
        f.write_str(if self.exec { "" } else { ",noexec" })?;
        f.write_str(if self.devices { "" } else { ",nodev" })?;
        f.write_str(if self.set_user_id { "" } else { ",nosuid" })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Path(path) => write!(f, "{}", path.display()),
            Source::Tree(FdIndex(n)) => write!(f, "descriptor {n}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = Path::display;
        match self {
            Step::JoinCgroup { procs: FdIndex(n) } => write!(f, "join cgroup of descriptor {n}"),
            Step::HideCgroupPath => write!(f, "unshare the cgroup namespace"),
            Step::SetIds { uid, gid } => write!(f, "become uid {uid}, gid {gid}"),
            Step::SetHostname { name } => write!(f, "set the host name to {name}"),
            Step::LoopbackUp => write!(f, "bring up the loopback interface"),
            Step::PrivateMounts => write!(f, "make all mounts private"),
            Step::Bind { source, target, access } => {
                write!(f, "bind {source} at {} ({access})", p(target))
            }
            Step::Tmpfs { target, size, inodes, mode } => {
                write!(f, "tmpfs at {} (size {size}, inodes {inodes}, mode {mode:o})", p(target))
            }
            Step::Overlay { lower, upper, target, .. } => {
                write!(f, "overlay of {upper} over {lower} at {}", p(target))
            }
            Step::Proc { target } => write!(f, "proc at {}", p(target)),
            Step::Devpts { target, terminals } => {
                write!(f, "devpts at {} (max {terminals})", p(target))
            }
            Step::MakeDir { path, mode, owner: None } => {
                write!(f, "make directory {} (mode {mode:o})", p(path))
            }
            Step::MakeDir { path, mode, owner: Some(uid) } => {
                write!(f, "make directory {} (mode {mode:o}, owner {uid})", p(path))
            }
            Step::MakeFile { path, contents } => {
                write!(f, "make file {} ({} bytes)", p(path), contents.len())
            }
            Step::Symlink { path, to } => write!(f, "link {} -> {}", p(path), p(to)),
            Step::ReadOnly { target } => write!(f, "make {} read-only", p(target)),
            Step::Mask { path, .. } => write!(f, "mask {}", p(path)),
            Step::Seal { path } => write!(f, "seal {}", p(path)),
            Step::Detach { target } => write!(f, "detach {}", p(target)),
            Step::PivotRoot { root } => write!(f, "pivot the root to {}", p(root)),
            Step::ChangeDir { path } => write!(f, "change directory to {}", p(path)),
            Step::NoCoreDumps => write!(f, "forbid core dumps"),
            Step::NoRealtime => write!(f, "forbid real-time scheduling"),
            Step::MaxOpenFiles { count } => write!(f, "limit open files to {count}"),
            Step::DropBoundingSet => write!(f, "empty the capability bounding set"),
            Step::DropCapabilities => write!(f, "drop all capabilities"),
            Step::LimitCapabilities => write!(f, "limit the capabilities of root"),
            Step::NoNewPrivileges => write!(f, "set no_new_privs"),
            Step::Landlock { writable } => {
                let paths: Vec<_> = writable.iter().map(|p| p.display().to_string()).collect();
                write!(f, "landlock: write only below {}", paths.join(" "))
            }
            Step::NoSetIds => write!(f, "forbid files that run as their owner"),
            Step::Seccomp => write!(f, "install the seccomp filter"),
            Step::Undumpable => write!(f, "become undumpable"),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.namespaces.iter().map(|n| format!("{n:?}")).collect();
        writeln!(f, "new namespaces: {}", names.join(" "))?;
        if let Some(map) = self.ids {
            writeln!(f, "ids {} + {} are {} outside", map.inside, map.count, map.outside)?;
            if let Some(UserIds { inside, outside, count }) = map.user {
                writeln!(f, "ids {inside} + {count} are {outside} outside")?;
            }
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}
