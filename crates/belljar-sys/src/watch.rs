//! Watches directories for changes (inotify).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// Bytes read at once; one event with the longest name takes 272.
const BUFFER: usize = 16 * 1024;

/// Watches directories. The descriptor is readable when there are changes.
#[derive(Debug)]
pub struct Watcher(OwnedFd);

/// The number that Linux gave to a watched directory.
pub type WatchId = i32;

/// A change of a name in a directory, or of the directory itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub watched: WatchId,
    pub kind: ChangeKind,
    pub is_directory: bool,
    /// Empty if it is about the directory itself.
    pub name: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Created,
    /// A writer has closed it, or its permissions changed.
    Modified,
    Removed,
    /// The directory is not watched any more.
    Unwatched,
    /// There were more changes than Linux queues.
    Lost,
}

impl Watcher {
    pub fn new() -> io::Result<Watcher> {
        Ok(Watcher(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?))
    }

    /// Registers the watcher with the async runtime.
    pub fn watched(self) -> io::Result<AsyncFd<Watcher>> {
        // SAFETY: the runtime needs `as_raw_fd` to name the same open descriptor for as long as it
        // is registered; a watcher owns its descriptor, and nothing takes it out.
        Ok(unsafe { AsyncFd::register(self) }?)
    }

    /// Watches a directory, and returns the number that its changes carry. Links are not followed.
    pub fn watch(&self, path: &[u8]) -> io::Result<WatchId> {
        let flags = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW;
        inotify::add_watch(&self.0, path, flags).map_err(|errno| match errno {
            Errno::NOSPC => io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "this machine watches as many directories as it may",
            ),
            errno => errno.into(),
        })
    }

    /// The changes since the last read.
    pub fn read(&self) -> io::Result<Vec<Change>> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut changes = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let flags = event.events();
                    let name = event.file_name().map(|name| name.to_bytes().to_vec());
                    let kind = kind_of(flags);
                    changes.extend(kind.map(|kind| Change {
                        watched: event.wd(),
                        kind,
                        is_directory: flags.contains(ReadFlags::ISDIR),
                        name: name.unwrap_or_default(),
                    }));
                }
                Err(Errno::AGAIN) => return Ok(changes),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if changes.len() >= BUFFER / 16 {
                return Ok(changes);
            }
        }
    }
}

fn kind_of(flags: ReadFlags) -> Option<ChangeKind> {
    let any = |wanted: ReadFlags| flags.intersects(wanted);
    if any(ReadFlags::QUEUE_OVERFLOW) {
        return Some(ChangeKind::Lost);
    }
    if any(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT)
    {
        return Some(ChangeKind::Unwatched);
    }
    if any(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        return Some(ChangeKind::Created);
    }
    if any(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        return Some(ChangeKind::Removed);
    }
    any(ReadFlags::CLOSE_WRITE | ReadFlags::ATTRIB).then_some(ChangeKind::Modified)
}

impl AsRawFd for Watcher {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn changes_are_told_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let watcher = Watcher::new().unwrap();
        let watched = watcher.watch(dir.path().as_os_str().as_bytes()).unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        fs::rename(dir.path().join("file"), dir.path().join("moved")).unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let reported: Vec<_> = watcher
            .read()
            .unwrap()
            .into_iter()
            .map(|change| {
                assert_eq!(change.watched, watched);
                (change.kind, String::from_utf8(change.name).unwrap(), change.is_directory)
            })
            .collect();
        use ChangeKind::{Created, Modified, Removed};
        let expected = [
            (Created, "file", false),
            (Modified, "file", false),
            (Removed, "file", false),
            (Created, "moved", false),
            (Created, "sub", true),
        ];
        assert_eq!(reported, expected.map(|(kind, name, is)| (kind, name.to_owned(), is)));
        drop(dir);
        assert!(watcher.read().unwrap().iter().any(|change| change.kind == ChangeKind::Unwatched));
        assert!(watcher.watch(b"/etc/passwd").is_err());
    }
}
