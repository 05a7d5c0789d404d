//! Embeds the kernels' scripts: the binary is all there is to install.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels").canonicalize()?;
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut hash = DefaultHasher::new();
    let mut code = String::from("pub(super) const FILES: &[(&str, &str)] = &[\n");
    for file in &files {
        let name = file.strip_prefix(&root).expect("found below it").display().to_string();
        (&name, fs::read(file)?).hash(&mut hash);
        writeln!(code, "    ({name:?}, include_str!({:?})),", file.display().to_string())
            .expect("writing to a string succeeds");
    }
    write!(code, "];\npub(super) const VERSION: &str = \"{:016x}\";\n", hash.finish())
        .expect("writing to a string succeeds");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    fs::write(out.join("kernels.rs"), code)
}

/// What runs inside a sandbox: no tests, no caches.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !matches!(name, "tests" | "__pycache__") && !name.starts_with('.') {
                collect(&path, files)?;
            }
        } else if [".py", ".js", ".R", "manifest.json"].iter().any(|end| name.ends_with(end)) {
            files.push(path);
        }
    }
    Ok(())
}
