//! Checks descriptors that come from sandboxes, before they are used.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, OFlags, Stat};
use rustix::net::AddressFamily;

use crate::identity::Identity;

/// The expected kind of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorKind {
    PlainFile,
    UnixSocket,
    Pipe,
}

/// Whether a descriptor is of this kind. The check never waits; closing a descriptor of any kind may.
pub fn is_of_kind(fd: impl AsFd, kind: DescriptorKind) -> bool {
    let Ok(stat) = rustix::fs::fstat(fd.as_fd()) else { return false };
    match (kind, FileType::from_raw_mode(stat.st_mode)) {
        (DescriptorKind::UnixSocket, FileType::Socket) => {
            rustix::net::sockopt::socket_domain(fd.as_fd())
                .is_ok_and(|domain| domain == AddressFamily::UNIX)
        }
        (DescriptorKind::PlainFile, FileType::RegularFile)
        | (DescriptorKind::Pipe, FileType::Fifo) => true,
        _ => false,
    }
}

/// Accepts only a regular file that is open for reading only, and returns its identity.
///
/// Reading a regular file up to its size never blocks: there is no FUSE inside
/// a sandbox, and files of `/proc` report a size of zero.
pub fn check_plain_file(fd: impl AsFd) -> io::Result<Identity> {
    let (stat, flags) = check_regular(fd.as_fd())?;
    if flags.intersects(OFlags::RWMODE) {
        return refuse("not opened for reading only");
    }
    Ok(Identity::of(&stat))
}

/// Accepts only a regular file that is open for writing only and has a name. A memory file (memfd) has none, and
/// what is written to it would escape all limits.
pub fn check_written_file(fd: impl AsFd) -> io::Result<()> {
    let (stat, flags) = check_regular(fd.as_fd())?;
    if flags.intersection(OFlags::RWMODE) != OFlags::WRONLY {
        return refuse("not opened for writing only");
    }
    if stat.st_nlink == 0 {
        return refuse("has no name");
    }
    Ok(())
}

fn check_regular(fd: BorrowedFd<'_>) -> io::Result<(Stat, OFlags)> {
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refuse("not a regular file");
    }
    let flags = rustix::fs::fcntl_getfl(fd)?;
    if flags.contains(OFlags::PATH) {
        return refuse("not opened at all");
    }
    Ok((stat, flags))
}

fn refuse<T>(why: &'static str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_is_taken_for_what_it_was_opened_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let writer = File::create(&path).unwrap();
        let (reader, both) = (
            File::open(&path).unwrap(),
            File::options().read(true).write(true).open(&path).unwrap(),
        );
        let nothing = rustix::fs::open(&path, OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let memory = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::empty()).unwrap();
        assert!(check_plain_file(&reader).is_ok() && check_written_file(&writer).is_ok());
        assert!(check_plain_file(&writer).is_err() && check_written_file(&reader).is_err());
        assert!(check_plain_file(&both).is_err() && check_written_file(&both).is_err());
        assert!(check_plain_file(&nothing).is_err() && check_written_file(&nothing).is_err());
        assert!(check_written_file(&memory).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(check_written_file(&writer).is_err());
    }
}
