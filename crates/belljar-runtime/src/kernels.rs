//! The kernels' scripts: embedded in the binary, written to disk once, and their command lines and environment.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::spec::paths;

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// The manifest of every kernel, by the names of their folders.
pub(crate) fn manifests() -> impl Iterator<Item = &'static str> {
    let manifests = embedded::FILES.iter().filter(|(name, _)| name.ends_with("/manifest.json"));
    manifests.filter_map(|(_, contents)| std::str::from_utf8(contents).ok())
}

/// The directory with this build's scripts below `state_dir`, which is written if it does not exist.
///
/// Its name is a hash of its content, so that servers of different builds do not disturb each other. It appears completely or
/// not at all. `prepare` may add files (compiled ones) before that.
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
    let loader = fresh.join("python").join(LOADER);
    if loader.exists() {
        fs::set_permissions(&loader, fs::Permissions::from_mode(0o755))?;
    }
    prepare(&fresh);
    match fs::rename(&fresh, &directory) {
        Ok(()) => Ok(directory),
        Err(error) => {
            let _ = fs::remove_dir_all(&fresh);
            // Another server wrote the same content first.
            if directory.is_dir() { Ok(directory) } else { Err(error) }
        }
    }
}

/// The name of the loader, the program that a kernel begins as. It is beside the scripts.
const LOADER: &str = "belljar_loader";

/// The loader's path inside a sandbox.
pub(crate) fn loader() -> String {
    format!("{}/python/{LOADER}", paths::KERNELS)
}

/// The role in which a Python interpreter is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Kernel,
    /// Becomes a zygote: kernels begin with its memory.
    Preloaded,
    /// Forks kernels inside a container.
    Zygote,
}

/// The command line of a Python kernel or zygote; its socket is descriptor 3.
pub(crate) fn python_argv(
    interpreter: &str,
    role: Role,
    font_cache: Option<String>,
) -> Vec<String> {
    let name = match role {
        Role::Kernel => "kernel",
        Role::Preloaded => "preloaded",
        Role::Zygote => "zygote",
    };
    let main = format!("{}/python/main.py", paths::KERNELS);
    let mut argv = [interpreter, "-I", &main, name, "--fd", "3"].map(str::to_owned).to_vec();
    if let (Role::Kernel, Some(directory)) = (role, font_cache) {
        argv.extend(["--font-cache".to_owned(), directory]);
    }
    argv
}

/// The environment of everything in a sandbox. `tools` comes early on its `PATH`, and `own` overrides the rest.
pub(crate) fn environment<'a>(
    tools: Option<&str>,
    own: impl IntoIterator<Item = &'a (String, String)>,
) -> Vec<(String, String)> {
    let tools = tools.map(|directory| format!("{directory}:")).unwrap_or_default();
    let base = [
        ("HOME", paths::SESSION),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", "belljar"),
        ("MPLCONFIGDIR", "/tmp/.matplotlib"),
        ("PATH", &format!("/session/.local/bin:{tools}/usr/local/bin:/usr/bin:/bin")),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("PIP_NO_CACHE_DIR", "1"),
        ("SHELL", "/bin/bash"),
        ("TERM", "dumb"),
        ("TMPDIR", "/tmp"),
        ("USER", "belljar"),
        ("XDG_CACHE_HOME", "/tmp/.cache"),
        // One thread per library: a zygote has one, and a sandbox has one processor by default.
        ("ARROW_DEFAULT_MEMORY_POOL", "system"),
        ("OMP_NUM_THREADS", "1"),
        ("OPENBLAS_NUM_THREADS", "1"),
    ];
    let mut env: Vec<(String, String)> =
        base.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    for (key, value) in own {
        env.retain(|(known, _)| known != key);
        env.push((key.clone(), value.clone()));
    }
    add_site(&mut env);
    env
}

/// Adds variables of the image that are not set yet.
pub(crate) fn complete(env: &mut Vec<(String, String)>, image: &[(String, String)]) {
    for (key, value) in image {
        match env.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) if key == PYTHONPATH && *known == site() => {
                *known = format!("{value}:{known}");
            }
            Some(_) => {}
            None => env.push((key.clone(), value.clone())),
        }
    }
}

const PYTHONPATH: &str = "PYTHONPATH";

/// The directory with `sitecustomize.py`, which adds the session's packages to every Python's path.
fn site() -> String {
    format!("{}/python/site", paths::KERNELS)
}

fn add_site(env: &mut Vec<(String, String)>) {
    match env.iter_mut().find(|(key, value)| key == PYTHONPATH && !value.is_empty()) {
        Some((_, value)) => value.push_str(&format!(":{}", site())),
        None => {
            env.retain(|(key, _)| key != PYTHONPATH);
            env.push((PYTHONPATH.into(), site()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python_path(env: &[(String, String)]) -> &str {
        let found: Vec<_> = env.iter().filter(|(key, _)| key == PYTHONPATH).collect();
        assert_eq!(found.len(), 1);
        &found[0].1
    }

    #[test]
    fn every_python_path_ends_where_packages_of_the_session_are_found() {
        let own = |value: &str| vec![(PYTHONPATH.to_owned(), value.to_owned())];
        let site = "/opt/belljar/kernels/python/site";
        assert_eq!(python_path(&environment(None, &[])), site);
        assert_eq!(python_path(&environment(None, &own(""))), site);
        assert_eq!(python_path(&environment(None, &own("/src"))), format!("/src:{site}"));
        let mut env = environment(None, &[]);
        complete(&mut env, &own("/app"));
        assert_eq!(python_path(&env), format!("/app:{site}"));
        let mut env = environment(None, &own("/src"));
        complete(&mut env, &own("/app"));
        assert_eq!(
            python_path(&env),
            format!("/src:{site}"),
            "what was asked for has the last word"
        );
        complete(&mut env, &[("HOME".into(), "/root".into()), ("X".into(), "1".into())]);
        assert!(env.contains(&("X".into(), "1".into())));
        assert!(!env.contains(&("HOME".into(), "/root".into())));
    }
}
