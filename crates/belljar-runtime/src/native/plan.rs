//! The plan of a native sandbox.

use std::path::{Path, PathBuf};

use belljar_sys::ids::{Block, IdRange};
use belljar_sys::plan::{Access, FdIndex, IdMap, Namespace, Plan, Source, Step};

use super::spawner::STAGE;
use crate::spec::{SandboxSpec, paths};
use crate::user::USER_ID;
use crate::volume::VolumeMount;

const HOSTNAME: &str = "belljar";

/// The most open files of a process: enough for any program that does not leak, and so few that one sandbox cannot
/// exhaust the machine's file table.
const MAX_OPEN_FILES: u64 = 4096;

/// A sandbox needs a few terminals.
const MAX_TERMINALS: u32 = 64;

/// Parts of `/proc` that reveal data of the host or reach beyond the sandbox.
pub(crate) const PROC_MASKED: [&str; 16] = [
    "acpi",
    "asound",
    "driver",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "pressure",
    "sched_debug",
    "scsi",
    "sysrq-trigger",
    "timer_list",
];

/// Parts of `/proc` that may be read but never written.
const PROC_SEALED: [&str; 4] = ["bus", "fs", "irq", "sys"];

/// Where Landlock allows a sandbox to write.
pub(crate) const WRITABLE: [&str; 3] = [paths::SESSION, "/tmp", "/dev"];

/// The descriptors for a sandbox's plan, in this order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SandboxFds {
    /// How many `cgroup.procs` there are; they come first.
    pub(crate) cgroups: usize,
    /// The trees to mount at `/data` and `/session`, if the server opened them.
    pub(crate) data: Option<FdIndex>,
    pub(crate) session: Option<FdIndex>,
    /// The first of the trees to mount below `/volumes`; the others follow it.
    pub(crate) volumes: Option<FdIndex>,
    pub(crate) workspace: Option<FdIndex>,
}

