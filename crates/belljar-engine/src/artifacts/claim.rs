//! Locks that ensure one catalog and one server per blob store.
//!
//! A sweep removes all blobs that are not in its catalog, and the start of a server removes
//! unfinished copies. A server with its own state directory that uses the blob store of another
//! server, because both have the same home, would remove all blobs of the other. So the store
//! contains the path of its catalog, and only one server at a time can lock it. The catalog is
//! locked too: two servers with separate stores and one catalog would each remove artifacts of the
//! other.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_sys::file_lock::FileLock;

use crate::objects::{ObjectError, Objects};

/// A file in the store with the path of the catalog, which people can read too. In S3, an object with its id.
const OWNER: &str = "owner";

/// The lock of a blob store. The kernel releases it when the process ends for any reason.
#[derive(Debug)]
pub(super) struct StoreClaim {
    _lock: FileLock,
}

/// The lock of a catalog.
#[derive(Debug)]
pub(super) struct CatalogClaim {
    _lock: FileLock,
}

impl CatalogClaim {
    /// Locks the catalog in `database`, which need not exist yet. The lock is a file beside it,
    /// because SQLite has its own locks on the database.
    pub(super) fn take(database: &Path) -> io::Result<CatalogClaim> {
        if let Some(parent) = database.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut name = fs::canonicalize(database).unwrap_or_else(|_| database.into());
        name.as_mut_os_string().push(".lock");
        let lock = lock(&name, "another server uses it; set ARTIFACTS_DB to a file of its own")?;
        Ok(CatalogClaim { _lock: lock })
    }
}

fn lock(path: &Path, if_taken: &str) -> io::Result<FileLock> {
    FileLock::try_open(path)?.ok_or_else(|| io::Error::new(io::ErrorKind::ResourceBusy, if_taken))
}

impl StoreClaim {
    /// Locks the store in `directory`, which must exist, for the catalog in `database`. If the
    /// catalog of a store no longer exists, another catalog can take the store.
    pub(super) fn take(directory: &Path, database: &Path) -> io::Result<StoreClaim> {
        let database = std::path::absolute(database)?;
        let if_taken = "another server uses it; set BLOBSTORE_DIR to a directory of its own";
        let mut lock = lock(&directory.join(OWNER), if_taken)?;
        let mut owner = Vec::new();
        lock.file().read_to_end(&mut owner)?;
        let owner = Path::new(OsStr::from_bytes(owner.trim_ascii_end()));
        if owner == database {
            return Ok(StoreClaim { _lock: lock });
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
        Ok(StoreClaim { _lock: lock })
    }
}

/// The id of the catalog in `database`: random, in a file beside it, made when it is missing.
pub(crate) fn catalog_id(database: &Path) -> io::Result<String> {
    if let Some(parent) = database.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut path = database.to_owned();
    path.as_mut_os_string().push(".id");
    match fs::read_to_string(&path) {
        Ok(id) if !id.trim().is_empty() => return Ok(id.trim().to_owned()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let id = belljar_sys::process::random_name();
    fs::write(&path, format!("{id}\n"))?;
    fs::File::open(&path)?.sync_all()?;
    Ok(id)
}

/// Why content in S3 cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error(
        "`{place}` has the content of another catalog of artifacts; set BELLJAR_BLOBS_URL to a prefix of its own. If \
         the other catalog is gone, remove the object `{place}/owner`"
    )]
    Foreign { place: String },
    #[error(transparent)]
    Objects(#[from] ObjectError),
    #[error("failed to read or write the id of the catalog of artifacts")]
    Id(#[source] io::Error),
}

/// Makes sure that the content in S3 belongs to this catalog. Content without an owner becomes its own.
pub async fn claim_objects(objects: &Objects, catalog: &str) -> Result<(), ClaimError> {
    let owner = match objects.head(OWNER).await? {
        Some(owner) => objects.get_range(OWNER, 0..owner.size).await?,
        None => {
            objects.put(OWNER, catalog.to_owned().into()).await?;
            return Ok(());
        }
    };
    if owner.trim_ascii_end() == catalog.as_bytes() {
        return Ok(());
    }
    Err(ClaimError::Foreign { place: objects.place().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalog_has_one_server_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("artifacts.db");
        let first = CatalogClaim::take(&list).unwrap();
        fs::write(&list, "").unwrap();
        let alias = directory.path().join("alias.db");
        std::os::unix::fs::symlink(&list, &alias).unwrap();
        for path in [&list, &alias] {
            let second = CatalogClaim::take(path).unwrap_err().to_string();
            assert!(second.contains("ARTIFACTS_DB"), "{second}");
        }
        drop(first);
        CatalogClaim::take(&alias).unwrap();
    }

    #[test]
    fn a_store_has_one_catalog_and_one_server_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path();
        let list = |name: &str| {
            let path = store.join(name);
            fs::write(&path, "").unwrap();
            path
        };
        let (one, other) = (list("one.db"), list("other.db"));
        let first = StoreClaim::take(store, &one).unwrap();
        let second = StoreClaim::take(store, &one).unwrap_err().to_string();
        assert!(second.contains("another server"), "{second}");
        drop(first);
        let foreign = StoreClaim::take(store, &other).unwrap_err().to_string();
        assert!(foreign.contains("one.db"), "{foreign}");
        drop(StoreClaim::take(store, &one).unwrap());
        // The catalog was moved.
        fs::rename(&one, store.join("moved.db")).unwrap();
        drop(StoreClaim::take(store, &store.join("moved.db")).unwrap());
        StoreClaim::take(store, &other).unwrap_err();
    }
}
