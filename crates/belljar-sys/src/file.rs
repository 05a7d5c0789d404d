//! Getting written files onto the disk, early and many at once.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Asks the kernel to start writing `length` bytes from `offset` to the disk (all that follow, if
/// `length` is 0) and does not wait. Only a hint: nothing is durable until the file is synced, and
/// that is also what reports a failure to write.
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

/// Waits until everything that was written to the file system of `file` is on the disk. Reports a
/// write that failed since `file` was opened, once for each opening.
pub fn sync_file_system(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::syncfs(file)?)
}

/// Makes a file this long and takes its blocks from the file system now, so that none can be
/// missing later.
pub fn set_aside(file: impl AsFd, length: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, length)?)
}

#[cfg(test)]
mod tests {
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
    fn what_has_no_pages_is_refused() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(begin_writeback(&reader, 0, 0).is_err());
    }
}
