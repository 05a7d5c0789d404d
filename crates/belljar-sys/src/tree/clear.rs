//! Removes a whole tree that hostile code made, of any depth.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{directory_flags, is_directory};

/// Removes everything below `root`, which stays. No process may be writing there any more. Nested directories are moved to
/// the top first: for any depth, no path grows long and two descriptors are enough.
pub fn clear(root: &Path) -> io::Result<()> {
    let root = rustix::fs::openat(CWD, root, directory_flags(), Mode::empty())?;
    loop {
        let entries = names(&root)?;
        if entries.is_empty() {
            return Ok(());
        }
        for (name, directory) in entries {
            if directory {
                flatten(&root, &name)?;
                match rustix::fs::unlinkat(&root, &name[..], AtFlags::REMOVEDIR) {
                    // It has more entries than were read at once, and is read again.
                    Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                    removed => removed?,
                }
            } else {
                rustix::fs::unlinkat(&root, &name[..], AtFlags::empty())?;
            }
        }
    }
}

/// Empties one directory of the root; the content of its subdirectories moves into the root.
fn flatten(root: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let directory = enter(root, name)?;
    for (name, is_directory) in names(&directory)? {
        if !is_directory {
            rustix::fs::unlinkat(&directory, &name[..], AtFlags::empty())?;
            continue;
        }
        match rustix::fs::unlinkat(&directory, &name[..], AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                // Without root, a directory must be writable to be moved.
                drop(enter(&directory, &name)?);
                let fresh = format!("cleared.{}", crate::process::random_name());
                rustix::fs::renameat(&directory, &name[..], root, fresh)?;
            }
            removed => removed?,
        }
    }
    Ok(())
}

/// Opens a directory, and makes it readable and writable first if necessary.
fn enter(parent: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
    if rustix::process::geteuid() != Uid::ROOT {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        // The mode of an O_PATH descriptor can only be changed by this name, which follows no link of the tree.
        let path = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
        rustix::fs::chmod(path, Mode::RWXU)?;
    }
    Ok(rustix::fs::openat(parent, name, directory_flags(), Mode::empty())?)
}

/// The entries of a directory, and which of them are directories.
fn names(directory: &OwnedFd) -> io::Result<Vec<(Vec<u8>, bool)>> {
    /// The most that is read at once; the rest comes when the directory is read again.
    const AT_ONCE: usize = 10_000;
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            let directory = match entry.file_type() {
                FileType::Directory => true,
                _ => is_directory(directory, &entry)?,
            };
            found.push((name.to_vec(), directory));
        }
        if found.len() >= AT_ONCE {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn deep_wide_and_odd_trees_go_and_nothing_outside_does() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::write(root.join("a/b/file"), "x").unwrap();
        fs::write(directory.path().join("outside"), "x").unwrap();
        symlink(directory.path(), root.join("link")).unwrap();
        symlink(directory.path().join("outside"), root.join("a/link")).unwrap();
        fs::set_permissions(root.join("a/b"), fs::Permissions::from_mode(0o000)).unwrap();
        // Deeper than the longest possible path.
        let flags = directory_flags();
        let mut at = rustix::fs::openat(CWD, &root, flags, Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "deep", Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, "deep", flags, Mode::empty()).unwrap();
        }
        fs::create_dir(root.join("wide")).unwrap();
        for n in 0..11_000 {
            fs::write(root.join("wide").join(n.to_string()), "").unwrap();
        }
        clear(&root).unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        assert!(directory.path().join("outside").exists());
        assert!(clear(&directory.path().join("outside")).is_err(), "no directory");
    }
}
