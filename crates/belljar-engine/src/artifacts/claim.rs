//! One list of artifacts per blob store.
//!
//! A sweep removes what its own list does not name, and a start clears what is half copied. A
//! server that is pointed at the store of another, by a state directory of its own and the same
//! home, would remove everything that the other keeps. So the store says whose it is, and one
//! server at a time has it. The list is claimed as well: two servers with stores of their own and
//! one list would each forget the artifacts of the other.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_sys::file_lock::FileLock;

/// In the store, for a person to read as well: the path of the list of artifacts.
const OWNER: &str = "owner";

/// Held for as long as the server lives.
#[derive(Debug)]
pub(super) struct Claim {
    _lock: FileLock,
}

/// The same for the list.
#[derive(Debug)]
pub(super) struct ListClaim {
    _lock: FileLock,
}

impl ListClaim {
    /// Claims the list in `database`, which need not be there yet. The lock is a file beside it:
    /// SQLite has its own locks on the list.
    pub(super) fn take(database: &Path) -> io::Result<ListClaim> {
        if let Some(parent) = database.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut name = fs::canonicalize(database).unwrap_or_else(|_| database.into());
        name.as_mut_os_string().push(".lock");
        let lock = lock(&name, "another server uses it; set ARTIFACTS_DB to a file of its own")?;
        Ok(ListClaim { _lock: lock })
    }
}

fn lock(path: &Path, if_taken: &str) -> io::Result<FileLock> {
    FileLock::try_open(path)?.ok_or_else(|| io::Error::new(io::ErrorKind::ResourceBusy, if_taken))
}

impl Claim {
    /// Claims the store in `directory`, which is there, for the list in `database`. A store whose
    /// list is gone goes to whoever asks first.
    pub(super) fn take(directory: &Path, database: &Path) -> io::Result<Claim> {
        let database = std::path::absolute(database)?;
        let if_taken = "another server uses it; set BLOBSTORE_DIR to a directory of its own";
        let mut lock = lock(&directory.join(OWNER), if_taken)?;
        let mut owner = Vec::new();
        lock.file().read_to_end(&mut owner)?;
        let owner = Path::new(OsStr::from_bytes(owner.trim_ascii_end()));
        if owner == database {
            return Ok(Claim { _lock: lock });
        }
        if !owner.as_os_str().is_empty() && owner.exists() {
            let message = format!(
                "it has the content of the artifacts listed in `{}`; set BLOBSTORE_DIR to a \
                 directory of its own",
                owner.display()
            );
            return Err(io::Error::other(message));
        }
        lock.write(&[database.as_os_str().as_bytes(), b"\n"].concat())?;
        lock.file().sync_all()?;
        Ok(Claim { _lock: lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_one_server_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("artifacts.db");
        let first = ListClaim::take(&list).unwrap();
        fs::write(&list, "").unwrap();
        let alias = directory.path().join("alias.db");
        std::os::unix::fs::symlink(&list, &alias).unwrap();
        for path in [&list, &alias] {
            let second = ListClaim::take(path).unwrap_err().to_string();
            assert!(second.contains("ARTIFACTS_DB"), "{second}");
        }
        drop(first);
        ListClaim::take(&alias).unwrap();
    }

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
