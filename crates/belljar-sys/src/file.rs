//! Writes files durably, and exchanges the names of two files in one step.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

/// Asks Linux to start writing `length` bytes from `offset` to the disk (all that follow, if `length` is 0) and
/// does not wait. Only a hint: nothing is durable until the file is synced, and only the sync reports a failed
/// write.
pub fn begin_writeback(file: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
    let (Ok(offset), Ok(length)) = (offset.try_into(), length.try_into()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let flags = libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: takes integers and a descriptor that is borrowed for the call; no pointers.
    match unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), offset, length, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits until everything that was written to the file system of `file` is on the disk. Reports a write that
/// failed since `file` was opened, once per opened file.
pub fn sync_file_system(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::syncfs(file)?)
}

/// Makes a file this long and allocates its blocks now, so that later writes cannot fail for lack of space.
pub fn set_aside(file: impl AsFd, length: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, length)?)
}

/// Exchanges the names of two files or directories of one file system, in one step if the file system supports
/// that.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS) => exchange_by_steps(one, other),
        done => Ok(done?),
    }
}

fn exchange_by_steps(one: &Path, other: &Path) -> io::Result<()> {
    let mut aside = other.as_os_str().to_owned();
    aside.push(format!(".{}", &crate::process::random_name()[..8]));
    std::fs::rename(other, &aside)?;
    if let Err(error) = std::fs::rename(one, other) {
        std::fs::rename(&aside, other)?;
        return Err(error);
    }
    std::fs::rename(&aside, one)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn what_was_written_can_be_synced() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 8192]).unwrap();
        begin_writeback(&file, 4096, 4096).unwrap();
        begin_writeback(&file, 0, 0).unwrap();
        assert!(begin_writeback(&file, u64::MAX, 0).is_err());
        sync_file_system(&file).unwrap();
    }

    #[test]
    fn names_are_exchanged_or_nothing_changes() {
        for exchange in [exchange, exchange_by_steps] {
            let directory = tempfile::tempdir().unwrap();
            let (one, other) = (directory.path().join("one"), directory.path().join("other"));
            fs::write(&one, "1").unwrap();
            fs::create_dir(&other).unwrap();
            exchange(&one, &other).unwrap();
            assert!(one.is_dir() && fs::read_to_string(&other).unwrap() == "1");
            assert!(exchange(&directory.path().join("missing"), &other).is_err());
            assert_eq!(fs::read_to_string(&other).unwrap(), "1");
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        }
    }

    #[test]
    fn what_has_no_pages_is_refused() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(begin_writeback(&reader, 0, 0).is_err());
    }
}
