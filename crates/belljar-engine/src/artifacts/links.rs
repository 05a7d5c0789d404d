//! Links to the content of artifacts by name: hard links where possible, not copies.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// Links `blob` at `place` and replaces what is there. The directories of `place` belong to the
/// host; code in a sandbox never sees them.
pub(super) fn link(blob: &Path, place: &Path) -> io::Result<()> {
    // The usual case takes one step: the name is new and its directory exists.
    if fs::hard_link(blob, place).is_ok() {
        return Ok(());
    }
    let parent = place.parent().ok_or(io::ErrorKind::InvalidInput)?;
    make_directories(parent)?;
    if place.is_dir() {
        // An earlier artifact was below this path, so the path is a directory.
        fs::remove_dir_all(place)?;
    }
    let fresh = parent.join(format!(".{}", belljar_sys::process::random_name()));
    // A symbolic link is used if `place` is on another file system or the blob has too many hard
    // links.
    fs::hard_link(blob, &fresh).or_else(|_| symlink(blob, &fresh))?;
    let moved = fs::rename(&fresh, place);
    // A rename does nothing if both names are links to the same file.
    let _ = fs::remove_file(&fresh);
    moved
}

/// Removes the link at `place`, if it points to `blob`.
pub(super) fn unlink(blob: &Path, place: &Path) {
    if is_shown(blob, place) {
        let _ = fs::remove_file(place);
    }
}

/// Whether `place` is a link to `blob`.
pub(super) fn is_shown(blob: &Path, place: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    identity(place).is_some_and(|shown| Some(shown) == identity(blob))
}

/// Removes the directories above `place` that are empty, up to one of `roots`. The directory
/// `artifacts` of a session on disk stays.
pub(super) fn remove_empty_directories(place: &Path, roots: &[PathBuf]) {
    for directory in place.ancestors().skip(1) {
        let Some(parent) = directory.parent() else { return };
        let is_kept = parent.join("files").is_dir() || roots.iter().any(|root| root == directory);
        if is_kept || fs::remove_dir(directory).is_err() {
            return;
        }
    }
}

/// Makes a directory and those above it. A file in the way is an older link and is removed.
fn make_directories(path: &Path) -> io::Result<()> {
    let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
    let Err(error) = make(path) else { return Ok(()) };
    let blocked = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok());
    match blocked {
        Some(file) if !file.is_dir() => {
            fs::remove_file(file)?;
            make(path)
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_replace_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("one"), "1").unwrap();
        fs::write(path("two"), "2").unwrap();
        let shown = |name: &str| fs::read_to_string(path("shown").join(name)).unwrap();
        link(&path("one"), &path("shown/a/b")).unwrap();
        assert_eq!(shown("a/b"), "1");
        assert_eq!(path("one").metadata().unwrap().nlink(), 2, "no second copy");
        assert_eq!(path("shown/a").metadata().unwrap().mode() & 0o777, 0o700);
        link(&path("one"), &path("shown/a/b")).unwrap();
        link(&path("two"), &path("shown/a")).unwrap();
        assert_eq!(shown("a"), "2");
        link(&path("one"), &path("shown/a/b")).unwrap();
        assert_eq!(shown("a/b"), "1");
        assert_eq!(fs::read_dir(path("shown/a")).unwrap().count(), 1);
        unlink(&path("two"), &path("shown/a/b"));
        assert_eq!(shown("a/b"), "1", "it leads to another blob");
        unlink(&path("one"), &path("shown/a/b"));
        assert!(!path("shown/a/b").exists());
        remove_empty_directories(&path("shown/a/b"), &[path("shown")]);
        assert!(!path("shown/a").exists() && path("shown").exists());
        // The directory of a session on disk.
        fs::create_dir_all(path("shown/ses/artifacts/sub")).unwrap();
        fs::create_dir(path("shown/ses/files")).unwrap();
        remove_empty_directories(&path("shown/ses/artifacts/sub/x"), &[path("shown")]);
        assert!(!path("shown/ses/artifacts/sub").exists() && path("shown/ses/artifacts").exists());
    }
}
