//! Memory files (memfd) that cannot be changed after they are sealed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;

/// An empty memory file. Its pages are charged to the process that writes them.
pub fn create(name: &str) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(rustix::fs::memfd_create(name, flags)?.into())
}

/// From now on no process can change its content or size. Fails while a process has it mapped for writing.
pub fn seal(file: impl AsFd) -> io::Result<()> {
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(file, seals)?)
}

/// Opens the same file again for reading only, with its own position and flags.
pub fn open_again(file: impl AsFd) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// A copy of a file in a sealed memory file.
pub fn sealed_copy(file: &File) -> io::Result<File> {
    let sealed = create("copy")?;
    // Through a second descriptor, so that the position of the original does not move.
    copy(&open_again(file)?, &sealed)?;
    seal(&sealed)?;
    Ok(sealed)
}

const COPY_BYTES: usize = 1 << 20;

/// Copies a file into an empty one, and keeps its holes.
pub fn copy(from: &File, to: &File) -> io::Result<()> {
    let len = from.metadata()?.len();
    to.set_len(len)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    while at < len {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            start => start?,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?;
        at = start;
        while at < end {
            let left =
                usize::try_from(end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
            from.read_exact_at(&mut buffer[..left], at)?;
            to.write_all_at(&buffer[..left], at)?;
            at += left as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    #[test]
    fn a_sealed_copy_can_be_read_and_never_written() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 300 << 10]).unwrap();
        let copy = sealed_copy(&file).unwrap();
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
    fn a_copy_has_the_same_bytes_and_the_same_holes() {
        use std::os::unix::fs::MetadataExt;
        let from = create("test").unwrap();
        let len = 64 << 20;
        from.set_len(len).unwrap();
        from.write_at(b"first", 0).unwrap();
        from.write_at(b"last", len - 4).unwrap();
        let to = tempfile::tempfile().unwrap();
        copy(&from, &to).unwrap();
        let mut words = [[0; 5]; 2];
        to.read_at(&mut words[0], 0).unwrap();
        to.read_at(&mut words[1][..4], len - 4).unwrap();
        assert_eq!((&words[0], &words[1][..4]), (b"first", &b"last"[..]));
        assert_eq!(to.metadata().unwrap().len(), len);
        assert!(to.metadata().unwrap().blocks() * 512 < len / 2);
    }

    #[test]
    fn what_is_sealed_can_be_read_and_never_changed() {
        let mut file = create("test").unwrap();
        file.write_all(b"kept").unwrap();
        seal(&file).unwrap();
        assert!(file.write_at(b"lost", 0).is_err() && file.set_len(0).is_err());
        let again = File::options().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        assert!(again.unwrap().write_at(b"lost", 0).is_err(), "not through another opening either");
        let mut text = String::new();
        open_again(&file).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept");
    }
}
