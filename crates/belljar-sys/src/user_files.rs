//! Handles files of a sandbox for its user, with the rights of a program inside: links are followed as a program would
//! follow them.
//!
//! Runs inside the sandbox, in the guest. Files of `/proc` are refused: they would be about the guest.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, StatxAttributes, StatxFlags};

use crate::descriptor;
use crate::glob::Glob;
use crate::identity::Identity;

/// The type of `/proc` in statfs.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub path: Vec<u8>,
    pub kind: FileKind,
    pub size: u64,
    pub mode: u32,
    pub modified_ns: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    Link,
    Other,
}

/// Describes what is at a path, without following a link at its end.
pub fn look(path: &[u8]) -> io::Result<Seen> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::open(as_path(path), flags, Mode::empty())?;
    match refuse_proc(&found) {
        // gVisor has no statfs for descriptors with O_PATH.
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
        refused => refused?,
    }
    Ok(seen(path.to_vec(), &rustix::fs::fstat(&found)?))
}

/// What to list of a directory.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub recursive: bool,
    pub max: u64,
    pub max_depth: u32,
    /// Only what matches, by its path below the directory.
    pub glob: Option<&'a Glob>,
    /// Also names that begin with a dot, and what is below them.
    pub hidden: bool,
}

/// Entries that are examined for one listing: code may have made very many.
const MAX_EXAMINED: u64 = 200_000;

/// Lists a directory by name, at most `max` entries, and returns how many more there are at least. Links below it are not
/// followed.
pub fn list(path: &[u8], wanted: &Wanted<'_>) -> io::Result<(Vec<Seen>, u64)> {
    let Wanted { recursive, max, max_depth, glob, hidden } = *wanted;
    let recursive = recursive || glob.is_some_and(Glob::goes_deeper);
    let mut found = Vec::new();
    let mut more = 0;
    let mut examined = 0;
    let mut waiting = vec![(Vec::new(), 0)];
    while let Some((directory, depth)) = waiting.pop() {
        let full = as_path(path).join(as_path(&directory));
        let entries = match open_directory(&full, depth == 0) {
            // A directory that was removed or cannot be read is listed without its content.
            Err(_) if depth > 0 => continue,
            entries => entries?,
        };
        let mut names =
            names_in(&entries, hidden, max.saturating_mul(2), &mut examined, &mut more)?;
        names.sort();
        for name in names {
            let stat = rustix::fs::statat(&entries, &name[..], AtFlags::SYMLINK_NOFOLLOW);
            let Ok(stat) = stat else { continue };
            let below = match directory.is_empty() {
                true => name,
                false => [&directory[..], b"/", &name].concat(),
            };
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if recursive && is_directory && depth < max_depth {
                waiting.push((below.clone(), depth + 1));
            }
            if glob.is_some_and(|glob| !glob.matches(&below)) {
                continue;
            }
            if found.len() as u64 >= max {
                more += 1;
                continue;
            }
            found.push(seen(below, &stat));
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((found, more))
}

/// The names in a directory, at most `most`. Counts those that are examined, and those beyond the limits.
fn names_in(
    directory: &OwnedFd,
    hidden: bool,
    most: u64,
    examined: &mut u64,
    more: &mut u64,
) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        *examined += 1;
        if names.len() as u64 >= most || *examined > MAX_EXAMINED {
            *more += 1;
        } else if hidden || !name.starts_with(b".") {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// Opens a plain file for appending, and creates it with this mode if there is none. Never blocks.
pub fn append(path: &[u8], mode: u32) -> io::Result<OwnedFd> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut options = fs::File::options();
    options.append(true).create(true).mode(mode).custom_flags(flags);
    let file = options.open(as_path(path)).map_err(no_file)?;
    refuse_proc(&file)?;
    let file: OwnedFd = file.into();
    descriptor::check_written_file(&file)?;
    Ok(file)
}

/// Opens a plain file for reading; never blocks.
pub fn open(path: &[u8]) -> io::Result<OwnedFd> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = fs::File::options().read(true).custom_flags(flags).open(as_path(path));
    let file = file.map_err(no_file)?;
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    refuse_proc(&file)?;
    let file: OwnedFd = file.into();
    descriptor::check_plain_file(&file)?;
    Ok(file)
}

/// Creates a directory and its parents. An existing one is no error.
pub fn make_directory(path: &[u8]) -> io::Result<()> {
    fs::create_dir_all(as_path(path))
}

/// Removes what is at a path: of a link, only the link. A mount point is refused before anything in it is removed.
pub fn remove(path: &[u8], recursive: bool) -> io::Result<()> {
    let path = as_path(path);
    if is_mounted(path) {
        let why = "it is a mount point, which cannot be removed";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    match fs::symlink_metadata(path)?.is_dir() {
        true if recursive => fs::remove_dir_all(path),
        true => fs::remove_dir(path),
        false => fs::remove_file(path),
    }
}

/// Renames a file or a directory. Between file systems, such as `/session` and `/tmp`, a plain file is copied under a
/// temporary name first, and anything else is refused.
pub fn rename(from: &[u8], to: &[u8]) -> io::Result<()> {
    let (from, to) = (as_path(from), as_path(to));
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            if !fs::symlink_metadata(from)?.is_file() {
                let why = "only plain files can be moved between file systems";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            let beside = to.with_extension(format!("{}.part", crate::process::random_name()));
            let copied = copy_file(from, &beside).and_then(|()| fs::rename(&beside, to));
            if copied.is_err() {
                let _ = fs::remove_file(&beside);
            }
            copied.and_then(|()| fs::remove_file(from))
        }
        renamed => renamed,
    }
}

/// Copies a plain file with its permissions to a path that must not exist.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = fs::File::from(open(from.as_os_str().as_bytes())?);
    let mut target = fs::File::options().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(&mut source, &mut target)?;
    target.set_permissions(source.metadata()?.permissions())
}

