//! Opens files for the host to read.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::OFlags;

use super::{Root, open_beneath};

/// Chooses the signal about a lease; libc does not name it.
const F_SETSIG: libc::c_int = 10;

impl Root {
    /// Opens a plain file for reading; never blocks, follows no link.
    pub fn open_file(&self, path: &[u8]) -> io::Result<OwnedFd> {
        // Without O_NONBLOCK, opening a pipe that replaced the file would wait for a writer, and a file with a lease for its
        // holder.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = open_beneath(&self.0, path, flags)?;
        crate::descriptor::check_plain_file(&file)?;
        Ok(file)
    }
}

/// Whether a process has this file, which we opened for reading, open or mapped for writing. Also false if Linux does
/// not report it: for files of other users, and on some file systems.
#[must_use]
pub fn is_being_written(file: impl AsFd) -> bool {
    // Linux grants a lease for reading only while there is no writer.
    is_lease_refused(file, libc::F_RDLCK)
}

/// Whether another descriptor of this file is open, mapped, or queued in a socket. Also false if Linux does not report
/// it.
#[must_use]
pub fn is_open_elsewhere(file: impl AsFd) -> bool {
    // A lease for writing is granted only if no other descriptor is open.
    is_lease_refused(file, libc::F_WRLCK)
}

fn is_lease_refused(file: impl AsFd, kind: libc::c_int) -> bool {
    let fd = file.as_fd().as_raw_fd();
    // If a process opens the file before the lease is returned, Linux sends us a signal. The default, SIGIO, would end this
    // process; SIGURG is ignored by default.
    // SAFETY: integers only, and an open descriptor.
    unsafe {
        if libc::fcntl(fd, F_SETSIG, libc::SIGURG) != 0 {
            return false;
        }
        if libc::fcntl(fd, libc::F_SETLEASE, kind) == 0 {
            libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
            return false;
        }
    }
    io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn a_path_never_leads_out_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(dir.path().join("secret"), "x").unwrap();
        fs::write(root.join("plain"), "x").unwrap();
        symlink("../secret", root.join("link")).unwrap();
        symlink("..", root.join("up")).unwrap();
        mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let root = Root::open(root.to_str().unwrap()).unwrap();
        for hostile in
            [&b"link"[..], b"../secret", b"up/secret", b"/etc/passwd", b"", b"plain/x", b"pipe"]
        {
            assert!(root.open_file(hostile).is_err(), "{}", String::from_utf8_lossy(hostile));
        }
        assert!(root.open_file(b"plain").is_ok());
    }

    /// A thread replaces a file by a link to a secret, and back, as fast as it can.
    #[test]
    fn a_name_that_is_swapped_leads_to_the_file_or_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("root")).unwrap();
        fs::write(path("root/name"), "x").unwrap();
        fs::write(path("secret"), "a secret").unwrap();
        symlink("../secret", path("root/link")).unwrap();
        let root = Root::open(path("root").to_str().unwrap()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let (one, other) = (path("root/name"), path("root/link"));
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(CWD, &one, CWD, &other, flags).unwrap();
                }
            });
            for _ in 0..2000 {
                if let Ok(file) = root.open_file(b"name") {
                    assert_eq!(File::from(file).metadata().unwrap().len(), 1);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_writer_is_noticed_also_behind_a_mapping() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "12345").unwrap();
        let root = Root::open(dir.path().to_str().unwrap()).unwrap();
        let is_written = || is_being_written(root.open_file(b"file").unwrap());
        assert!(!is_written(), "there is no writer");
        let reader = File::open(dir.path().join("file")).unwrap();
        assert!(!is_written(), "reading is not writing");
        let open = || fs::OpenOptions::new().read(true).write(true).open(dir.path().join("file"));
        let writer = open().unwrap();
        assert!(is_written());
        drop(writer);
        assert!(!is_written(), "it is closed again");

        let (nowhere, writer) = (std::ptr::null_mut(), open().unwrap());
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, writer.as_raw_fd());
        // SAFETY: a fresh mapping of a file that is long enough, which is not accessed as memory.
        let map = unsafe { libc::mmap(nowhere, 5, protection, libc::MAP_SHARED, fd, 0) };
        assert_ne!(map, libc::MAP_FAILED);
        drop((writer, reader));
        assert!(is_written(), "a mapping can be written without a descriptor");
        // SAFETY: the mapping made above, which is not used.
        assert_eq!(unsafe { libc::munmap(map, 5) }, 0);
        assert!(!is_written());
    }

    #[test]
    fn every_open_descriptor_of_a_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "12345").unwrap();
        fs::hard_link(dir.path().join("file"), dir.path().join("link")).unwrap();
        let root = Root::open(dir.path().to_str().unwrap()).unwrap();
        let is_open = || is_open_elsewhere(root.open_file(b"file").unwrap());
        assert!(!is_open(), "no other descriptor");
        let reader = File::open(dir.path().join("link")).unwrap();
        assert!(is_open(), "by another name");
        // SAFETY: a fresh mapping of a file that is long enough, which is not accessed as memory.
        let map = unsafe {
            let (protection, fd) = (libc::PROT_READ, reader.as_raw_fd());
            libc::mmap(std::ptr::null_mut(), 5, protection, libc::MAP_PRIVATE, fd, 0)
        };
        assert_ne!(map, libc::MAP_FAILED);
        drop(reader);
        assert!(is_open(), "mapped");
        // SAFETY: the mapping made above, which is not used.
        assert_eq!(unsafe { libc::munmap(map, 5) }, 0);
        assert!(!is_open());
        let (one, other) = crate::channel::packet_pair().unwrap();
        let reader = File::open(dir.path().join("file")).unwrap();
        crate::channel::send_packet(&one, b"x", &[reader.as_fd()]).unwrap();
        drop(reader);
        assert!(is_open(), "on its way");
        drop((one, other));
        assert!(!is_open());
    }

    /// If the signal for a broken lease reached us, this process would end.
    #[test]
    fn a_writer_that_breaks_the_lease_does_not_end_this_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        let root = Root::open(dir.path().to_str().unwrap()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(fs::OpenOptions::new().write(true).open(&path).unwrap());
                }
            });
            for _ in 0..20_000 {
                let _ = is_being_written(root.open_file(b"file").unwrap());
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
