//! Checks that code in a sandbox can read the host directory for `/data`.
//!
//! Sandboxes have their own user ids. A directory that only its owner may read (`/root`, a private home directory, one that
//! `mkdtemp` made) needs an idmapped mount. Where that is not possible, it is refused, and the error says what to do.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use belljar_sys::privileges;

use crate::RuntimeError;

/// The rights to list a directory and to open its files.
const READ_AND_ENTER: u32 = 0o5;

/// A directory that only its owner can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) owner: (u32, u32),
    mode: u32,
}

/// The owner of a directory that other users cannot read; `None` if they can.
pub(crate) fn closed_to_others(path: &Path) -> Result<Option<Closed>, RuntimeError> {
    let found = look_at(path)?;
    let is_open = found.mode() & READ_AND_ENTER == READ_AND_ENTER;
    Ok((!is_open).then(|| closed(&found)))
}

/// Refuses a directory that the server cannot read, if sandboxes have the server's id.
pub(crate) fn check_readable_by_us(path: &Path) -> Result<(), RuntimeError> {
    if privileges::is_root() {
        // Sandboxes have user id 0 too, but none of its rights.
        return check_readable(path, privileges::own_ids());
    }
    match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let why = "the server runs as another user; run it as that user, or as root";
            Err(closed(&look_at(path)?).refusal(path, why))
        }
        _ => Ok(()),
    }
}

/// Refuses a directory that this user of the host cannot read.
pub(crate) fn check_readable(path: &Path, (uid, gid): (u32, u32)) -> Result<(), RuntimeError> {
    let found = look_at(path)?;
    let wanted = match (found.uid() == uid, found.gid() == gid) {
        (true, _) => READ_AND_ENTER << 6,
        (false, true) => READ_AND_ENTER << 3,
        (false, false) => READ_AND_ENTER,
    };
    if found.mode() & wanted == wanted {
        return Ok(());
    }
    let why = format!("sandboxes are user {uid} of the host here, and ids cannot be translated");
    Err(closed(&found).refusal(path, &why))
}

impl Closed {
    /// The error if an idmapped mount is not possible.
    pub(crate) fn not_translated(&self, path: &Path, cause: &io::Error) -> RuntimeError {
        let why = match cause.kind() {
            ErrorKind::InvalidInput | ErrorKind::PermissionDenied | ErrorKind::Unsupported => {
                "its file system, or one mounted below it, cannot translate user ids \
                 (idmapped mounts)"
                    .to_owned()
            }
            _ => format!("translating user ids failed: {cause}"),
        };
        self.refusal(path, &why)
    }

    fn refusal(&self, path: &Path, why: &str) -> RuntimeError {
        RuntimeError::DataClosed(format!(
            "sandboxes cannot read the data directory `{path}`: only user {owner} may (mode \
             {mode:04o}), and {why}; allow others to read it (chmod -R o+rX '{path}'), or copy the \
             data to a directory that others can read",
            path = path.display(),
            owner = self.owner.0,
            mode = self.mode & 0o7777,
        ))
    }
}

fn closed(found: &Metadata) -> Closed {
    Closed { owner: (found.uid(), found.gid()), mode: found.mode() }
}

fn look_at(path: &Path) -> Result<Metadata, RuntimeError> {
    let found = fs::metadata(path);
    found.map_err(|cause| RuntimeError::Open { path: path.into(), cause })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_is_closed_where_others_cannot_list_and_enter_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let own = (fs::metadata(path).unwrap().uid(), fs::metadata(path).unwrap().gid());
        for (mode, others, group, owner) in [
            (0o755, true, true, true),
            (0o700, false, false, true),
            (0o750, false, true, true),
            (0o754, false, true, true),
            (0o005, true, false, false),
        ] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(closed_to_others(path).unwrap().is_none(), others, "{mode:o}");
            assert_eq!(check_readable(path, (own.0 + 1, own.1 + 1)).is_ok(), others, "{mode:o}");
            assert_eq!(check_readable(path, (own.0 + 1, own.1)).is_ok(), group, "{mode:o}");
            assert_eq!(check_readable(path, own).is_ok(), owner, "{mode:o}");
        }
        let missing = path.join("missing");
        assert!(matches!(closed_to_others(&missing), Err(RuntimeError::Open { .. })));
    }
}
