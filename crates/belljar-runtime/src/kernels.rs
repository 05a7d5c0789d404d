//! The scripts that run inside sandboxes, carried in the binary and written out once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// The directory with this build's scripts below `state_dir`, written first if it is not there.
///
/// Its name is the version of its contents, so servers of different builds do not disturb each
/// other, and it appears whole or not at all. `prepare` may add to it (compiled files) before.
pub fn materialize(state_dir: &Path, prepare: impl FnOnce(&Path)) -> io::Result<PathBuf> {
    let directory = state_dir.join("kernels").join(embedded::VERSION);
    if directory.is_dir() {
        return Ok(directory);
    }
    let fresh = state_dir.join("kernels").join(format!(".new-{}", std::process::id()));
    let _ = fs::remove_dir_all(&fresh);
    for (name, contents) in embedded::FILES {
        let path = fresh.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, contents)?;
    }
    prepare(&fresh);
    match fs::rename(&fresh, &directory) {
        Ok(()) => Ok(directory),
        Err(error) => {
            let _ = fs::remove_dir_all(&fresh);
            // Somebody else was quicker with the same contents.
            if directory.is_dir() { Ok(directory) } else { Err(error) }
        }
    }
}
