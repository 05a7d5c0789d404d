//! Mounts, by way of descriptors: a tree is cloned, made harmless while nobody can see it, and only
//! then attached. There is no moment at which it is visible and writable.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use crate::plan::Access;

/// A detached copy of the mounts at `path`, to be attached elsewhere, by someone who could not
/// reach `path` themselves if need be.
pub fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(rustix::mount::open_tree(CWD, path, flags)?)
}

pub(crate) fn attach(tree: impl AsFd, target: &Path) -> io::Result<()> {
    Ok(rustix::mount::move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Restricts a whole tree, attached or not, to `access`.
pub(crate) fn restrict(tree: impl AsFd, access: Access) -> io::Result<()> {
    let mut attributes = libc::MOUNT_ATTR_NOSUID;
    if !access.write {
        attributes |= libc::MOUNT_ATTR_RDONLY;
    }
    if !access.exec {
        attributes |= libc::MOUNT_ATTR_NOEXEC;
    }
    if !access.devices {
        attributes |= libc::MOUNT_ATTR_NODEV;
    }
    set_attributes(tree.as_fd(), attributes)
}

/// Makes what is mounted at `target`, and below it, unwritable.
pub(crate) fn make_read_only(target: &Path) -> io::Result<()> {
    let fd = rustix::fs::openat(
        CWD,
        target,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    set_attributes(fd.as_fd(), libc::MOUNT_ATTR_RDONLY)
}

fn set_attributes(tree: BorrowedFd<'_>, attr_set: u64) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the descriptor is open, the path is an empty C string, and the structure is live
    // for the call and as large as we say.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A new file system of the given kind, mounted at `target`.
pub(crate) fn filesystem(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
    target: &Path,
) -> io::Result<()> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(&context, *key)?;
        } else {
            rustix::mount::fsconfig_set_string(&context, *key, *value)?;
        }
    }
    rustix::mount::fsconfig_create(&context)?;
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    attach(mount, target)
}

/// Takes a mount, and what is mounted on it, out of sight.
pub(crate) fn detach(target: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(target, UnmountFlags::DETACH)?)
}

/// Swaps the root. The old one is stacked under the new and dropped at once, so that no directory
/// for it is needed and none is left behind.
pub(crate) fn pivot_root(root: &Path) -> io::Result<()> {
    let old = rustix::fs::openat(
        CWD,
        "/",
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    rustix::process::chdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::process::fchdir(&old)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// Does this path exist, as far as we may see?
pub(crate) fn kind_of(path: &Path) -> Option<rustix::fs::FileType> {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .ok()
        .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode))
}
