//! One list of artifacts per blob store.
//!
//! A sweep removes what its own list does not name, and a start clears what is half copied. A
//! server that is pointed at the store of another, by a state directory of its own and the same
//! home, would remove everything that the other keeps. So the store says whose it is, and one
//! server at a time has it.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// In the store, for a person to read as well: the path of the list of artifacts.
const OWNER: &str = "owner";

/// Held for as long as the server lives; the kernel releases it however that ends.
#[derive(Debug)]
pub(super) struct Claim {
    _file: File,
}

impl Claim {
    /// Claims the store in `directory`, which is there, for the list in `database`. A store whose
    /// list is gone goes to whoever asks first.
    pub(super) fn take(directory: &Path, database: &Path) -> io::Result<Claim> {
        let database = std::path::absolute(database)?;
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(directory.join(OWNER))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let message = "another server uses it; set BLOBSTORE_DIR to a directory of its own";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut owner = Vec::new();
        file.read_to_end(&mut owner)?;
        let owner = Path::new(OsStr::from_bytes(owner.trim_ascii_end()));
        if owner == database {
            return Ok(Claim { _file: file });
        }
        if !owner.as_os_str().is_empty() && owner.exists() {
            let message = format!(
                "it has the content of the artifacts listed in `{}`; set BLOBSTORE_DIR to a \
                 directory of its own",
                owner.display()
            );
            return Err(io::Error::other(message));
        }
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(database.as_os_str().as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        Ok(Claim { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_store_has_one_list_and_one_server_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path();
        let list = |name: &str| {
            let path = store.join(name);
            fs::write(&path, "").unwrap();
            path
        };
        let (one, other) = (list("one.db"), list("other.db"));
        let first = Claim::take(store, &one).unwrap();
        let second = Claim::take(store, &one).unwrap_err().to_string();
        assert!(second.contains("another server"), "{second}");
        drop(first);
        let foreign = Claim::take(store, &other).unwrap_err().to_string();
        assert!(foreign.contains("one.db"), "{foreign}");
        drop(Claim::take(store, &one).unwrap());
        // Moved, with all that belongs to it.
        fs::rename(&one, store.join("moved.db")).unwrap();
        drop(Claim::take(store, &store.join("moved.db")).unwrap());
        Claim::take(store, &other).unwrap_err();
    }
}
