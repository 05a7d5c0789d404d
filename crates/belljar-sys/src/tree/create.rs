//! Writes files below a root: under a temporary name first, which is renamed when the file is complete.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Identity, Root, directory_flags, open_beneath, random_number};

/// Limits of Linux, without the zero at the end.
const MAX_PATH: usize = 4095;
const MAX_NAME: usize = 255;

/// What to do about directories that do not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    IsMade,
    IsAnError,
}

impl Root {
    /// Begins a file for `path`, with these permissions, and makes its directories. Returns the file, open for writing only, and
    /// its temporary name in the same directory.
    pub fn create_file(&self, path: &[u8], mode: u32) -> io::Result<(OwnedFd, String)> {
        let (directory, name) = self.parent(path, Missing::IsMade)?;
        // Fails early. The rename fails too, so nothing relies on this check.
        if let Ok(stat) = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        {
            return Err(Errno::ISDIR.into());
        }
        // Not derived from the name, which may have the maximum length.
        let temporary = format!(".{:016x}.part", random_number());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(mode);
        let file = rustix::fs::openat(&directory, &temporary, flags | OFlags::CLOEXEC, mode)?;
        // The umask may have removed bits.
        rustix::fs::fchmod(&file, mode)?;
        Ok((file, temporary))
    }

    /// Renames a file that was begun to its final name, also over another file, but never over a directory. Returns its
    /// identity.
    pub fn commit_file(&self, path: &[u8], temporary: &str) -> io::Result<Identity> {
        let (directory, name) = self.parent(path, Missing::IsAnError)?;
        let temporary = plain_name(temporary.as_bytes())?;
        let stat = rustix::fs::statat(&directory, temporary, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the temporary file was replaced",
            ));
        }
        rustix::fs::renameat(&directory, temporary, &directory, name)?;
        let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Identity::of(&stat))
    }

    /// Removes a file that was begun.
    pub fn discard_file(&self, path: &[u8], temporary: &str) -> io::Result<()> {
        let (directory, _) = self.parent(path, Missing::IsAnError)?;
        Ok(rustix::fs::unlinkat(&directory, plain_name(temporary.as_bytes())?, AtFlags::empty())?)
    }

    /// The directory of `path`, and the name in it. The path consists of plain names.
    pub(super) fn parent<'a>(
        &self,
        path: &'a [u8],
        missing: Missing,
    ) -> io::Result<(OwnedFd, &'a [u8])> {
        if path.len() > MAX_PATH {
            return invalid("a path is longer than the system allows");
        }
        let mut names: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
        names.iter().try_for_each(|name| plain_name(name).map(|_| ()))?;
        let name = names.pop().unwrap_or_default();
        let mut directory = self.0.try_clone()?;
        for parent in names {
            directory = match open_beneath(&directory, parent, directory_flags()) {
                Err(error)
                    if missing == Missing::IsMade && error.kind() == io::ErrorKind::NotFound =>
                {
                    match rustix::fs::mkdirat(&directory, parent, Mode::from_raw_mode(0o755)) {
                        // Another process made it.
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                    open_beneath(&directory, parent, directory_flags())?
                }
                opened => opened?,
            };
        }
        Ok((directory, name))
    }
}

/// Checks a name of a directory entry.
fn plain_name(name: &[u8]) -> io::Result<&[u8]> {
    match name {
        b"" => invalid("a path must not be empty, begin or end with a slash, or have two in a row"),
        b"." | b".." => invalid("a path must not contain `.` or `..`"),
        name if name.iter().any(|&byte| byte == 0 || byte == b'/') => {
            invalid("a name must contain no zero byte and no slash")
        }
        name if name.len() > MAX_NAME => invalid("a name is longer than the system allows"),
        name => Ok(name),
    }
}

