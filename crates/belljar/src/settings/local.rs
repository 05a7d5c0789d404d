//! Finds the local server that the Python package starts (`sdk/python/src/belljar/local.py`): one per user, shared by
//! all programs of the user. Programs that set one of [`OWN`] use a different server.
//!
//! Both sides use the same rules, and neither uses the socket of another user.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

use anyhow::Result;
use sha2::{Digest, Sha256};

use super::values::Values;

/// Settings of a whole server, in alphabetical order. Programs that set one of these share a server only with programs
/// that set the same value.
const OWN: [&str; 5] =
    ["ARTIFACTS_DB", "BLOBSTORE_DIR", "DATASETS_HOST_RO", "IDLE_HIBERNATE_SEC", "SESSIONS_ROOT"];

/// The longest path of a socket. The server first binds a temporary name that is a little longer.
const MAX_SOCKET_PATH: usize = 108 - 20;

/// The local server for this user and these settings. It may not be running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalServer {
    socket: PathBuf,
}

impl LocalServer {
    pub(super) fn read(values: &Values<'_>) -> Result<LocalServer> {
        let mut settings = String::new();
        for name in OWN {
            let Some(value) = (values.lookup)(name).filter(|value| !value.is_empty()) else {
                continue;
            };
            let value = match name {
                "IDLE_HIBERNATE_SEC" => value,
                _ => match values.path(name)? {
                    Some(path) => normal(&path).to_string_lossy().into_owned(),
                    None => continue,
                },
            };
            // Writing to a string succeeds.
            let _ = writeln!(settings, "{name}={value}");
        }
        let suffix = match settings.as_str() {
            "" => String::new(),
            settings => format!("-{}", digest(settings.as_bytes())),
        };
        let name = format!("belljar-local{suffix}");
        let runtime = directory_of("XDG_RUNTIME_DIR").map(|runtime| runtime.join(name));
        let runtime = runtime.unwrap_or_else(|| data_home(&suffix).join("run"));
        let socket = runtime.join("server.sock");
        if socket.as_os_str().len() < MAX_SOCKET_PATH {
            return Ok(LocalServer { socket });
        }
        let (uid, _) = belljar_sys::privileges::own_ids();
        let short = format!("belljar-{uid}-{}", digest(runtime.as_os_str().as_bytes()));
        let temporary = directory_of("TMPDIR").unwrap_or_else(|| "/tmp".into());
        Ok(LocalServer { socket: temporary.join(short).join("server.sock") })
    }

    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether a process listens there, in a directory where only this user can create sockets. The client checks the
    /// user of the process again ([`super::ServerUrl::Local`]).
    #[must_use]
    pub fn is_running(&self) -> bool {
        let Some(found) = self.socket.parent().and_then(|parent| fs::symlink_metadata(parent).ok())
        else {
            return false;
        };
        let (uid, _) = belljar_sys::privileges::own_ids();
        let is_own = found.is_dir() && found.uid() == uid && found.mode() & 0o022 == 0;
        is_own && UnixStream::connect(&self.socket).is_ok()
    }
}

fn data_home(suffix: &str) -> PathBuf {
    let home = || Some(directory_of("HOME")?.join(".local/share"));
    let data = directory_of("XDG_DATA_HOME").or_else(home).unwrap_or_else(|| "/".into());
    data.join("belljar").join(format!("local{suffix}"))
}

fn directory_of(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// An absolute path without `.` and `..`. Like `os.path.abspath`, it uses only the text of the path.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// A short name for any bytes.
fn digest(bytes: &[u8]) -> String {
    let mut name = String::new();
    for byte in &Sha256::digest(bytes)[..6] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normal() {
        for (path, expected) in [("/a/../b/./c/", "/b/c"), ("/../a", "/a"), ("/", "/")] {
            assert_eq!(normal(Path::new(path)), Path::new(expected));
        }
    }

    #[test]
    fn names_are_those_of_the_python_package() {
        // From Python: hashlib.sha256(b"SESSIONS_ROOT=/s\n").hexdigest()[:12]
        assert_eq!(digest(b"SESSIONS_ROOT=/s\n"), "162b8bf17d3e");
    }
}
