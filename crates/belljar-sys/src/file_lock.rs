//! Locks on files (`flock`). Linux releases a lock when its file is closed, no matter how the process ends.

use std::fs::{File, TryLockError};
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A locked file. Dropping it releases the lock; the file stays.
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub struct FileLock(File);

impl FileLock {
    /// Locks the file at `path`, which is created, for its owner only, if it does not exist. `None` if another
    /// holder has the lock.
    pub fn try_open(path: &Path) -> io::Result<Option<FileLock>> {
        FileLock::try_exclusive(open(path)?)
    }

    /// Like [`FileLock::try_open`], but waits for another holder; `on_wait` is called before that.
    pub fn open(path: &Path, on_wait: impl FnOnce()) -> io::Result<FileLock> {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                on_wait();
                file.lock()?;
            }
            Err(TryLockError::Error(cause)) => return Err(cause),
        }
        Ok(FileLock(file))
    }

    /// Takes an exclusive lock on an open file. `None` if another holder has a lock.
    pub fn try_exclusive(file: File) -> io::Result<Option<FileLock>> {
        let locked = file.try_lock();
        FileLock::taken(file, locked)
    }

    /// Takes a shared lock on an open file. `None` if it is locked exclusively.
    pub fn try_shared(file: File) -> io::Result<Option<FileLock>> {
        let locked = file.try_lock_shared();
        FileLock::taken(file, locked)
    }

    fn taken(file: File, locked: Result<(), TryLockError>) -> io::Result<Option<FileLock>> {
        match locked {
            Ok(()) => Ok(Some(FileLock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(cause)) => Err(cause),
        }
    }

    /// Replaces the content of the file.
    pub fn write(&mut self, content: &[u8]) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.rewind()?;
        self.0.write_all(content)
    }

    pub fn file(&self) -> &File {
        &self.0
    }

    /// The file, still locked for as long as it is open.
    #[must_use]
    pub fn into_file(self) -> File {
        self.0
    }
}

impl From<FileLock> for OwnedFd {
    fn from(lock: FileLock) -> OwnedFd {
        lock.0.into()
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_holder_or_many_that_share_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let mut first = FileLock::try_open(&path).unwrap().expect("it is free");
        first.write(b"1234\n").unwrap();
        first.write(b"5\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"5\n");
        assert!(FileLock::try_open(&path).unwrap().is_none());
        assert!(FileLock::try_shared(File::open(&path).unwrap()).unwrap().is_none());
        drop(first);
        let shared = FileLock::try_shared(File::open(&path).unwrap()).unwrap();
        let other = FileLock::try_shared(File::open(&path).unwrap()).unwrap();
        assert!(shared.is_some() && other.is_some());
        assert!(FileLock::try_open(&path).unwrap().is_none());
    }

    #[test]
    fn a_waiting_holder_is_announced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = FileLock::open(&path, || panic!("it is free")).unwrap();
        let mut first = Some(first);
        // The first lock is released when the second is about to wait for it.
        let second = FileLock::open(&path, || first = None).unwrap();
        drop(second);
        assert!(first.is_none());
    }
}
