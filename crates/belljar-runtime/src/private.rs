//! Private directories for sockets, which lead into sandboxes: only the server's user can enter them.
//!
//! Some have names that another user can guess and create first, such as `/tmp/belljar-1000`. An existing directory is used
//! only if it belongs to the server's user.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use belljar_sys::privileges;

use crate::RuntimeError;

const OF_OTHERS: u32 = 0o077;
const WRITABLE_BY_ALL: u32 = 0o002;

/// Makes a private directory. An existing one must belong to this user, and is made private.
pub(crate) fn make(path: &Path) -> Result<(), RuntimeError> {
    let mode = create(path)?;
    if mode & WRITABLE_BY_ALL != 0 {
        // Others may have put files into it, and the mode of `/tmp` must not change.
        return Err(refused(path, "all users can write to it"));
    }
    if mode & OF_OTHERS != 0 {
        let closed = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
        closed.map_err(|cause| RuntimeError::Prepare { path: path.into(), cause })?;
    }
    Ok(())
}

/// Like [`make`], for a directory that the operator chose, whose permissions must not be changed.
pub(crate) fn require(path: &Path) -> Result<(), RuntimeError> {
    if create(path)? & OF_OTHERS != 0 {
        return Err(refused(path, "other users can enter it; make it private with `chmod 700`"));
    }
    Ok(())
}

/// Makes the directory if it does not exist, and returns its permissions if it belongs to this user.
fn create(path: &Path) -> Result<u32, RuntimeError> {
    let prepare = |cause: io::Error| RuntimeError::Prepare { path: path.into(), cause };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(prepare)?;
    let (own, _) = privileges::own_ids();
    let named = fs::symlink_metadata(path).map_err(prepare)?;
    if named.is_symlink() && ![0, own].contains(&named.uid()) {
        return Err(refused(path, "it is a link that another user made"));
    }
    let found = fs::metadata(path).map_err(prepare)?;
    if !found.is_dir() || found.uid() != own {
        return Err(refused(path, "it is not a directory of this user"));
    }
    Ok(found.mode())
}

fn refused(path: &Path, why: &'static str) -> RuntimeError {
    RuntimeError::NotPrivate { path: path.into(), why }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, lchown, symlink};

    use super::*;

    const NOBODY: u32 = 65534;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn with_mode(path: &Path, mode: u32) {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_of_ours_is_made_or_closed() {
        let place = tempfile::tempdir().unwrap();
        let [fresh, open] = ["deep/fresh", "open"].map(|name| place.path().join(name));
        make(&fresh).unwrap();
        with_mode(&open, 0o755);
        make(&open).unwrap();
        assert_eq!([mode(&fresh), mode(&open)], [0o700, 0o700]);
        let link = place.path().join("link");
        symlink(&open, &link).unwrap();
        make(&link).unwrap();
    }

    #[test]
    fn one_that_others_can_write_to_is_left_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let shared = place.path().join("tmp");
        with_mode(&shared, 0o1777);
        assert!(make(&shared).unwrap_err().to_string().contains("all users can write"));
        assert_eq!(mode(&shared), 0o1777);
    }

    #[test]
    fn one_that_the_operator_chose_must_be_private_already() {
        let place = tempfile::tempdir().unwrap();
        let chosen = place.path().join("chosen");
        with_mode(&chosen, 0o755);
        assert!(require(&chosen).unwrap_err().to_string().contains("chmod 700"));
        assert_eq!(mode(&chosen), 0o755);
        require(&place.path().join("fresh")).unwrap();
    }

    #[test]
    fn one_of_another_user_is_refused() {
        if !privileges::is_root() {
            eprintln!("skipped: only root can make directories of others");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let [theirs, ours, link] = ["theirs", "ours", "link"].map(|name| place.path().join(name));
        with_mode(&theirs, 0o700);
        chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
        with_mode(&ours, 0o700);
        symlink(&ours, &link).unwrap();
        lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
        for path in [theirs, link] {
            let error = make(&path).unwrap_err();
            assert!(matches!(error, RuntimeError::NotPrivate { .. }), "{error}");
        }
    }
}
