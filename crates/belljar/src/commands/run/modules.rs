//! The Python modules in the directory of a script, which `import` would find if Python ran the script here.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use belljar_engine::run::BroughtFile;

/// Limits of what is copied. A directory with more was probably not meant to be copied.
const MAX_FILES: usize = 1000;
const MAX_BYTES: u64 = 64 << 20;

/// The deepest nesting of directories in a package.
const MAX_DEPTH: usize = 16;

/// The directory of artifacts in the sandbox, which a package must not replace.
const TAKEN: &[u8] = b"artifacts";

#[derive(Debug, Default)]
pub(super) struct ModuleFiles {
    pub(super) files: Vec<BroughtFile>,
    bytes: u64,
    /// Whether some files were not copied, because of the limits.
    pub(super) is_cut: bool,
}

impl ModuleFiles {
    /// Finds modules (`name.py`), packages (directories with `__init__.py`) and other directories that the code
    /// imports. Skips hidden files and files that cannot be read.
    pub(super) fn find(script: &Path, code: &[u8]) -> Result<ModuleFiles> {
        let context = || format!("failed to look for modules beside `{}`", script.display());
        // Python follows a link to a script and searches the directory of its target.
        let script = fs::canonicalize(script).with_context(context)?;
        let mut beside = ModuleFiles::default();
        let Some(directory) = script.parent() else { return Ok(beside) };
        let imported = imported(code);
        let (mut packages, mut modules) = (Vec::new(), Vec::new());
        for path in entries(directory) {
            let Some(name) = path.file_name() else { continue };
            if path.is_dir() {
                let is_package = path.join("__init__.py").is_file();
                if is_package || name.to_str().is_some_and(|name| imported.contains(name)) {
                    packages.push(path);
                }
            } else if path != script && path.extension().is_some_and(|it| it == "py") {
                modules.push(path);
            }
        }
        for path in modules {
            beside.add(&path, name(&path));
        }
        for path in packages.iter().filter(|path| name(path) != TAKEN) {
            beside.add_all(path, &name(path), MAX_DEPTH);
        }
        Ok(beside)
    }

    fn add_all(&mut self, directory: &Path, shown: &[u8], depth: usize) {
        for path in entries(directory) {
            let below = [shown, b"/", &name(&path)].concat();
            let is_link = fs::symlink_metadata(&path).is_ok_and(|it| it.is_symlink());
            if !path.is_dir() {
                self.add(&path, below);
            } else if !is_link && depth > 0 && name(&path) != b"__pycache__" && !self.is_cut {
                self.add_all(&path, &below, depth - 1);
            }
        }
    }

    fn add(&mut self, path: &Path, shown: Vec<u8>) {
        let Some(size) = readable(path) else { return };
        if self.files.len() == MAX_FILES || self.bytes + size > MAX_BYTES {
            self.is_cut = true;
            return;
        }
        self.bytes += size;
        self.files.push(BroughtFile { path: shown, content: path.to_owned() });
    }
}

fn name(path: &Path) -> Vec<u8> {
    path.file_name().map(|name| name.to_owned().into_vec()).unwrap_or_default()
}

/// The entries of a directory that are not hidden, sorted.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = found
        .filter(|entry| !entry.file_name().as_bytes().starts_with(b"."))
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

/// The size of a plain file, if we may read it.
fn readable(path: &Path) -> Option<u64> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    fs::File::open(path).ok().map(|_| metadata.len())
}

/// The first parts of the names that the code imports, found by a search of its lines.
fn imported(code: &[u8]) -> HashSet<String> {
    let text = String::from_utf8_lossy(code);
    let mut names = HashSet::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let rest = match words.next() {
            Some("from") => words.next().unwrap_or_default().to_owned(),
            Some("import") => words.collect::<Vec<_>>().join(" "),
            _ => continue,
        };
        for part in rest.split(',') {
            let name = part.trim().split(['.', ' ']).next().unwrap_or_default();
            names.insert(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_found_line_by_line() {
        let code =
            b"import os, tools.deep as t\n  from here.x import y\nfrom . import z\n# import no\n";
        let mut names: Vec<String> =
            imported(code).into_iter().filter(|it| !it.is_empty()).collect();
        names.sort();
        assert_eq!(names, ["here", "os", "tools"]);
    }

    #[test]
    fn modules_and_packages_are_found_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["package/sub/__pycache__", "plain", "imported", "artifacts", ".hidden"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        for name in [
            "script.py",
            "helper.py",
            "notes.txt",
            ".env",
            ".secret.py",
            "package/__init__.py",
            "package/table.json",
            "package/.env",
            "package/sub/deep.py",
            "package/sub/__pycache__/deep.pyc",
            "plain/code.py",
            "imported/code.py",
            "artifacts/__init__.py",
            ".hidden/__init__.py",
        ] {
            fs::write(at(name), "").unwrap();
        }
        std::os::unix::fs::symlink(directory.path(), at("package/loop")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("broken.py")).unwrap();
        let beside = ModuleFiles::find(&at("script.py"), b"import imported.code").unwrap();
        let mut names: Vec<_> =
            beside.files.iter().map(|file| String::from_utf8_lossy(&file.path)).collect();
        names.sort();
        assert_eq!(
            names,
            [
                "helper.py",
                "imported/code.py",
                "package/__init__.py",
                "package/sub/deep.py",
                "package/table.json"
            ]
        );
        assert!(!beside.is_cut);
    }

    #[test]
    fn no_more_than_so_many_are_taken() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..=MAX_FILES {
            fs::write(directory.path().join(format!("m{number}.py")), "").unwrap();
        }
        let script = directory.path().join("script.py");
        fs::write(&script, "").unwrap();
        let beside = ModuleFiles::find(&script, b"").unwrap();
        assert_eq!((beside.files.len(), beside.is_cut), (MAX_FILES, true));
    }
}
