//! Decides which directories of the host a session may mount, writable, at `/workspace`.
//!
//! Only directories that the operator allows (`BELLJAR_WORKSPACES`). Some are refused even then: code could take over
//! the machine or this server from them, because other programs execute or trust files in them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::EngineError;

/// Which directories a client can ask for.
#[derive(Debug, Clone, Default)]
pub struct WorkspacesConfig {
    /// These directories and all below them.
    pub allowed: Vec<PathBuf>,
    /// Directories of this server. No workspace may be in one of them, or contain one.
    pub own: Vec<PathBuf>,
}

/// No workspace may be one of these or below one.
const SYSTEM: [&str; 12] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin",
    "/sys", "/usr",
];

/// No workspace may be one of these.
const TOP: [&str; 10] =
    ["/", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var"];

impl WorkspacesConfig {
    /// The requested directory, without symbolic links in its path. Blocks.
    pub(crate) fn find(&self, asked: &Path) -> Result<PathBuf, EngineError> {
        let refused = |why: String| {
            Err(EngineError::WorkspaceRefused(format!("workspace `{}` {why}", asked.display())))
        };
        if !asked.is_absolute() {
            return refused("is not an absolute path".into());
        }
        // The error must not reveal whether a directory exists that is not allowed.
        let not_allowed = || {
            refused(
                "is not allowed here; the operator can allow directories, and all below them, with \
                 BELLJAR_WORKSPACES"
                    .into(),
            )
        };
        if self.allowed.is_empty() {
            return not_allowed();
        }
        let found = match fs::canonicalize(asked) {
            Ok(found) => found,
            Err(_) if !self.allows(asked) => return not_allowed(),
            Err(cause) => return refused(format!("cannot be used: {cause}")),
        };
        if !self.allows(&found) {
            return not_allowed();
        }
        if !found.is_dir() {
            return refused("is not a directory".into());
        }
        if let Some(why) = self.why_never(&found, &homes()) {
            return refused(format!("is refused: {why}"));
        }
        Ok(found)
    }

    fn allows(&self, path: &Path) -> bool {
        self.allowed.iter().any(|allowed| {
            let allowed = fs::canonicalize(allowed).unwrap_or_else(|_| allowed.clone());
            path.starts_with(allowed)
        })
    }

    fn why_never(&self, path: &Path, homes: &[PathBuf]) -> Option<String> {
        if TOP.iter().any(|top| path == Path::new(top)) {
            return Some("others have files there; name a directory in it".into());
        }
        if SYSTEM.iter().any(|system| path.starts_with(system)) {
            return Some("it is part of the system".into());
        }
        if let Some(home) = homes.iter().find(|home| home.starts_with(path)) {
            return Some(format!(
                "it holds the home directory `{}`, with keys and what is executed at every login; name a directory in it",
                home.display()
            ));
        }
        let hidden = |path: &Path| {
            let mut names = path.iter().filter_map(|name| name.to_str());
            names.any(|name| matches!(name, ".ssh" | ".gnupg" | ".aws" | ".config" | ".git"))
        };
        if hidden(path) {
            return Some("code could change what others execute, or read keys".into());
        }
        let own = self.own.iter().map(|own| fs::canonicalize(own).unwrap_or_else(|_| own.clone()));
        for own in own {
            if path.starts_with(&own) || own.starts_with(path) {
                return Some(format!("it shares files of this server (`{}`)", own.display()));
            }
        }
        None
    }
}

/// The home directories of the users of this machine.
fn homes() -> Vec<PathBuf> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let listed = passwd.lines().filter_map(|line| line.split(':').nth(5)).map(PathBuf::from);
    let own = std::env::var_os("HOME").map(PathBuf::from);
    let homes = listed.chain(own).filter(|home| home.is_absolute() && home.parent().is_some());
    homes.map(|home| fs::canonicalize(&home).unwrap_or(home)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn why(config: &WorkspacesConfig, asked: &Path) -> String {
        match config.find(asked).expect_err("it is refused") {
            EngineError::WorkspaceRefused(why) => why,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn only_allowed_directories_can_be_used() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for name in ["projects/a", "other", "projects/server/state"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("projects/file"), "").unwrap();
        symlink(at("other"), at("projects/out")).unwrap();
        symlink(at("projects/a"), at("in")).unwrap();
        let none = WorkspacesConfig::default();
        assert!(why(&none, &at("projects/a")).contains("BELLJAR_WORKSPACES"));
        assert!(why(&none, &at("missing")).contains("BELLJAR_WORKSPACES"));
        let config = WorkspacesConfig {
            allowed: vec![at("projects")],
            own: vec![at("projects/server/state")],
        };
        let found = fs::canonicalize(at("projects/a")).unwrap();
        assert_eq!(config.find(&at("projects/a")).unwrap(), found);
        assert_eq!(config.find(&at("in")).unwrap(), found, "a link is followed once");
        assert_eq!(config.find(&at("projects/../projects/a/.")).unwrap(), found);
        for (asked, expected) in [
            ("other", "not allowed"),
            ("projects/out", "not allowed"),
            ("projects/../other", "not allowed"),
            ("projects-of-others", "not allowed"),
            ("projects/missing", "cannot be used"),
            ("projects/file", "not a directory"),
            ("projects/server", "files of this server"),
            ("projects/server/state", "files of this server"),
            ("projects", "files of this server"),
        ] {
            let said = why(&config, &at(asked));
            assert!(said.contains(expected), "{asked}: {said}");
        }
        assert!(why(&config, Path::new("projects/a")).contains("absolute"));
    }

    #[test]
    fn some_are_refused_even_if_allowed() {
        let config = WorkspacesConfig { allowed: vec!["/".into()], own: Vec::new() };
        let homes = ["/home/ada".into(), "/root".into(), "/srv/people/eve".into()];
        let refused = |path: &str| config.why_never(Path::new(path), &homes).is_some();
        for path in [
            "/",
            "/home",
            "/tmp",
            "/root",
            "/etc/cron.d",
            "/usr/local/bin",
            "/home/ada",
            "/srv/people",
            "/srv/people/eve",
            "/home/ada/.ssh",
            "/home/ada/.config/x",
            "/home/ada/p/.git/hooks",
            "/proc/1/root",
        ] {
            assert!(refused(path), "{path}");
        }
        for path in ["/home/ada/project", "/root/project", "/srv/projects/a", "/tmp/x/y"] {
            assert!(!refused(path), "{path}");
        }
    }
}
