//! Unpacks root file systems of images, whose names and links are not trusted.
//!
//! Paths are resolved as if the directory were the root: a link on the way, absolute or relative, never leads out of it. The
//! last name of a path is never followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;

/// The deepest tree that can be removed.
const MAX_DEPTH: usize = 4096;

/// The directory of a root file system.
#[derive(Debug)]
pub struct Rootfs(OwnedFd);

/// What is at a path of a root file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Directory,
    File { executable: bool },
    Link,
    Other,
}

impl Rootfs {
    pub fn open(path: &Path) -> io::Result<Rootfs> {
        Ok(Rootfs(rustix::fs::openat(CWD, path, directory_flags(), Mode::empty())?))
    }

    /// Makes a directory with these permissions. An existing one is kept with its content; anything else is replaced.
    pub fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let Some((parent, name)) = self.parent(path)? else {
            return Ok(rustix::fs::fchmod(&self.0, Mode::from_raw_mode(mode))?);
        };
        match kind(&parent, name)? {
            Some(FileType::Directory) => {}
            Some(_) => {
                rustix::fs::unlinkat(&parent, name, AtFlags::empty())?;
                rustix::fs::mkdirat(&parent, name, Mode::RWXU)?;
            }
            None => rustix::fs::mkdirat(&parent, name, Mode::RWXU)?,
        }
        let made = rustix::fs::openat(&parent, name, directory_flags(), Mode::empty())?;
        Ok(rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?)
    }

    /// Makes a file, open for writing, and replaces what was there.
    pub fn make_file(&self, path: &Path, mode: u32) -> io::Result<File> {
        let (parent, name) = self.place(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&parent, name, flags | OFlags::CLOEXEC, Mode::RUSR)?;
        // The umask may have removed bits.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(file.into())
    }

    /// Makes a symbolic link, and replaces what was there. Its target is checked when it is followed.
    pub fn make_link(&self, path: &Path, to: &Path) -> io::Result<()> {
        let (parent, name) = self.place(path)?;
        Ok(rustix::fs::symlinkat(to, &parent, name)?)
    }

    /// Makes a hard link to an existing plain file or link, and replaces what was at `path`.
    pub fn make_hard_link(&self, path: &Path, existing: &Path) -> io::Result<()> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let (from, from_name) = self.parent(existing)?.ok_or_else(missing)?;
        match kind(&from, from_name)? {
            Some(FileType::RegularFile | FileType::Symlink) => {}
            Some(_) => {
                return Err(io::Error::other("only plain files and links can have hard links"));
            }
            None => return Err(missing()),
        }
        // Linked under a temporary name first: `path` may be a name of the same file.
        let (parent, name) = self.parent(path)?.ok_or_else(missing)?;
        let beside = crate::process::random_name();
        rustix::fs::linkat(&from, from_name, &parent, &beside, AtFlags::empty())?;
        let placed = remove_at(&parent, name, 0)
            .and_then(|()| Ok(rustix::fs::renameat(&parent, &beside, &parent, name)?));
        // Renaming one name of a file to another does nothing.
        match rustix::fs::unlinkat(&parent, &beside, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => placed,
            Err(errno) => placed.and(Err(errno.into())),
        }
    }

    /// Removes what is at a path, with everything below it.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        match self.parent_if_any(path) {
            Ok(Some((parent, name))) => remove_at(&parent, name, 0),
            Ok(None) => Ok(()),
            Err(error) if is_absence(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The sorted names in a directory; empty if there is none.
    pub fn names(&self, path: &Path) -> io::Result<Vec<Vec<u8>>> {
        let directory = match self.directory(path) {
            Err(error) if is_absence(&error) => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut names = Vec::new();
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(name.to_vec());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Describes what is at a path, without following a link at its end.
    pub fn standing(&self, path: &Path) -> io::Result<Option<Standing>> {
        let Some((parent, name)) = (match self.parent_if_any(path) {
            Err(error) if is_absence(&error) => return Ok(None),
            found => found?,
        }) else {
            return Ok(Some(Standing::Directory));
        };
        match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(standing(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Describes what is at a path, following links inside this root.
    pub fn leads_to(&self, path: &Path) -> io::Result<Option<Standing>> {
        match self.resolve(path, OFlags::PATH | OFlags::CLOEXEC) {
            Ok(found) => Ok(Some(standing(rustix::fs::fstat(&found)?.st_mode))),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a plain file for reading, following links inside this root; never blocks.
    pub fn open_file(&self, path: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = self.resolve(path, flags)?;
        crate::descriptor::check_plain_file(&file)?;
        Ok(file.into())
    }

    /// Sets the time of the last change, which some programs compare with a stored one.
    pub fn set_modified(&self, path: &Path, seconds: u64) -> io::Result<()> {
        let Some((parent, name)) = self.parent_if_any(path)? else { return Ok(()) };
        let times = timestamps(seconds);
        Ok(rustix::fs::utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(&self.0, path, flags, Mode::empty(), resolve)?)
    }

    fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        if path.as_os_str().is_empty() {
            return self.0.try_clone();
        }
        self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)
    }

    /// Removes what is at a path, so that something new can be made there. Returns its directory and its name.
    fn place<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let (parent, name) = self.parent(path)?.ok_or_else(invalid)?;
        remove_at(&parent, name, 0)?;
        Ok((parent, name))
    }

    /// The directory of a path, which is made if missing, and the last name; none for the root itself.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<Option<(OwnedFd, &'a OsStr)>> {
        let Some(name) = last_name(path)? else { return Ok(None) };
        let parent = path.parent().unwrap_or(Path::new(""));
        match self.directory(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_missing(parent)?;
                Ok(Some((self.directory(parent)?, name)))
            }
            opened => Ok(Some((opened?, name))),
        }
    }

    fn parent_if_any<'a>(&self, path: &'a Path) -> io::Result<Option<(OwnedFd, &'a OsStr)>> {
        let Some(name) = last_name(path)? else { return Ok(None) };
        Ok(Some((self.directory(path.parent().unwrap_or(Path::new("")))?, name)))
    }

    fn make_missing(&self, path: &Path) -> io::Result<()> {
        let mut made = PathBuf::new();
        for name in path.components() {
            let parent = self.directory(&made)?;
            made.push(name);
            match rustix::fs::mkdirat(&parent, name.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// Sets the time of the last change of an open file.
pub fn set_modified(file: impl AsFd, seconds: u64) -> io::Result<()> {
    Ok(rustix::fs::futimens(file, &timestamps(seconds))?)
}

/// Removes a directory of the host with its content. A missing one is no error.
pub fn remove_all(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let Some(name) = path.file_name() else { return Ok(()) };
    match rustix::fs::openat(CWD, parent, directory_flags(), Mode::empty()) {
        Ok(parent) => remove_at(&parent, name, 0),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until the entries of a directory are on the disk.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Whether the error means that nothing is there, or only links in a circle.
fn is_absence(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(libc::ELOOP)
}

fn timestamps(seconds: u64) -> Timestamps {
    // A time that the system cannot store is replaced by now.
    let of = |seconds: u64| Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 };
    let representable = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    let seconds = match representable {
        Some(_) => seconds,
        None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
    };
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: of(seconds),
    }
}

fn standing(mode: u32) -> Standing {
    match FileType::from_raw_mode(mode) {
        FileType::Directory => Standing::Directory,
        FileType::RegularFile => Standing::File { executable: mode & 0o111 != 0 },
        FileType::Symlink => Standing::Link,
        _ => Standing::Other,
    }
}

/// Splits a path, which must consist of plain names ([`Path::components`]).
fn last_name(path: &Path) -> io::Result<Option<&OsStr>> {
    use std::path::Component;
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || path.as_os_str().as_bytes().contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a path of plain names"));
    }
    Ok(path.file_name())
}

fn kind(parent: &OwnedFd, name: &OsStr) -> io::Result<Option<FileType>> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn remove_at(parent: &OwnedFd, name: &OsStr, depth: usize) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    if depth > MAX_DEPTH {
        return Err(io::Error::other("directories are nested too deeply to be removed"));
    }
    let directory = match rustix::fs::openat(parent, name, directory_flags(), Mode::empty()) {
        // Without root, a directory that was unpacked without the right to read it.
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(parent, name, directory_flags(), Mode::empty())?
        }
        opened => opened?,
    };
    let mut names: Vec<Vec<u8>> = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        match entry.file_name().to_bytes() {
            b"." | b".." => {}
            name => names.push(name.to_vec()),
        }
    }
    let mut retried = false;
    for name in names {
        let name = OsStr::from_bytes(&name);
        match remove_at(&directory, name, depth + 1) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !retried => {
                retried = true;
                rustix::fs::fchmod(&directory, Mode::RWXU)?;
                remove_at(&directory, name, depth + 1)?;
            }
            removed => removed?,
        }
    }
    drop(directory);
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn outside_and_root() -> (tempfile::TempDir, Rootfs) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("root")).unwrap();
        fs::write(dir.path().join("secret"), "untouched").unwrap();
        let root = Rootfs::open(&dir.path().join("root")).unwrap();
        (dir, root)
    }

    #[test]
    fn links_on_the_way_lead_to_somewhere_inside() {
        let (dir, root) = outside_and_root();
        let inside = dir.path().join("root");
        root.make_link(Path::new("up"), Path::new("../..")).unwrap();
        root.make_link(Path::new("abs"), dir.path()).unwrap();
        root.make_directory(Path::new("usr/lib"), 0o755).unwrap();
        root.make_link(Path::new("lib"), Path::new("usr/lib")).unwrap();
        root.make_file(Path::new("up/secret"), 0o644).unwrap();
        root.make_file(Path::new("lib/libc.so"), 0o755).unwrap();
        assert!(inside.join("secret").exists() && inside.join("usr/lib/libc.so").exists());
        assert!(root.make_file(Path::new("abs/secret"), 0o644).is_err(), "it leads nowhere inside");
        assert_eq!(fs::read_to_string(dir.path().join("secret")).unwrap(), "untouched");
        for hostile in ["../secret", "/secret", "usr/../../secret", "a/./../b"] {
            assert!(root.make_file(Path::new(hostile), 0o644).is_err(), "{hostile}");
        }
    }

    #[test]
    fn what_is_in_the_way_goes_and_what_it_leads_to_stays() {
        let (dir, root) = outside_and_root();
        symlink("../secret", dir.path().join("root/link")).unwrap();
        root.make_file(Path::new("link"), 0o644).unwrap();
        root.make_directory(Path::new("full/of/things"), 0o700).unwrap();
        root.make_file(Path::new("full"), 0o600).unwrap();
        assert_eq!(
            root.standing(Path::new("full")).unwrap(),
            Some(Standing::File { executable: false })
        );
        assert_eq!(fs::read_to_string(dir.path().join("secret")).unwrap(), "untouched");
        assert_eq!(root.names(Path::new("")).unwrap(), [b"full".to_vec(), b"link".to_vec()]);
    }

    #[test]
    fn hard_links_are_between_files_of_the_root() {
        let (dir, root) = outside_and_root();
        root.make_file(Path::new("a"), 0o644).unwrap();
        root.make_hard_link(Path::new("b/c"), Path::new("a")).unwrap();
        root.make_hard_link(Path::new("a"), Path::new("b/c")).unwrap();
        let inode = |name| fs::metadata(dir.path().join("root").join(name)).unwrap().ino();
        assert_eq!(inode("a"), inode("b/c"));
        for hostile in ["../secret", "missing", "b"] {
            assert!(root.make_hard_link(Path::new("x"), Path::new(hostile)).is_err(), "{hostile}");
        }
        assert_eq!(root.names(Path::new("")).unwrap().len(), 2, "nothing is left beside");
    }

    #[test]
    fn unreadable_directories_are_removed_too() {
        let (dir, root) = outside_and_root();
        root.make_directory(Path::new("a/b/c"), 0o755).unwrap();
        let closed = dir.path().join("root/a");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        root.remove(Path::new("a")).unwrap();
        root.remove(Path::new("never/was")).unwrap();
        assert!(!closed.exists());
        assert!(!dir.path().join("root/never").exists());
    }
}
