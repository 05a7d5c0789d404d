//! Creates the mount points that the root of a sandbox needs. A root is mounted read-only, so they are created when it
//! is unpacked.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_sys::rootfs::{Rootfs, Standing};

use crate::ImageError;

/// Top-level mount points; other files with these names are removed.
const MOUNTED_OVER: [&str; 7] = ["dev", "proc", "sys", "tmp", "session", "data", VOLUMES];

const VOLUMES: &str = "volumes";

/// Directories that must not be links: mounts below them must not follow a link.
const REAL: [&str; 2] = ["etc", "opt"];

/// Files in `/etc` of which every sandbox has its own version.
pub const ETC_FILES: [&str; 4] = ["passwd", "group", "hosts", "nsswitch.conf"];

/// Where the scripts of kernels are mounted.
const KERNELS: &str = "opt/belljar/kernels";

/// Links to `/session`, unless the image has other files there.
const SESSION_NAMES: [&str; 2] = ["work", "workspace"];

/// Adds mount points that an earlier version of Belljar, which unpacked this root, did not create.
pub(crate) fn catch_up(rootfs: &Path) -> Result<(), ImageError> {
    let volumes = rootfs.join(VOLUMES);
    if std::fs::symlink_metadata(&volumes).is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    let root = Rootfs::open(rootfs).map_err(ImageError::file(rootfs))?;
    root.make_directory(Path::new(VOLUMES), 0o755).map_err(ImageError::file(&volumes))
}

pub(crate) fn complete(root: &Rootfs) -> Result<(), ImageError> {
    let at = |path: &Path| {
        let path = path.display().to_string();
        move |cause| ImageError::Entry { path, cause }
    };
    for name in MOUNTED_OVER.map(Path::new) {
        let mode = if name == Path::new("tmp") { 0o1777 } else { 0o755 };
        root.make_directory(name, mode).map_err(at(name))?;
    }
    for name in REAL.map(Path::new) {
        match root.standing(name).map_err(at(name))? {
            Some(Standing::Directory) => {}
            None => root.make_directory(name, 0o755).map_err(at(name))?,
            Some(_) => {
                let what = format!("its /{} is not a directory", name.display());
                return Err(ImageError::Refused(what));
            }
        }
    }
    for name in ETC_FILES.map(|name| Path::new("etc").join(name)) {
        if !matches!(root.standing(&name).map_err(at(&name))?, Some(Standing::File { .. })) {
            root.make_file(&name, 0o644).map_err(at(&name))?;
        }
    }
    // One directory at a time, because `belljar` could be a link as well.
    let mut path = Path::new("opt").to_owned();
    for name in Path::new(KERNELS).iter().skip(1) {
        path.push(name);
        root.make_directory(&path, 0o755).map_err(at(&path))?;
    }
    for name in SESSION_NAMES.map(Path::new) {
        let replaceable = match root.standing(name).map_err(at(name))? {
            None => true,
            Some(Standing::Directory) => root.names(name).map_err(at(name))?.is_empty(),
            Some(_) => false,
        };
        if replaceable {
            root.make_link(name, Path::new("/session")).map_err(at(name))?;
        }
    }
    // Programs that need `/var/tmp` get a writable directory.
    let temporary = Path::new("var/tmp");
    let is_real = root.standing(Path::new("var")).map_err(at(temporary))?;
    if is_real == Some(Standing::Directory)
        && root.names(temporary).map_err(at(temporary))?.is_empty()
    {
        root.make_link(temporary, Path::new("/tmp")).map_err(at(temporary))?;
    }
    Ok(())
}

/// The path of the interpreter that a shell would find in this root; `None` if there is none.
pub(crate) fn find_python(root: &Rootfs, path: &str) -> Result<Option<String>, ImageError> {
    for directory in path.split(':').filter(|directory| directory.starts_with('/')) {
        let candidate = Path::new(directory).join("python3");
        let failed = |cause| ImageError::Entry { path: candidate.display().to_string(), cause };
        let found = root.leads_to(&candidate).map_err(failed)?;
        if found == Some(Standing::File { executable: true }) {
            return Ok(Some(candidate.display().to_string()));
        }
    }
    Ok(None)
}

/// Whether this is a top-level name of a root file system, and not of an image archive.
pub(crate) fn looks_like_root(name: &[u8]) -> bool {
    let name = OsStr::from_bytes(name);
    ["bin", "etc", "usr", "lib", "sbin", "var", "dev", "proc"].iter().any(|known| name == *known)
}
