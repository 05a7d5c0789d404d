//! Files that every sandbox needs in its root, with any backend: mount points, links to them, and a
//! user.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use belljar_sys::rootfs::Rootfs;

use crate::{ImageError, limits};

const USER_ID: u32 = 1000;

/// Writes these files into `upper`. `view` has the layers so far, the newest first.
pub(super) fn write(view: &[PathBuf], upper: &Path, user: &str) -> Result<(), ImageError> {
    let at = |name: &str| upper.join(name);
    for name in ["session", "data", "etc", "opt", "opt/belljar", "opt/belljar/kernels"] {
        directory(&at(name))?;
    }
    chown(at("session"), Some(USER_ID), Some(USER_ID)).map_err(ImageError::file(at("session")))?;
    for name in ["work", "workspace"] {
        symlink("/session", at(name)).map_err(ImageError::file(at(name)))?;
    }
    // Removes any other user with this id: files of a session belong to our user.
    let others = |text: String, field: usize| -> String {
        let is_other = |line: &&str| {
            let fields: Vec<&str> = line.split(':').collect();
            fields.get(field) != Some(&USER_ID.to_string().as_str())
                && fields.first() != Some(&user)
        };
        text.lines().filter(is_other).map(|line| line.to_owned() + "\n").collect()
    };
    let passwd = others(current(view, "etc/passwd")?, 2);
    let group = others(current(view, "etc/group")?, 2);
    let user_line = format!("{user}:x:{USER_ID}:{USER_ID}:{user}:/session:/bin/bash\n");
    file(&at("etc/passwd"), &(passwd + &user_line))?;
    file(&at("etc/group"), &(group + &format!("{user}:x:{USER_ID}:\n")))
}

/// A directory with mode 0755, regardless of our umask.
pub(super) fn directory(path: &Path) -> Result<(), ImageError> {
    fs::create_dir(path).map_err(ImageError::file(path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(ImageError::file(path))
}

fn file(path: &Path, contents: &str) -> Result<(), ImageError> {
    fs::write(path, contents).map_err(ImageError::file(path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(ImageError::file(path))
}

/// The current content of a file; empty if there is none.
fn current(view: &[PathBuf], name: &str) -> Result<String, ImageError> {
    for directory in view {
        let real = fs::canonicalize(directory).map_err(ImageError::file(directory))?;
        let root = Rootfs::open(&real).map_err(ImageError::file(directory))?;
        if let Ok(found) = root.open_file(Path::new(name)) {
            let mut text = String::new();
            let read = found.take(limits::MAX_DOCUMENT).read_to_string(&mut text);
            read.map_err(ImageError::file(directory.join(name)))?;
            return Ok(text);
        }
    }
    Ok(String::new())
}
