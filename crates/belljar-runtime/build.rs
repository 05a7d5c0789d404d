//! Embeds the kernels' scripts, and the shared object that they load, so that only the binary must be installed.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = here().join("../../kernels").canonicalize()?;
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut hash = DefaultHasher::new();
    let mut code = String::from("pub(super) const FILES: &[(&str, &[u8])] = &[\n");
    let mut embed = |name: String, file: &Path| -> io::Result<()> {
        (&name, fs::read(file)?).hash(&mut hash);
        writeln!(code, "    ({name:?}, include_bytes!({:?})),", file.display().to_string())
            .expect("writing to a string succeeds");
        Ok(())
    };
    for file in &files {
        let name = file.strip_prefix(&root).expect("found below it").display().to_string();
        embed(name, file)?;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    for built in snapshot_programs(&out) {
        let name = built.file_name().and_then(|name| name.to_str()).expect("named by us");
        embed(format!("python/{name}"), &built)?;
    }
    write!(code, "];\npub(super) const VERSION: &str = \"{:016x}\";\n", hash.finish())
        .expect("writing to a string succeeds");
    fs::write(out.join("kernels.rs"), code)
}

/// The crate's directory, read at run time: another tree may use the compiled script of this one.
fn here() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"))
}

/// Builds `crates/belljar-snapshot` as a shared object that Python loads, and as the loader of kernels. Neither needs a library,
/// so they work in any image. Cargo cannot build them: everything else here is static.
fn snapshot_programs(out: &Path) -> Vec<PathBuf> {
    let source = here().join("../belljar-snapshot/src");
    println!("cargo::rerun-if-changed={}", source.display());
    let target = env::var("TARGET").expect("set by cargo");
    if !target.starts_with("x86_64-") {
        return Vec::new();
    }
    let build = |name: &str, arguments: &[&str]| {
        let built = out.join(name);
        let mut rustc = Command::new(env::var_os("RUSTC").expect("set by cargo"));
        rustc.args(["--edition=2024", "--crate-name=belljar_freeze", "--target", &target]);
        rustc.args(["--cap-lints=allow", "-Cpanic=abort", "-Copt-level=3", "-Cstrip=symbols"]);
        rustc.args(["-Ctarget-feature=-crt-static", "-Clink-arg=-nostdlib"]);
        rustc.args(arguments).arg("-o").arg(&built).arg(source.join("lib.rs"));
        let done = rustc.status().expect("failed to run the compiler");
        assert!(done.success(), "failed to build {name}");
        built
    };
    let object = ["--crate-type=cdylib", "--cfg=feature=\"shared-object\""];
    let program = [
        "--crate-type=bin",
        "--cfg=feature=\"loader\"",
        "-Crelocation-model=static",
        "-Clink-arg=-static",
        "-Clink-arg=-nostartfiles",
    ];
    vec![build("belljar_freeze.so", &object), build(LOADER, &program)]
}

/// The same name is in `kernels.rs`.
const LOADER: &str = "belljar_loader";

/// Collects the files that sandboxes need: no tests, no caches.
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
