//! Carries out a [`Plan`](crate::plan::Plan), in one loop with one match.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::mount::{MountAttrFlags, MountPropagationFlags};

use crate::plan::{Access, FdIndex, IdMap, Source, Step};
use crate::{landlock, mount, privileges, process, seccomp};

/// A step that could not be carried out.
#[derive(Debug, thiserror::Error)]
#[error("the step `{step}` failed")]
pub struct StepError {
    pub step: String,
    #[source]
    pub cause: io::Error,
}

/// Carries out the steps in order and stops at the first that fails.
pub fn apply(steps: &[Step], fds: &[BorrowedFd<'_>]) -> Result<(), StepError> {
    for step in steps {
        apply_one(step, fds).map_err(|cause| StepError { step: step.to_string(), cause })?;
    }
    Ok(())
}

fn apply_one(step: &Step, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let descriptor = |FdIndex(n): FdIndex| {
        fds.get(n).copied().ok_or_else(|| io::Error::other("the plan names a missing descriptor"))
    };
    match step {
        Step::JoinCgroup { procs } => join_cgroup(descriptor(*procs)?),
        Step::HideCgroupPath => process::unshare(libc::CLONE_NEWCGROUP),
        Step::SetIds { uid, gid } => privileges::set_ids(*uid, *gid),
        Step::SetHostname { name } => Ok(rustix::system::sethostname(name.as_bytes())?),
        Step::LoopbackUp => loopback_up(),
        Step::PrivateMounts => {
            // First a slave: mounts from a namespace of another owner cannot be made private in one
            // step.
            for change in [MountPropagationFlags::DOWNSTREAM, MountPropagationFlags::PRIVATE] {
                rustix::mount::mount_change("/", change | MountPropagationFlags::REC)?;
            }
            Ok(())
        }
        Step::Bind { source, target, access } => match source {
            Source::Path(path) => bind(&mount::clone_tree(path)?, target, *access),
            Source::Tree(index) => bind(descriptor(*index)?, target, *access),
        },
        Step::Tmpfs { target, size, inodes, mode } => mount::filesystem(
            "tmpfs",
            &[
                ("size", &size.to_string()),
                ("nr_inodes", &inodes.to_string()),
                ("mode", &format!("{mode:o}")),
            ],
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
            target,
        ),
        Step::Overlay { lower, upper, work, target } => mount::filesystem(
            "overlay",
            &[
                ("lowerdir", lower),
                ("upperdir", upper),
                ("workdir", work),
                // What is written must be a plain layer, without extended attributes of overlayfs.
                ("redirect_dir", "off"),
                ("index", "off"),
                ("metacopy", "off"),
            ],
            MountAttrFlags::empty(),
            target,
        ),
        Step::Proc { target } => mount::filesystem("proc", &[], no_exec(), target),
        Step::Devpts { target, terminals } => mount::filesystem(
            "devpts",
            &[
                ("newinstance", ""),
                ("ptmxmode", "0666"),
                ("mode", "0620"),
                ("max", &terminals.to_string()),
            ],
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
            target,
        ),
        Step::MakeDir { path, mode, owner } => make_dir(path, *mode, *owner),
        Step::MakeFile { path, contents } => make_file(path, contents.as_bytes()),
        Step::Symlink { path, to } => Ok(rustix::fs::symlink(to, path)?),
        Step::ReadOnly { target } => mount::make_read_only(target),
        Step::Mask { path, cover } => mask(path, cover),
        Step::Seal { path } => match mount::kind_of(path) {
            Some(_) => bind(&mount::clone_tree(path)?, path, Access::READ),
            None => Ok(()),
        },
        Step::Detach { target } => mount::detach(target),
        Step::PivotRoot { root } => mount::pivot_root(root),
        Step::ChangeDir { path } => Ok(rustix::process::chdir(path)?),
        Step::NoCoreDumps => privileges::forbid_core_dumps(),
        Step::NoRealtime => privileges::forbid_realtime(),
        Step::MaxOpenFiles { count } => privileges::limit_open_files(*count),
        Step::DropBoundingSet => privileges::drop_bounding_set(),
        Step::DropCapabilities => privileges::drop_capabilities(),
        Step::LimitCapabilities => privileges::limit_root(),
        Step::NoNewPrivileges => privileges::set_no_new_privileges(),
        Step::Landlock { writable } => {
            landlock::ruleset(writable)?.map_or(Ok(()), landlock::restrict_self)
        }
        Step::NoSetIds => seccomp::Filter::no_set_ids().map_err(io::Error::other)?.install(),
        Step::Seccomp => seccomp::Filter::sandbox().map_err(io::Error::other)?.install(),
        Step::Undumpable => privileges::become_undumpable(),
    }
}

/// Writes the id maps of a child that waits for them in a new user namespace.
pub fn map_ids(pid: u32, map: IdMap) -> io::Result<()> {
    let user = map.user.map(|ids| format!("{} {} {}\n", ids.inside, ids.outside, ids.count));
    let user = user.unwrap_or_default();
    let line = |inside: u32, outside: u32| format!("{inside} {outside} {}\n{user}", map.count);
    std::fs::write(format!("/proc/{pid}/uid_map"), line(map.inside, map.outside))?;
    if !map.setgroups {
        std::fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
    }
    std::fs::write(format!("/proc/{pid}/gid_map"), line(map.inside_group, map.outside_group))
}

fn no_exec() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
}

fn join_cgroup(procs: BorrowedFd<'_>) -> io::Result<()> {
    rustix::io::write(procs, b"0").map(|_| ()).map_err(Into::into)
}

fn bind(tree: impl AsFd, target: &Path, access: Access) -> io::Result<()> {
    mount::restrict(&tree, access)?;
    mount::attach(&tree, target)
}

fn make_dir(path: &Path, mode: u32, owner: Option<u32>) -> io::Result<()> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    if let Some(id) = owner {
        let (uid, gid) = (rustix::fs::Uid::from_raw(id), rustix::fs::Gid::from_raw(id));
        rustix::fs::chown(path, Some(uid), Some(gid))?;
    }
    // The umask may have removed bits.
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(mode))?)
}

fn make_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
    let mut rest = contents;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    Ok(())
}

fn mask(path: &Path, cover: &Path) -> io::Result<()> {
    match mount::kind_of(path) {
        None => Ok(()),
        Some(FileType::Directory) => mount::filesystem(
            "tmpfs",
            &[("size", "4096"), ("nr_inodes", "1"), ("mode", "555")],
            no_exec() | MountAttrFlags::MOUNT_ATTR_RDONLY,
            path,
        ),
        Some(_) => bind(&mount::clone_tree(cover)?, path, Access::READ),
    }
}

fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_flags =
        i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(io::Error::other)?;
    use std::os::fd::AsRawFd as _;
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which is live and names an interface.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_named_with_its_cause() {
        let steps =
            [Step::ChangeDir { path: "/".into() }, Step::ChangeDir { path: "/nowhere".into() }];
        let error = apply(&steps, &[]).unwrap_err();
        assert_eq!(error.to_string(), "the step `change directory to /nowhere` failed");
        assert_eq!(error.cause.kind(), io::ErrorKind::NotFound);
    }
}
