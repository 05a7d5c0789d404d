//! A new environment, built beside the current one until it is complete.
//!
//! ```text
//!   python.new          the new environment; an interrupted first setup leaves it, and the next one continues
//!   python              the environment of sandboxes; replaced in one step
//!   python.old-<random> the previous environment, while a running server still uses it
//! ```
//!
//! Programs in `bin` contain the path of the interpreter, so these paths are rewritten before the rename.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use belljar_sys::{file, process, procfs};

/// The path of the new environment.
pub(super) fn place(environment: &Path) -> PathBuf {
    with_suffix(environment, ".new")
}

fn with_suffix(environment: &Path, suffix: &str) -> PathBuf {
    let mut name = environment.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Copies an environment: links as links, and files with their times, because compiled files depend on them.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = |path: &Path| format!("failed to copy `{}`", path.display());
    fs::create_dir(to).with_context(|| failed(from))?;
    for entry in fs::read_dir(from).with_context(|| failed(from))? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&path, &target)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&path)?, target)?;
        } else {
            copy_file(&path, &target).with_context(|| failed(&path))?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    let times = fs::FileTimes::new().set_modified(fs::metadata(from)?.modified()?);
    // Setting the times needs only ownership of the file, not write access.
    fs::File::open(to)?.set_times(times)
}

/// Rewrites the paths in programs and settings of an environment to its final path.
pub(super) fn rename_inside(staged: &Path, environment: &Path) -> io::Result<()> {
    let (here, there) = (staged.display().to_string(), environment.display().to_string());
    let is_text = |path: &Path, contents: &[u8]| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        contents.starts_with(b"#!") || name.starts_with("activate") || name == "pyvenv.cfg"
    };
    let programs = fs::read_dir(staged.join("bin"))?.collect::<io::Result<Vec<_>>>()?;
    let programs = programs.into_iter().map(|entry| entry.path());
    for path in programs.chain([staged.join("pyvenv.cfg")]) {
        if !fs::symlink_metadata(&path)?.is_file() {
            continue;
        }
        let contents = fs::read(&path)?;
        let Ok(text) = std::str::from_utf8(&contents) else { continue };
        if is_text(&path, &contents) && text.contains(&here) {
            fs::write(&path, text.replace(&here, &there))?;
        }
    }
    Ok(())
}

/// Replaces the current environment. Returns whether running servers still use the old one.
pub(super) fn put_in_place(staged: &Path, environment: &Path) -> Result<bool> {
    let cannot = || format!("failed to replace `{}`", environment.display());
    if !environment.exists() {
        fs::rename(staged, environment).with_context(cannot)?;
        return Ok(false);
    }
    file::exchange(staged, environment).with_context(cannot)?;
    let suffix = format!("{OLD}{}", &process::random_name()[..8]);
    let old = with_suffix(environment, &suffix);
    fs::rename(staged, &old).with_context(cannot)?;
    Ok(!remove_unused(&old))
}

/// Removes old environments that running servers no longer use.
pub(super) fn sweep(environment: &Path) {
    let prefix = with_suffix(environment, OLD);
    let (Some(home), Some(prefix)) = (environment.parent(), prefix.file_name()) else { return };
    let prefix = prefix.to_string_lossy().into_owned();
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            remove_unused(&entry.path());
        }
    }
}

const OLD: &str = ".old-";

/// Removes an environment unless it is in use. Returns whether it was removed.
fn remove_unused(old: &Path) -> bool {
    let name = old.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if procfs::is_mounted_anywhere(&name) {
        return false;
    }
    // The next setup tries again to remove the rest.
    let _ = fs::remove_dir_all(old);
    true
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn environment(at: &Path, package: &str) {
        fs::create_dir_all(at.join("bin")).unwrap();
        fs::create_dir_all(at.join("lib/site-packages")).unwrap();
        fs::write(at.join("bin/pip"), format!("#!{}/bin/python\nrun()\n", at.display())).unwrap();
        fs::write(at.join("bin/tool"), [0x7f, b'E', b'L', b'F', 0xff]).unwrap();
        fs::write(at.join("bin/activate"), format!("VIRTUAL_ENV={}\n", at.display())).unwrap();
        fs::write(at.join("pyvenv.cfg"), format!("command = venv {}\n", at.display())).unwrap();
        std::os::unix::fs::symlink("/usr/bin/python3", at.join("bin/python")).unwrap();
        fs::write(at.join("lib/site-packages").join(package), "").unwrap();
    }

    #[test]
    fn a_new_environment_takes_the_place_and_the_name_of_the_old() {
        let home = tempfile::tempdir().unwrap();
        let current = home.path().join("python");
        environment(&current, "old");
        let staged = place(&current);
        environment(&staged, "new");
        rename_inside(&staged, &current).unwrap();
        assert!(!put_in_place(&staged, &current).unwrap(), "nobody uses the old one");
        let packages: Vec<_> = fs::read_dir(current.join("lib/site-packages")).unwrap().collect();
        assert_eq!(packages.len(), 1);
        assert!(current.join("lib/site-packages/new").exists());
        let names = fs::read_dir(home.path()).unwrap().flatten().map(|entry| entry.file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["python"], "nothing is left of the other");
        for text in ["bin/pip", "bin/activate", "pyvenv.cfg"] {
            let text = fs::read_to_string(current.join(text)).unwrap();
            let path = current.display().to_string();
            assert!(text.contains(&path) && !text.contains(".new"), "{text}");
        }
        assert_eq!(fs::read(current.join("bin/tool")).unwrap()[0], 0x7f, "binaries are left alone");
    }

    #[test]
    fn a_copy_has_links_permissions_and_times_of_the_original() {
        let home = tempfile::tempdir().unwrap();
        let (from, to) = (home.path().join("python"), home.path().join("python.new"));
        environment(&from, "six.py");
        let module = from.join("lib/site-packages/six.py");
        fs::set_permissions(&module, fs::Permissions::from_mode(0o555)).unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30);
        let times = fs::FileTimes::new().set_modified(long_ago);
        fs::File::open(&module).unwrap().set_times(times).unwrap();
        copy(&from, &to).unwrap();
        let copied = fs::metadata(to.join("lib/site-packages/six.py")).unwrap();
        assert_eq!(copied.modified().unwrap(), long_ago);
        assert_eq!(copied.permissions().mode() & 0o777, 0o555);
        assert_eq!(fs::read_link(to.join("bin/python")).unwrap(), Path::new("/usr/bin/python3"));
        assert!(copy(&from, &to).is_err(), "what is there is not mixed with it");
    }
}
