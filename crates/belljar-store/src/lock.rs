//! A lock that allows one server per state directory.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use belljar_sys::file_lock::FileLock;

use crate::StoreError;

/// Held while the server runs; the kernel releases it when the process ends for any reason.
#[derive(Debug)]
pub struct StateLock {
    _lock: FileLock,
}

impl StateLock {
    /// Takes the lock in a directory, which is created if it is missing.
    pub fn take(directory: &Path) -> Result<StateLock, StoreError> {
        let failed = |cause| StoreError::StateDir { path: directory.into(), cause };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let path = directory.join("lock");
        let Some(mut lock) = FileLock::try_open(&path).map_err(failed)? else {
            let holder = match fs::read_to_string(&path).unwrap_or_default().trim() {
                "" => String::new(),
                pid => format!(" (process {pid})"),
            };
            return Err(StoreError::Locked { path: directory.into(), holder });
        };
        // The error of a second server contains this process id.
        lock.write(format!("{}\n", std::process::id()).as_bytes()).map_err(failed)?;
        Ok(StateLock { _lock: lock })
    }
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