fn invalid<T>(why: &'static str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::{ErrorKind, Write};
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn kind<T: std::fmt::Debug>(outcome: io::Result<T>) -> ErrorKind {
        outcome.unwrap_err().kind()
    }

    #[test]
    fn a_file_appears_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path().to_str().unwrap()).unwrap();
        let long = format!("a/b/{}", "\u{e4}".repeat(MAX_NAME / 2));
        for text in ["first", "second, over it"] {
            let (file, temporary) = root.create_file(long.as_bytes(), 0o644).unwrap();
            File::from(file).write_all(text.as_bytes()).unwrap();
            assert_ne!(fs::read_to_string(dir.path().join(&long)).ok().as_deref(), Some(text));
            let identity = root.commit_file(long.as_bytes(), &temporary).unwrap();
            let there = fs::metadata(dir.path().join(&long)).unwrap();
            assert_eq!((identity.inode, identity.size), (there.ino(), text.len() as u64));
            assert_eq!(fs::read_to_string(dir.path().join(&long)).unwrap(), text);
            assert_eq!(kind(root.commit_file(long.as_bytes(), &temporary)), ErrorKind::NotFound);
        }
        let (_, temporary) = root.create_file(b"a/other", 0o644).unwrap();
        root.discard_file(b"a/other", &temporary).unwrap();
        assert_eq!(kind(root.discard_file(b"a/other", &temporary)), ErrorKind::NotFound);
        let names: Vec<_> = fs::read_dir(dir.path().join("a")).unwrap().collect();
        assert_eq!(names.len(), 1, "only `b` is left: {names:?}");
    }

    #[test]
    fn names_and_places_that_will_not_do_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join("root").join(name);
        fs::create_dir_all(at("directory")).unwrap();
        fs::write(at("file"), "").unwrap();
        symlink("..", at("up")).unwrap();
        let root = Root::open(at("").to_str().unwrap()).unwrap();
        let long = "x".repeat(MAX_NAME + 1);
        let deep = "x/".repeat(MAX_PATH);
        for bad in ["", "/", "/x", "x/", "a//b", ".", "..", "../x", "a/./b", "a\0", &long, &deep] {
            assert_eq!(
                kind(root.create_file(bad.as_bytes(), 0o644)),
                ErrorKind::InvalidInput,
                "{bad}"
            );
        }
        assert_eq!(kind(root.create_file(b"directory", 0o644)), ErrorKind::IsADirectory);
        assert_eq!(kind(root.create_file(b"file/x", 0o644)), ErrorKind::NotADirectory);
        assert_eq!(kind(root.create_file(b"up/x", 0o644)), ErrorKind::NotADirectory, "a link");
        assert_eq!(kind(root.create_file(b"up/x/y", 0o644)), ErrorKind::NotADirectory);

        let (_, temporary) = root.create_file(b"new", 0o644).unwrap();
        for bad in ["../file", "", "..", "directory/x"] {
            assert_eq!(kind(root.commit_file(b"new", bad)), ErrorKind::InvalidInput, "{bad}");
        }
        assert_eq!(kind(root.commit_file(b"new", "directory")), ErrorKind::InvalidData);
        fs::create_dir(at("new")).unwrap();
        assert_eq!(kind(root.commit_file(b"new", &temporary)), ErrorKind::IsADirectory);
        fs::remove_dir(at("new")).unwrap();
        symlink("file", at("new")).unwrap();
        root.commit_file(b"new", &temporary).unwrap();
        assert!(!at("new").is_symlink(), "the link was replaced, not followed");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was made outside");
    }

    /// A thread replaces a directory on the way by a link that leads out.
    #[test]
    fn a_directory_that_is_swapped_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("root/way")).unwrap();
        fs::create_dir(path("outside")).unwrap();
        symlink("../outside", path("root/link")).unwrap();
        let root = Root::open(path("root").to_str().unwrap()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let cwd = rustix::fs::CWD;
                while !stop.load(Ordering::Relaxed) {
                    let (one, other) = (path("root/way"), path("root/link"));
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(cwd, &one, cwd, &other, flags).unwrap();
                }
            });
            for _ in 0..500 {
                if let Ok((_, temporary)) = root.create_file(b"way/sub/file", 0o644) {
                    let _ = root.commit_file(b"way/sub/file", &temporary);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(path("outside")).unwrap().count(), 0);
    }
}