/// The plan of one sandbox. `image` is where its root was assembled; `block` is its block of user ids. Without a block it has the
/// server's id.
pub(crate) fn sandbox(
    image: &Path,
    spec: &SandboxSpec,
    block: Option<Block>,
    fds: SandboxFds,
) -> Plan {
    let root = Path::new(STAGE).join("root");
    let scratch = Path::new(STAGE).join("scratch");
    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    let owner = Some(USER_ID);
    let mut steps = Vec::new();

    if block.is_some() {
        steps.push(Step::SetIds { uid: 0, gid: 0 });
    }
    steps.extend([
        Step::SetHostname { name: HOSTNAME.into() },
        Step::LoopbackUp,
        Step::PrivateMounts,
        image_at(image, &root),
        Step::Proc { target: inside("/proc") },
    ]);
    let cover = Path::new(STAGE).join("empty");
    steps.extend(
        PROC_MASKED
            .map(|name| Step::Mask { path: inside("/proc").join(name), cover: cover.clone() }),
    );
    steps.extend(PROC_SEALED.map(|name| Step::Seal { path: inside("/proc").join(name) }));

    // Joining waits for a grace period of Linux, which the server has started already: the later the join, the shorter
    // the wait. Nothing large was allocated before; everything that follows is charged to the cgroup.
    steps.extend((0..fds.cgroups).map(|n| Step::JoinCgroup { procs: FdIndex(n) }));
    steps.push(Step::HideCgroupPath);

    // One tmpfs for everything that may be written, so that one limit holds for all of it.
    let (size, inodes) = (spec.limits.effective_tmpfs(), spec.limits.tmpfs_inodes());
    steps.push(Step::Tmpfs { target: scratch.clone(), size, inodes, mode: 0o755 });
    for (name, mode, owner) in [
        ("session", 0o755, owner),
        ("session/artifacts", 0o755, owner),
        ("session/data", 0o755, owner),
        ("tmp", 0o1777, None),
        ("shm", 0o1777, None),
    ] {
        steps.push(Step::MakeDir { path: scratch.join(name), mode, owner });
    }
    let session = match (&spec.session_files, fds.session) {
        (Some(_), Some(index)) => Source::Tree(index),
        (Some(place), None) => Source::Path(place.plain_files()),
        (None, _) => Source::Path(scratch.join("session")),
    };
    let in_scratch = |name| Source::Path(scratch.join(name));
    for (source, target) in
        [(session, paths::SESSION), (in_scratch("tmp"), "/tmp"), (in_scratch("shm"), "/dev/shm")]
    {
        steps.push(Step::Bind { source, target: inside(target), access: Access::WRITE });
    }
    steps.push(Step::Devpts { target: inside("/dev/pts"), terminals: MAX_TERMINALS });
    if let Some(data) = &spec.data {
        let source = match fds.data {
            Some(index) => Source::Tree(index),
            None => Source::Path(data.host_path.clone()),
        };
        steps.push(Step::Bind { source, target: inside(paths::DATA), access: Access::READ });
    }

    let mut writable = WRITABLE.map(PathBuf::from).to_vec();
    if !spec.volumes.is_empty() {
        let places = scratch.join("volumes");
        let make = |path| Step::MakeDir { path, mode: 0o755, owner: None };
        steps.push(make(places.clone()));
        steps.extend(spec.volumes.iter().map(|volume| make(places.join(&volume.name))));
        let (source, target) = (Source::Path(places), inside(paths::VOLUMES));
        steps.push(Step::Bind { source, target, access: Access::READ });
    }
    for (n, volume) in spec.volumes.iter().enumerate() {
        let source = match fds.volumes {
            Some(FdIndex(first)) => Source::Tree(FdIndex(first + n)),
            None => Source::Path(volume.place.plain_files()),
        };
        let path = Path::new(paths::VOLUMES).join(&volume.name);
        let target = inside(paths::VOLUMES).join(&volume.name);
        steps.push(Step::Bind { source, target, access: volume_access(volume) });
        writable.extend(volume.write.then_some(path));
    }

    if let Some(path) = &spec.workspace {
        // Over a directory of the image in which `workspace` is a link to `/session`.
        let run = scratch.join("run");
        let make = |path| Step::MakeDir { path, mode: 0o755, owner: None };
        steps.extend([make(run.clone()), make(run.join("workspace"))]);
        let (source, target) = (Source::Path(run), inside("/run"));
        steps.push(Step::Bind { source, target, access: Access::READ });
        let source = fds.workspace.map_or_else(|| Source::Path(path.clone()), Source::Tree);
        let target = inside(paths::WORKSPACE_MOUNT);
        steps.push(Step::Bind { source, target, access: Access::WRITE });
        writable.push(paths::WORKSPACE_MOUNT.into());
    }

    steps.extend([
        Step::PivotRoot { root: root.clone() },
        Step::ChangeDir { path: spec.working_directory().into() },
        Step::NoCoreDumps,
        Step::NoRealtime,
        Step::MaxOpenFiles { count: MAX_OPEN_FILES },
        Step::DropBoundingSet,
        Step::SetIds { uid: USER_ID, gid: USER_ID },
        Step::DropCapabilities,
        Step::Undumpable,
        Step::NoNewPrivileges,
        Step::Landlock { writable },
    ]);
    // Only a workspace has files that could run as another user: other mounts are nosuid.
    steps.extend(spec.workspace.as_ref().map(|_| Step::NoSetIds));
    steps.push(Step::Seccomp);
    Plan {
        namespaces: vec![
            Namespace::User,
            Namespace::Mount,
            Namespace::Pid,
            Namespace::Net,
            Namespace::Ipc,
            Namespace::Uts,
        ],
        ids: Some(id_map(block)),
        steps,
    }
}

fn image_at(image: &Path, root: &Path) -> Step {
    // Every part of the image has its own restrictions already, and devices must work.
    let (source, access) = (Source::Path(image.to_owned()), Access::AS_MOUNTED);
    Step::Bind { source, target: root.to_owned(), access }
}

/// The access to a volume: programs in it can be executed, also if it is read-only.
pub(crate) fn volume_access(volume: &VolumeMount) -> Access {
    if volume.write { Access::WRITE } else { Access::READ_EXEC }
}

/// A process in a user namespace with a sandbox's ids, for making idmapped mounts.
pub(crate) fn translator(block: Block) -> Plan {
    Plan { namespaces: vec![Namespace::User], ids: Some(id_map(Some(block))), steps: Vec::new() }
}

/// Like [`translator`], for files of one owner on disk, which the sandbox's user sees as its own.
pub(crate) fn translator_of_owner(block: Block, (uid, gid): (u32, u32)) -> Plan {
    let outside = block.user_offset(USER_ID);
    let ids = IdMap {
        inside: uid,
        inside_group: gid,
        outside,
        outside_group: outside,
        count: 1,
        user: None,
        setgroups: true,
    };
    Plan { namespaces: vec![Namespace::User], ids: Some(ids), steps: Vec::new() }
}

/// The id map of one sandbox, as the spawner in the outer namespace writes it.
fn id_map(block: Option<Block>) -> IdMap {
    match block {
        Some(block) => block.id_map(USER_ID),
        None => IdMap {
            inside: USER_ID,
            inside_group: USER_ID,
            outside: 0,
            outside_group: 0,
            count: 1,
            user: None,
            setgroups: false,
        },
    }
}

