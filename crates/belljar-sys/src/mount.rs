//! Mounts by descriptors: a tree is cloned, restricted while it is detached, and only then attached. So it is never
//! visible without its restrictions.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use crate::plan::Access;

/// A detached copy of the mounts at `path`. It can be attached elsewhere, also by a process that cannot reach `path`.
pub fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(rustix::mount::open_tree(CWD, path, flags)?)
}

/// Like [`clone_tree`], for a directory whose path has no links; also returns its owner.
pub fn clone_directory(path: &Path) -> io::Result<(OwnedFd, (u32, u32))> {
    let (flags, resolve) =
        (OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, ResolveFlags::NO_SYMLINKS);
    let found = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?;
    let owner = rustix::fs::fstat(&found)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok((rustix::mount::open_tree(&found, "", flags)?, (owner.st_uid, owner.st_gid)))
}

/// Attaches a detached tree at `target`.
pub(crate) fn attach(tree: impl AsFd, target: &Path) -> io::Result<()> {
    Ok(rustix::mount::move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Restricts a whole tree, attached or not, to `access`.
pub(crate) fn restrict(tree: impl AsFd, access: Access) -> io::Result<()> {
    let mut attributes = 0;
    if !access.set_user_id {
        attributes |= libc::MOUNT_ATTR_NOSUID;
    }
    if !access.write {
        attributes |= libc::MOUNT_ATTR_RDONLY;
    }
    if !access.exec {
        attributes |= libc::MOUNT_ATTR_NOEXEC;
    }
    if !access.devices {
        attributes |= libc::MOUNT_ATTR_NODEV;
    }
    set_attributes(tree.as_fd(), attributes, None)
}

/// Makes a detached tree an idmapped mount: on disk, files have the ids that they have inside this user namespace. Also
/// restricts the tree to `access`.
pub fn map_ids(tree: impl AsFd, access: Access, namespace: impl AsFd) -> io::Result<()> {
    restrict(&tree, access)?;
    set_attributes(tree.as_fd(), libc::MOUNT_ATTR_IDMAP, Some(namespace.as_fd()))
}

/// Whether the bytes of a file system were allocated when it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    SetAside,
    /// They are allocated when they are written, and freed when files are removed.
    Sparse,
}

/// Mounts the ext4 file system on a block device, for data: no devices, no set-user-id programs.
pub fn block_device(device: &Path, target: &Path, backing: Backing) -> io::Result<()> {
    let device = device.to_str().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mut options = vec![("source", device)];
    if backing == Backing::Sparse {
        // Otherwise Linux would write all inode tables in the background. If the disk below has no room for the journal, the
        // file system becomes read-only.
        options.extend([("noinit_itable", ""), ("discard", ""), ("errors", "remount-ro")]);
    }
    filesystem("ext4", &options, attributes, target)
}

/// Unmounts what is mounted at exactly this path, if anything is. Copies of the mount stay.
pub fn take_away(target: &Path) -> io::Result<()> {
    match rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        // Nothing is mounted, or there is no such path.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// The mount points of our mount namespace.
#[must_use]
pub fn points() -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines = mounts.split(|byte| *byte == b'\n');
    let fields = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    fields.map(|field| std::ffi::OsString::from_vec(unescaped(field)).into()).collect()
}

/// Linux writes spaces, tabs, newlines and backslashes as three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let byte = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match byte.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

/// How full a file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub used: u64,
    /// For users other than root.
    pub free: u64,
    pub files: u64,
}

/// How full the file system is that this path is on.
pub fn room(path: &Path) -> io::Result<Room> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(Room {
        used: (stat.f_blocks - stat.f_bfree) * stat.f_frsize,
        free: stat.f_bavail * stat.f_frsize,
        files: stat.f_files - stat.f_ffree,
    })
}

/// Makes the mounts at `target`, and below it, read-only.
pub(crate) fn make_read_only(target: &Path) -> io::Result<()> {
    let fd = rustix::fs::openat(
        CWD,
        target,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    set_attributes(fd.as_fd(), libc::MOUNT_ATTR_RDONLY, None)
}

fn set_attributes(
    tree: BorrowedFd<'_>,
    attr_set: u64,
    namespace: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let userns_fd = namespace.map_or(Ok(0), |fd| u64::try_from(fd.as_raw_fd()));
    let userns_fd = userns_fd.map_err(io::Error::other)?;
    let attributes = libc::mount_attr { attr_set, attr_clr: 0, propagation: 0, userns_fd };
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

/// Detaches a mount, with everything mounted on it.
pub(crate) fn detach(target: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(target, UnmountFlags::DETACH)?)
}

/// Changes the root. The old root is stacked under the new one and detached at once, so that it needs no directory and
/// leaves none behind.
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

/// The type of the file at a path; `None` if it does not exist or cannot be seen.
pub(crate) fn kind_of(path: &Path) -> Option<rustix::fs::FileType> {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .ok()
        .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode))
}
