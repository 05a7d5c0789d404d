//! Getting written files onto the disk, early and many at once.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

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

/// A copy of a file in memory that nobody can ever change, not even by opening it again.
pub fn sealed_copy(file: &File) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("copy", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut copy = File::from(memory);
    // Through a description of its own: whoever reads the original elsewhere keeps the place where he was.
    let mut at = 0;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match std::os::unix::fs::FileExt::read_at(file, &mut buffer, at) {
            Ok(0) => break,
            Ok(read) => {
                io::Write::write_all(&mut copy, &buffer[..read])?;
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&copy, all)?;
    Ok(copy.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

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
    fn a_sealed_copy_can_be_read_and_never_written() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 300 << 10]).unwrap();
        let copy = File::from(sealed_copy(&file).unwrap());
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        let mut again = File::options().read(true).write(true).open(path).unwrap();
        assert!(again.write_all(b"x").is_err() && again.set_len(0).is_err());
        assert!(again.set_len(1 << 20).is_err());
        let mut bytes = Vec::new();
        again.rewind().unwrap();
        again.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, [7; 300 << 10]);
    }

    #[test]
    fn what_has_no_pages_is_refused() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(begin_writeback(&reader, 0, 0).is_err());
    }
}