/// The id map of the outer namespace, as the server writes it. Without a range, sandboxes have the server's id.
pub(crate) fn outer_id_map(range: Option<IdRange>) -> IdMap {
    if let Some(range) = range {
        return range.outer_map();
    }
    let (uid, gid) = belljar_sys::privileges::own_ids();
    IdMap {
        inside: 0,
        inside_group: 0,
        outside: uid,
        outside_group: gid,
        count: 1,
        user: None,
        setgroups: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::image::staged_root;
    use crate::spec::{DataMount, Limits};
    use crate::volume::{VolumeKind, VolumePlace};

    #[test]
    fn a_sandbox_is_built_in_these_steps() {
        let spec = SandboxSpec {
            limits: Limits::default(),
            data: Some(DataMount { host_path: "/srv/datasets".into() }),
            ..SandboxSpec::default()
        };
        let fds = SandboxFds {
            cgroups: 4,
            data: Some(FdIndex(7)),
            session: None,
            volumes: None,
            workspace: None,
        };
        let block = Block { number: 3, range: IdRange::USUAL };
        insta::assert_snapshot!(sandbox(&staged_root(), &spec, Some(block), fds));
    }

    #[test]
    fn without_root_one_id_is_shared_and_paths_are_opened_inside() {
        let spec = SandboxSpec {
            limits: Limits { memory: 64 << 20, ..Limits::default() },
            data: Some(DataMount { host_path: "/srv/datasets".into() }),
            ..SandboxSpec::default()
        };
        let fds =
            SandboxFds { cgroups: 0, data: None, session: None, volumes: None, workspace: None };
        let plan = sandbox(&staged_root(), &spec, None, fds);
        insta::assert_snapshot!(plan);
    }

    #[test]
    fn volumes_are_mounted_below_a_directory_that_nobody_can_add_to() {
        let volume = |name: &str, write| {
            let place = VolumePlace {
                directory: format!("/volumes-of-host/{name}").into(),
                kind: VolumeKind::Directory,
            };
            VolumeMount { name: name.into(), place, write }
        };
        let volumes = vec![volume("cache", true), volume("reference", false)];
        let spec = SandboxSpec { volumes, ..SandboxSpec::default() };
        let about_volumes = |volumes| {
            let fds =
                SandboxFds { cgroups: 0, data: None, session: None, volumes, workspace: None };
            let steps = sandbox(&staged_root(), &spec, None, fds).steps;
            let steps = steps.iter().map(ToString::to_string);
            steps.filter(|step| step.contains("volumes")).collect::<Vec<_>>().join("\n")
        };
        let (opened, found) = (about_volumes(Some(FdIndex(5))), about_volumes(None));
        insta::assert_snapshot!(format!("opened by root:\n{opened}\n\nfound without:\n{found}"));
    }

    #[test]
    fn the_root_of_an_image_is_assembled_in_these_steps() {
        let place = Path::new(STAGE).join("image-1");
        let rootfs = Path::new("/images/roots/abc/rootfs");
        let steps = crate::native::image::steps_of_root(rootfs, Path::new("/usr"), &place);
        let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(steps.join("\n"));
    }

    #[test]
    fn a_workspace_is_mounted_where_the_link_leads_and_makes_no_set_id_files() {
        let plan_with = |workspace: Option<&str>, index| {
            let spec =
                SandboxSpec { workspace: workspace.map(Into::into), ..SandboxSpec::default() };
            let fds = SandboxFds {
                cgroups: 0,
                data: None,
                session: None,
                volumes: None,
                workspace: index,
            };
            let plan = sandbox(
                &staged_root(),
                &spec,
                Some(Block { number: 1, range: IdRange::USUAL }),
                fds,
            );
            let steps = plan.steps.iter().map(ToString::to_string);
            steps.collect::<Vec<_>>()
        };
        let none = plan_with(None, None);
        assert!(
            !none.iter().any(|step| step.contains("/run/workspace") || step.contains("run as"))
        );
        for steps in
            [plan_with(Some("/projects/a"), None), plan_with(Some("/projects/a"), Some(FdIndex(3)))]
        {
            let at = |what: &str| steps.iter().position(|step| step.contains(what)).unwrap();
            assert!(at("root/run/workspace") < at("pivot the root"));
            assert!(at("/run/workspace") < at("landlock"));
            assert!(steps[at("landlock")].ends_with("/run/workspace"));
            assert!(at("run as their owner") < at("install the seccomp filter"));
            assert_eq!(steps[at("change directory")], "change directory to /workspace");
        }
    }
}
