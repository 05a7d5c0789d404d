//! Reading a directory tree that hostile code wrote and may still be changing.
//!
//! Runs inside the sandbox. Every step opens relative to a descriptor and follows no link, so the
//! walk cannot be led elsewhere by swapping names under it; anything that is not a plain file or a
//! directory is never opened at all. Depth and number are bounded, and the walk keeps its own list
//! instead of recursing.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, DirEntry, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};

/// Names that [`list`] passes over but mentions; more are only counted.
const MAX_NAMED_SKIPS: usize = 100;

/// Bytes of all paths in one listing, so that it fits into one message.
const MAX_PATH_BYTES: usize = 8 * 1024 * 1024;

#[derive(Debug, Default)]
pub struct Listing {
    /// Path relative to the root, and size.
    pub files: Vec<(Vec<u8>, u64)>,
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
    let root = match rustix::fs::openat(CWD, root, directory_flags(), Mode::empty()) {
        Ok(root) => root,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
            return Ok(listing);
        }
        Err(errno) => return Err(errno.into()),
    };
    // Directories still to be read, by path from the root: holding paths instead of descriptors
    // keeps a wide tree from eating all of them, and openat2 keeps the paths below the root.
    let mut waiting: Vec<(Vec<u8>, u32)> = vec![(Vec::new(), 0)];
    let mut path_bytes = 0;
    while let Some((directory, depth)) = waiting.pop() {
        let opened = if directory.is_empty() {
            rustix::io::fcntl_dupfd_cloexec(&root, 0)
        } else {
            open_beneath(&root, &directory, directory_flags())
        };
        let mut entries = match opened.and_then(Dir::read_from) {
            Ok(entries) => entries,
            Err(errno) => {
                listing.skip(directory, format!("cannot be opened: {errno}"));
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
            let stat = match stat {
                Ok(stat) => stat,
                Err(errno) => {
                    listing.skip(path, format!("cannot be examined: {errno}"));
                    continue;
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
                    listing.files.push((path, u64::try_from(stat.st_size).unwrap_or(0)));
                }
                FileType::Directory if depth >= max_depth => {
                    listing.skip(path, format!("deeper than {max_depth} directories"));
                }
                FileType::Directory => waiting.push((path, depth + 1)),
                FileType::Symlink => listing.skip(path, "a symbolic link"),
                FileType::Fifo => listing.skip(path, "a named pipe"),
                FileType::Socket => listing.skip(path, "a socket"),
                _ => listing.skip(path, "a device"),
            }
        }
    }
    listing.files.sort();
    Ok(listing)
}

/// Opens a plain file below `root` for reading; never blocks, follows no link.
pub fn open_file(root: &str, path: &[u8]) -> io::Result<OwnedFd> {
    let root = rustix::fs::openat(CWD, root, directory_flags(), Mode::empty())?;
    // Without O_NONBLOCK, opening a pipe that took the file's place would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open_beneath(&root, path, flags)?;
    crate::channel::check_plain_file(&file)?;
    Ok(file)
}

/// Gives everything below `root`, and the directory itself, to this user and group. Follows no
/// links, so that names somebody chose lead nowhere else.
pub fn give_to(root: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    let root = rustix::fs::openat(CWD, root, directory_flags(), Mode::empty())?;
    let mut waiting: Vec<Vec<u8>> = vec![b".".to_vec()];
    while let Some(directory) = waiting.pop() {
        let opened = open_beneath(&root, &directory, directory_flags())?;
        rustix::fs::fchown(&opened, uid, gid)?;
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name();
            match name.to_bytes() {
                b"." | b".." => {}
                bytes if is_directory(&opened, &entry)? => {
                    waiting.push([&directory[..], b"/", bytes].concat());
                }
                _ => rustix::fs::chownat(&opened, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?,
            }
        }
    }
    Ok(())
}

fn is_directory(parent: &OwnedFd, entry: &DirEntry) -> io::Result<bool> {
    Ok(match entry.file_type() {
        // Not every file system tells.
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

fn open_beneath(root: &OwnedFd, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

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
        assert_eq!(listing.files, [(b"a/b/deep".to_vec(), 0), (b"top".to_vec(), 5)]);
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
    fn a_path_never_leads_out_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(dir.path().join("secret"), "x").unwrap();
        fs::write(root.join("plain"), "x").unwrap();
        symlink("../secret", root.join("link")).unwrap();
        symlink("..", root.join("up")).unwrap();
        let root = root.to_str().unwrap();
        for hostile in [&b"link"[..], b"../secret", b"up/secret", b"/etc/passwd", b"", b"plain/x"] {
            assert!(open_file(root, hostile).is_err(), "{}", String::from_utf8_lossy(hostile));
        }
        assert!(open_file(root, b"plain").is_ok());
    }

    #[test]
    fn a_missing_root_is_an_empty_one() {
        assert!(list("/nowhere/at/all", 1, 1).unwrap().files.is_empty());
    }
}
