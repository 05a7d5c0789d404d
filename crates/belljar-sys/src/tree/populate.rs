//! Reads and writes whole trees, for archives and copies. No step follows a link, so nothing is read or written outside of
//! the root.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::create::Missing;
use super::{Found, Root, open_beneath, walk};

/// The type of `/proc` in statfs. Its files are about the process that reads them.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// An entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Met {
    /// Below the root.
    pub path: Vec<u8>,
    pub kind: MetKind,
    /// Permissions.
    pub mode: u32,
    /// In seconds.
    pub modified: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetKind {
    Directory,
    File {
        size: u64,
    },
    Link,
    /// A pipe, a socket, a device.
    Other,
}

impl Root {
    /// Opens the directory at a path. Links are followed, as by a program.
    pub fn open_followed(path: &[u8]) -> io::Result<Root> {
        let path = [path, b"/."].concat();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path[..], flags, Mode::empty())?;
        refuse_proc(&root)?;
        Ok(Root(root))
    }

    /// Calls `visit` for everything below, directories before their content, until an error. Other file systems, and files that
    /// are removed meanwhile, are left out.
    pub fn walk_all(
        &self,
        max_depth: u32,
        mut visit: impl FnMut(Met) -> io::Result<()>,
    ) -> io::Result<()> {
        let device = rustix::fs::fstat(&self.0)?.st_dev;
        let mut failed = None;
        let walked = walk(self, max_depth, |path, found| {
            let outcome = match found {
                Found::Entry(stat) if stat.st_dev != device => Ok(()),
                Found::Entry(stat) => {
                    let kind = match FileType::from_raw_mode(stat.st_mode) {
                        FileType::Directory => MetKind::Directory,
                        FileType::RegularFile => {
                            MetKind::File { size: u64::try_from(stat.st_size).unwrap_or(0) }
                        }
                        FileType::Symlink => MetKind::Link,
                        _ => MetKind::Other,
                    };
                    let (mode, modified) = (stat.st_mode & 0o777, stat.st_mtime);
                    visit(Met { path, kind, mode, modified })
                }
                Found::TooDeep => Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("`{}` is too deep", String::from_utf8_lossy(&path)),
                )),
                Found::Unreadable(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Found::Unreadable(error) => Err(error),
            };
            match outcome {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        match (walked, failed) {
            (ControlFlow::Break(()), Some(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// A plain file, for reading.
    pub fn read_file(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let file = self.open_file(path)?;
        refuse_proc(&file)?;
        Ok(file)
    }

    /// Where a link leads.
    pub fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let (directory, name) = self.parent(path, Missing::IsAnError)?;
        Ok(rustix::fs::readlinkat(&directory, name, Vec::new())?.into_bytes())
    }

    /// Creates a directory and its parents. An existing one is not changed.
    pub fn make_directory(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let (directory, name) = self.parent(path, Missing::IsMade)?;
        match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(mode | 0o700)) {
            // It must be a directory, and not a link to one.
            Err(Errno::EXIST) => open_beneath(&directory, name, super::directory_flags()).map(drop),
            made => Ok(made?),
        }
    }

    /// Creates a file. Replaces what has its name, except a directory.
    pub fn replace_file(&self, path: &[u8], mode: u32) -> io::Result<OwnedFd> {
        let (directory, name) = self.cleared(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(mode & 0o777);
        let file = rustix::fs::openat(&directory, name, flags | OFlags::CLOEXEC, mode)?;
        // The umask may have removed bits.
        rustix::fs::fchmod(&file, mode)?;
        Ok(file)
    }

    /// Creates a link. Replaces what has its name, except a directory.
    pub fn replace_link(&self, path: &[u8], target: &[u8]) -> io::Result<()> {
        let (directory, name) = self.cleared(path)?;
        Ok(rustix::fs::symlinkat(target, &directory, name)?)
    }

    /// Creates a hard link to a file below the root.
    pub fn replace_hard_link(&self, path: &[u8], existing: &[u8]) -> io::Result<()> {
        let (from, known) = self.parent(existing, Missing::IsAnError)?;
        let (directory, name) = self.cleared(path)?;
        Ok(rustix::fs::linkat(&from, known, &directory, name, AtFlags::empty())?)
    }

    /// Renames an entry of this directory. Replaces a file with the new name.
    pub fn rename(&self, name: &[u8], to: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, name, &self.0, to)?)
    }

    fn cleared<'a>(&self, path: &'a [u8]) -> io::Result<(OwnedFd, &'a [u8])> {
        let (directory, name) = self.parent(path, Missing::IsMade)?;
        match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok((directory, name)),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl From<OwnedFd> for Root {
    /// An open directory.
    fn from(directory: OwnedFd) -> Root {
        Root(directory)
    }
}

impl From<Root> for OwnedFd {
    fn from(root: Root) -> OwnedFd {
        root.0
    }
}

fn refuse_proc(file: impl AsFd) -> io::Result<()> {
    match rustix::fs::fstatfs(file)?.f_type {
        PROC_SUPER_MAGIC => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "files of /proc can only be read by code inside the sandbox",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_is_written_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("root/sub")).unwrap();
        fs::create_dir(at("outside")).unwrap();
        symlink("../outside", at("root/way")).unwrap();
        symlink("../outside/file", at("root/file")).unwrap();
        let root = Root::open_followed(at("root").as_os_str().as_bytes()).unwrap();
        for path in [&b"way/x"[..], b"way/a/b", b"../x", b"/x", b"sub/../../x"] {
            assert!(root.replace_file(path, 0o644).is_err());
            assert!(root.make_directory(path, 0o755).is_err());
            assert!(root.replace_link(path, b"target").is_err());
        }
        assert!(root.make_directory(b"way", 0o755).is_err(), "it is a link, and no directory");
        assert!(root.replace_hard_link(b"copy", b"way/x").is_err());
        root.replace_file(b"file", 0o4755).unwrap();
        let there = fs::symlink_metadata(at("root/file")).unwrap();
        assert!(there.is_file(), "the link was replaced");
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&there) & 0o7777, 0o755);
        assert_eq!(fs::read_dir(at("outside")).unwrap().count(), 0);
        assert!(root.replace_file(b"sub", 0o644).is_err(), "a directory stays");
        assert!(Root::open_followed(b"/proc/self").is_err());
    }

    #[test]
    fn a_tree_is_told_whole() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/file"), "12345").unwrap();
        symlink("b/file", dir.path().join("a/link")).unwrap();
        let root = Root::open_followed(dir.path().as_os_str().as_bytes()).unwrap();
        let mut met = Vec::new();
        root.walk_all(9, |found| {
            met.push((String::from_utf8(found.path).unwrap(), found.kind));
            Ok(())
        })
        .unwrap();
        met.sort_by(|one, other| one.0.cmp(&other.0));
        let expected = [
            ("a".to_owned(), MetKind::Directory),
            ("a/b".to_owned(), MetKind::Directory),
            ("a/b/file".to_owned(), MetKind::File { size: 5 }),
            ("a/link".to_owned(), MetKind::Link),
        ];
        assert_eq!(met, expected);
        assert_eq!(root.read_link(b"a/link").unwrap(), b"b/file");
        assert!(root.walk_all(0, |_| Ok(())).is_err(), "too deep");
    }
}