/// Whether an error is about what is at the path: links in a circle, or a device that cannot be opened.
#[must_use]
pub fn is_about_the_path(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO | libc::ENODEV))
}

/// A path without links.
pub fn real(path: &[u8]) -> io::Result<std::path::PathBuf> {
    fs::canonicalize(as_path(path))
}

/// Opens a directory to list. It is checked after it was opened, so that it cannot be replaced in between.
fn open_directory(path: &Path, follow: bool) -> io::Result<OwnedFd> {
    let mut flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, !follow);
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    refuse_proc(&directory)?;
    Ok(directory)
}

/// Whether a path is a mount point, if Linux reports it.
fn is_mounted(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::empty());
    stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Sockets and devices without a driver cannot be opened.
fn no_file(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENXIO | libc::ENODEV) => {
            io::Error::new(io::ErrorKind::InvalidData, "not a regular file")
        }
        _ => error,
    }
}

/// Files of `/proc` are about the process that opens them, and not about the sandbox.
fn refuse_proc(file: impl AsFd) -> io::Result<()> {
    match rustix::fs::fstatfs(file)?.f_type {
        PROC_SUPER_MAGIC => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "files of /proc can only be read by code inside the sandbox",
        )),
        _ => Ok(()),
    }
}

fn seen(path: Vec<u8>, stat: &Stat) -> Seen {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Link,
        _ => FileKind::Other,
    };
    let identity = Identity::of(stat);
    let mode = stat.st_mode & 0o7777;
    Seen { path, kind, size: identity.size, mode, modified_ns: identity.modified_ns }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn directories_are_listed_within_bounds() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::write(root.join("a/b/deep"), "12345").unwrap();
        fs::write(root.join("top"), "").unwrap();
        symlink("/etc", root.join("link")).unwrap();
        let path = root.as_os_str().as_bytes();
        let names = |recursive, max, depth| {
            let wanted = Wanted { recursive, max, max_depth: depth, glob: None, hidden: true };
            let (found, more) = list(path, &wanted).unwrap();
            let names: Vec<String> =
                found.iter().map(|seen| String::from_utf8_lossy(&seen.path).into_owned()).collect();
            (names.join(" "), more)
        };
        assert_eq!(names(false, 10, 9), ("a link top".into(), 0));
        assert_eq!(names(true, 10, 9), ("a a/b a/b/c a/b/deep link top".into(), 0));
        assert_eq!(names(true, 10, 1), ("a a/b link top".into(), 0));
        assert_eq!(names(false, 2, 9), ("a link".into(), 1));
        assert_eq!(look(&[path, b"/link"].concat()).unwrap().kind, FileKind::Link);
        let all = Wanted { recursive: true, max: 1, max_depth: 1, glob: None, hidden: true };
        assert!(list(b"/nowhere/at/all", &all).is_err());
    }

    #[test]
    fn only_plain_files_are_opened_and_not_those_about_ourselves() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).into_os_string().into_vec();
        fs::write(directory.path().join("file"), "x").unwrap();
        symlink("file", directory.path().join("link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            directory.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(open(&path("file")).is_ok() && open(&path("link")).is_ok());
        let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("s")).unwrap();
        for bad in [path("pipe"), path("."), path("none"), path("s"), b"/proc/self/mem".to_vec()] {
            assert!(open(&bad).is_err(), "{}", String::from_utf8_lossy(&bad));
        }
        let wanted = Wanted { recursive: false, max: 9, max_depth: 1, glob: None, hidden: true };
        symlink("/proc/self/map_files", directory.path().join("maps")).unwrap();
        for about_us in [&b"/proc/self/map_files"[..], b"/proc", &path("maps")] {
            assert!(list(about_us, &wanted).is_err(), "{}", String::from_utf8_lossy(about_us));
        }
        assert!(look(b"/proc/self/fd/0").is_err() && look(&path("maps")).is_ok());
        assert!(rename(b"/proc/self/maps", &path("moved")).is_err());
        assert!(!directory.path().join("moved").exists());
        assert!(is_mounted(Path::new("/")) && is_mounted(Path::new("/proc")));
        assert!(!is_mounted(directory.path()));
    }

    #[test]
    fn what_is_removed_is_what_was_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).into_os_string().into_vec();
        make_directory(&path("a/b")).unwrap();
        make_directory(&path("a/b")).unwrap();
        fs::write(directory.path().join("a/b/file"), "x").unwrap();
        symlink("a", directory.path().join("link")).unwrap();
        assert!(remove(&path("a"), false).is_err(), "it is not empty");
        remove(&path("link"), true).unwrap();
        assert!(directory.path().join("a/b/file").exists());
        rename(&path("a/b/file"), &path("moved")).unwrap();
        remove(&path("a"), true).unwrap();
        remove(&path("moved"), false).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
