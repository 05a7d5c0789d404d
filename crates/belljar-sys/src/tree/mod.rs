//! Reads and writes directory trees that hostile code wrote and may be changing.
//!
//! Runs inside the sandbox. Every step opens relative to a descriptor and follows no link, so a name that is replaced
//! meanwhile cannot lead elsewhere. Only plain files and directories are opened. Depth and number are bounded, and a
//! walk keeps a list instead of recursing.

mod clear;
mod create;
mod fingerprint;
mod measure;
mod open;
mod populate;
mod remove;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, DirEntry, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid,
};
use rustix::io::Errno;

pub use crate::identity::{Identity, set_modified};
pub use clear::clear;
pub use fingerprint::{fingerprint, fingerprint_of_all};
pub use measure::{Measured, measure};
pub use open::{is_being_written, is_open_elsewhere};
pub use populate::{Met, MetKind};

/// Skipped names that [`list`] reports; more are only counted.
const MAX_NAMED_SKIPS: usize = 100;

/// Entries that [`list`] examines, including directories: code may add them as fast as we read.
const MAX_EXAMINED: usize = 200_000;

/// Bytes of all paths in one listing, so that it fits into one message.
const MAX_PATH_BYTES: usize = 8 * 1024 * 1024;

/// A directory below which paths are looked up. No path can lead out of it.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// Opens a directory. Links on the way to it are followed; it must not be a link itself.
    pub fn open(path: &str) -> io::Result<Root> {
        Ok(Root(open_no_link(CWD, path, directory_flags())?))
    }

    /// Like `open`, but `None` for what does not exist or is no directory.
    fn open_if_any(path: &str) -> io::Result<Option<Root>> {
        match open_no_link(CWD, path, directory_flags()) {
            Ok(root) => Ok(Some(Root(root))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[derive(Debug, Default)]
pub struct Listing {
    /// Paths are relative to the root.
    pub files: Vec<(Vec<u8>, Identity)>,
    /// Path and reason.
    pub skipped: Vec<(Vec<u8>, String)>,
    pub skipped_more: u64,
}

impl Listing {
    fn skip(&mut self, path: Vec<u8>, reason: impl Into<String>) {
        if self.skipped.len() < MAX_NAMED_SKIPS {
            self.skipped.push((path, reason.into()));
        } else {
            self.skipped_more += 1;
        }
    }
}

/// Plain files below `root`. A root that does not exist, or is no directory, has none.
pub fn list(root: &str, max_files: u64, max_depth: u32) -> io::Result<Listing> {
    let mut listing = Listing::default();
    let Some(root) = Root::open_if_any(root)? else {
        return Ok(listing);
    };
    let (mut examined, mut path_bytes) = (0, 0);
    let walked = walk(&root, max_depth, |path, found| {
        examined += 1;
        if examined > MAX_EXAMINED {
            return ControlFlow::Break(());
        }
        let stat = match found {
            Found::Entry(stat) => stat,
            Found::TooDeep => {
                listing.skip(path, format!("deeper than {max_depth} directories"));
                return ControlFlow::Continue(());
            }
            Found::Unreadable(error) => {
                listing.skip(path, format!("cannot be opened: {error}"));
                return ControlFlow::Continue(());
            }
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile
                if listing.files.len() as u64 >= max_files || path_bytes > MAX_PATH_BYTES =>
            {
                listing.skip(path, format!("more than {max_files} files, or long names"));
            }
            FileType::RegularFile => {
                path_bytes += path.len();
                listing.files.push((path, Identity::of(&stat)));
            }
            FileType::Directory => {}
            FileType::Symlink => listing.skip(path, "a symbolic link"),
            FileType::Fifo => listing.skip(path, "a named pipe"),
            FileType::Socket => listing.skip(path, "a socket"),
            _ => listing.skip(path, "a device"),
        }
        ControlFlow::Continue(())
    });
    if walked.is_break() {
        listing.skip(b"...".to_vec(), format!("more than {MAX_EXAMINED} entries"));
    }
    listing.files.sort();
    Ok(listing)
}

/// What a walk finds.
enum Found {
    /// Also a directory, before its entries.
    Entry(Stat),
    /// A directory beyond the depth.
    TooDeep,
    /// It could not be examined or opened.
    Unreadable(io::Error),
}

/// Calls `visit` for everything below `root`, until it breaks.
fn walk(
    root: &Root,
    max_depth: u32,
    mut visit: impl FnMut(Vec<u8>, Found) -> ControlFlow<()>,
) -> ControlFlow<()> {
    // Directories still to be read, by path from the root. Paths, because a wide tree would use up all descriptors.
    // openat2 keeps the paths below the root.
    let mut waiting: Vec<(Vec<u8>, u32)> = vec![(Vec::new(), 0)];
    while let Some((directory, depth)) = waiting.pop() {
        let opened = if directory.is_empty() {
            // Not a duplicate, which would continue at the position of the last walk.
            open_beneath(&root.0, b".", directory_flags())
        } else {
            open_beneath(&root.0, &directory, directory_flags())
        };
        let mut entries = match opened.and_then(|opened| Ok(Dir::new(opened)?)) {
            Ok(entries) => entries,
            Err(error) => {
                visit(directory, Found::Unreadable(error))?;
                continue;
            }
        };
        while let Some(entry) = entries.next() {
            let Ok(entry) = entry else { break };
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let mut path = directory.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            let stat = entries.fd().and_then(|fd| {
                rustix::fs::statat(fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            });
            let found = match stat {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
                    Found::Entry(stat)
                }
                Ok(_) if depth >= max_depth => Found::TooDeep,
                Ok(stat) => {
                    waiting.push((path.clone(), depth + 1));
                    Found::Entry(stat)
                }
                Err(errno) => Found::Unreadable(errno.into()),
            };
            visit(path, found)?;
        }
    }
    ControlFlow::Continue(())
}

/// Changes the owner of `root` and everything below it. Follows no links, so that no name leads elsewhere, and has one
/// directory open at a time, so that a tree may be deeper than the longest path.
pub fn give_to(root: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    // The directory and its entries; its subdirectories come later.
    let give = |directory: &OwnedFd| -> io::Result<Level> {
        rustix::fs::fchown(directory, uid, gid)?;
        let mut waiting = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            match name.to_bytes() {
                b"." | b".." => {}
                bytes if is_directory(directory, &entry)? => waiting.push(bytes.to_vec()),
                _ => rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?,
            }
        }
        let stat = rustix::fs::fstat(directory)?;
        Ok(Level { place: (stat.st_dev, stat.st_ino), waiting })
    };
    let mut at = rustix::fs::openat(CWD, root, directory_flags(), Mode::empty())?;
    let mut levels = vec![give(&at)?];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.waiting.pop() {
            at = rustix::fs::openat(&at, &name[..], directory_flags(), Mode::empty())?;
            levels.push(give(&at)?);
            continue;
        }
        levels.pop();
        let Some(above) = levels.last() else { break };
        at = rustix::fs::openat(&at, "..", directory_flags(), Mode::empty())?;
        let stat = rustix::fs::fstat(&at)?;
        if above.place != (stat.st_dev, stat.st_ino) {
            return Err(io::Error::other("directories were moved meanwhile"));
        }
    }
    Ok(())
}

/// A directory that [`give_to`] has entered.
struct Level {
    /// Device and inode, to recognise it.
    place: (u64, u64),
    /// Names of its directories that were not entered yet.
    waiting: Vec<Vec<u8>>,
}

fn is_directory(parent: &OwnedFd, entry: &DirEntry) -> io::Result<bool> {
    Ok(match entry.file_type() {
        // Not every file system reports it.
        FileType::Unknown => {
            let stat = rustix::fs::statat(parent, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        }
        kind => kind == FileType::Directory,
    })
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn open_beneath(root: &OwnedFd, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS) => open_step_by_step(root, path, flags),
        opened => opened,
    };
    let elsewhere = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    opened.map_err(|errno| match errno {
        Errno::LOOP => elsewhere("it is a link or behind one"),
        Errno::XDEV => elsewhere("it leads out of the directory"),
        errno => errno.into(),
    })
}

/// For kernels without `openat2` (gVisor): opens one name after the other, none of which may be a link.
fn open_step_by_step(root: &OwnedFd, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let on_the_way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = None;
    let mut names = path.split(|byte| *byte == b'/').peekable();
    if path.starts_with(b"/") {
        return Err(Errno::XDEV);
    }
    while let Some(name) = names.next() {
        if name == b".." {
            return Err(Errno::XDEV);
        }
        let how = if names.peek().is_some() { on_the_way } else { flags };
        let parent = directory.as_ref().unwrap_or(root);
        directory = Some(open_no_link(parent, name, how)?);
    }
    directory.ok_or(Errno::NOENT)
}

/// Opens what is not a link. gVisor follows links that are opened as directories, so this is checked.
fn open_no_link(
    parent: impl AsFd,
    name: impl rustix::path::Arg + Copy,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let opened = rustix::fs::openat(&parent, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Err(Errno::LOOP),
        _ => Ok(opened),
    }
}

/// A random number: a fingerprint that equals no earlier one, or a part of a name.
fn random_number() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn only_plain_files_within_bounds_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::write(root.join("top"), "12345").unwrap();
        fs::write(root.join("a/b/deep"), "").unwrap();
        fs::write(root.join("a/b/c/deeper"), "").unwrap();
        symlink("/etc/passwd", root.join("link")).unwrap();
        symlink("/etc", root.join("linked-dir")).unwrap();
        let listing = list(root.to_str().unwrap(), 10, 2).unwrap();
        let files: Vec<_> = listing.files.iter().map(|(path, of)| (&path[..], of.size)).collect();
        assert_eq!(files, [(&b"a/b/deep"[..], 0), (b"top", 5)]);
        let mut skipped: Vec<_> = listing
            .skipped
            .iter()
            .map(|(path, why)| format!("{}: {why}", String::from_utf8_lossy(path)))
            .collect();
        skipped.sort();
        assert_eq!(
            skipped,
            [
                "a/b/c: deeper than 2 directories",
                "link: a symbolic link",
                "linked-dir: a symbolic link"
            ]
        );
    }

    #[test]
    fn names_are_followed_one_by_one_where_they_cannot_be_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(dir.path().join("secret"), "x").unwrap();
        fs::write(root.join("a/b/plain"), "12345").unwrap();
        symlink("../secret", root.join("link")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("b", root.join("a/inside")).unwrap();
        let root = Root::open(root.to_str().unwrap()).unwrap();
        let open = |path: &[u8]| open_step_by_step(&root.0, path, OFlags::RDONLY | OFlags::CLOEXEC);
        for hostile in
            ["", "/", "/etc/passwd", "..", "a/../../secret", "link", "up/secret", "a/inside/plain"]
        {
            assert!(open(hostile.as_bytes()).is_err(), "{hostile}");
        }
        assert_eq!(open(b"a/missing").unwrap_err(), Errno::NOENT);
        assert_eq!(open(b"a/b/plain/x").unwrap_err(), Errno::NOTDIR);
        assert_eq!(Identity::of_file(open(b"a/b/plain").unwrap()).unwrap().size, 5);
        assert!(open(b"a/b").is_ok());
    }

    #[test]
    fn a_tree_is_given_away_however_deep_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "").unwrap();
        fs::create_dir(root.join("c")).unwrap();
        symlink(dir.path(), root.join("c/link")).unwrap();
        // Deeper than the longest possible path.
        let open = |parent: &OwnedFd, name: &str| {
            rustix::fs::openat(parent, name, directory_flags(), Mode::empty()).unwrap()
        };
        let mut at = rustix::fs::openat(CWD, &root, directory_flags(), Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "deep", Mode::RWXU).unwrap();
            at = open(&at, "deep");
        }
        // Without root, only the own id is possible.
        let (is_root, own) = (rustix::process::geteuid().is_root(), rustix::process::getuid());
        let (uid, gid) = if is_root { (4711, 4712) } else { (own.as_raw(), own.as_raw()) };
        if !is_root && rustix::process::getgid().as_raw() != gid {
            return;
        }
        give_to(&root, uid, gid).unwrap();
        let owner = |path: &str| {
            let of = fs::symlink_metadata(root.join(path)).unwrap();
            (of.uid(), of.gid())
        };
        for path in ["", "a", "a/b", "a/b/file", "c", "c/link", "deep/deep/deep"] {
            assert_eq!(owner(path), (uid, gid), "{path}");
        }
        let deepest = rustix::fs::fstat(&at).unwrap();
        assert_eq!((deepest.st_uid, deepest.st_gid), (uid, gid));
        assert_ne!(fs::metadata(dir.path()).unwrap().uid(), 4711, "links lead nowhere else");
        clear(&root).unwrap();
    }

    #[test]
    fn a_missing_root_is_an_empty_one() {
        assert!(list("/nowhere/at/all", 1, 1).unwrap().files.is_empty());
    }
}
