//! One server per state directory.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::StoreError;

/// Held while the server runs; the kernel releases it when the process ends, for whatever reason.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Takes the lock in a directory, which is made if it is missing.
    pub fn take(directory: &Path) -> Result<StateLock, StoreError> {
        let failed = |cause| StoreError::StateDir { path: directory.into(), cause };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(directory.join("lock"))
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                let holder = match pid.trim() {
                    "" => String::new(),
                    pid => format!(" (process {pid})"),
                };
                return Err(StoreError::Locked { path: directory.into(), holder });
            }
            Err(fs::TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        name_holder(&mut file).map_err(failed)?;
        Ok(StateLock { _file: file })
    }
}

/// Writes our process id into the file, for the error of a second server.
fn name_holder(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_server_gets_the_process_id_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let first = StateLock::take(directory.path()).unwrap();
        let second = StateLock::take(directory.path()).unwrap_err().to_string();
        assert!(second.contains(&format!("process {}", std::process::id())), "{second}");
        drop(first);
        StateLock::take(directory.path()).unwrap();
    }
}
