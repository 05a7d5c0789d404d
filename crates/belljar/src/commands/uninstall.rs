//! `belljar uninstall`: removes what Belljar stores on this machine.
//!
//! Removes only names that Belljar creates, below its own directories. A directory that a setting names may contain other
//! files; it is listed and kept.

use std::env;
use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use belljar_engine::store::StateLock;
use belljar_sys::cgroup::Parent;
use belljar_sys::{mount, privileges};
use clap::Args;
use indicatif::HumanBytes;

use super::output::{self, print};
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "\
Removes what Belljar stores on this machine: running sandboxes, their control groups, sockets and mounts,
the Python environments, images, sessions, artifacts, volumes, keys and the database. Files elsewhere
(outputs, exports, .env) and directories that settings name outside of BELLJAR_HOME are listed and kept.
To remove the program itself, use `make uninstall` or `pip uninstall belljar`.")]
pub(crate) struct UninstallArgs {
    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    /// Only list what would be removed
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
}

/// Names below BELLJAR_HOME; a `*` matches any text.
const OF_HOME: [&str; 11] = [
    "python",
    "python.*",
    "browser-use",
    "browser-use.*",
    "kernels",
    "images",
    "sessions",
    "blobstore",
    "datasets",
    "volumes",
    "setup.lock",
];

/// Names in the state directory.
const OF_STATE: [&str; 8] = [
    "belljar.db*",
    "artifacts.db*",
    "audit.log*",
    "links.key",
    "node-id",
    "network-authority.pem",
    "frozen",
    "lock",
];

/// Names in BELLJAR_RUN_DIR.
const OF_RUN_DIR: [&str; 4] = ["ids", "doors", "selftest.json", "*.sock"];

/// Directories of servers that the Python package starts. They contain all files of these servers.
const LOCAL: [&str; 2] = ["local", "local-*"];

pub(crate) fn uninstall(args: &UninstallArgs, settings: &Settings) -> Result<ExitCode> {
    let plan = Removal::plan(settings);
    let locks = plan.lock()?;
    if plan.is_empty() {
        println!("There is nothing to remove.");
        plan.say_left();
        return Ok(ExitCode::SUCCESS);
    }
    print(&plan.describe())?;
    plan.say_left();
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.yes && !agreed()? {
        println!("Nothing was removed.");
        return Ok(ExitCode::SUCCESS);
    }
    // The lock files are about to be removed.
    drop(locks);
    plan.carry_out()?;
    println!(
        "Removed. To remove the program itself, use `make uninstall` or `pip uninstall belljar`."
    );
    Ok(ExitCode::SUCCESS)
}

fn agreed() -> Result<bool> {
    if !io::stdin().is_terminal() {
        bail!(
            "standard input is not a terminal, so nothing was removed; --yes removes without asking"
        );
    }
    print!("Remove all of this? [y/N] ");
    io::stdout().flush().context("failed to ask")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).context("failed to read the answer")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// What is to be removed.
struct Removal {
    /// State directories of servers. None of these servers may be running.
    states: Vec<PathBuf>,
    /// The control groups of sandboxes, if there are any.
    cgroups: Option<Parent>,
    /// Mount points below our directories, the innermost first.
    mounts: Vec<PathBuf>,
    paths: Vec<PathBuf>,
    /// Directories that are removed if they are empty.
    emptied: Vec<PathBuf>,
    /// Directories elsewhere that settings name; they are kept.
    left: Vec<PathBuf>,
}

impl Removal {
    fn plan(settings: &Settings) -> Removal {
        let home = &settings.home;
        let mut paths = matching(home, &OF_HOME);
        paths.extend(matching(&settings.state_dir, &OF_STATE));
        paths.extend(matching(&settings.run_dir, &OF_RUN_DIR));
        let mut states = vec![settings.state_dir.clone()];
        let mut emptied = vec![settings.state_dir.clone(), home.clone(), settings.run_dir.clone()];
        if let Some(data) = data_dir() {
            let local = matching(&data, &LOCAL);
            states.extend(local.iter().map(|directory| directory.join("state")));
            paths.extend(local);
            emptied.push(data);
        }
        if let Some(runtime) = env::var_os("XDG_RUNTIME_DIR").filter(|it| !it.is_empty()) {
            paths.extend(matching(Path::new(&runtime), &["belljar-local", "belljar-local-*"]));
        }
        let is_ours = |path: &PathBuf| paths.iter().any(|ours| path.starts_with(ours));
        let server = &settings.server;
        let chosen = [
            &server.sessions_root,
            &settings.artifacts.blobs_dir,
            &settings.volumes.root,
            &server.dataset_cache,
            &server.snapshots.directory,
            &settings.artifacts.exports_dir,
            &settings.outputs_dir,
        ];
        let left = chosen.into_iter().filter(|path| path.exists() && !is_ours(path)).cloned();
        let left = left.collect();
        let mut mounts: Vec<PathBuf> =
            mount::points().into_iter().filter(|it| is_ours(it)).collect();
        mounts.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
        let cgroups = Parent::find(&settings.cgroup_parent, privileges::is_root());
        Removal { states, cgroups, mounts, paths, emptied, left }
    }

    /// Fails while a server runs, and prevents one from starting.
    fn lock(&self) -> Result<Vec<StateLock>> {
        let there = self.states.iter().filter(|state| state.join("lock").exists());
        there
            .map(|state| StateLock::take(state).context("stop the server first, then try again"))
            .collect()
    }

    fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.cgroups.is_none() && self.mounts.is_empty()
    }

    fn describe(&self) -> String {
        let mut text = "This is removed:\n".to_owned();
        if let Some(cgroups) = &self.cgroups {
            let names = cgroups.names();
            for directory in cgroups.directories() {
                text += &format!("  control groups  {}\n", directory.display());
            }
            if !names.is_empty() {
                text +=
                    &format!("  sandboxes       {} that may still run are ended\n", names.len());
            }
        }
        for mount in &self.mounts {
            text += &format!("  mount           {}\n", mount.display());
        }
        for path in &self.paths {
            let bytes = HumanBytes(bytes_in(path));
            text += &format!("  {bytes:>14}  {}\n", path.display());
        }
        text
    }

    fn say_left(&self) {
        for path in &self.left {
            let text = format!("`{}` is left: it may hold other things of yours", path.display());
            output::say(&text);
        }
    }

    /// Continues after a failure, to remove as much as possible. The error lists what is left.
    fn carry_out(&self) -> Result<()> {
        let mut failures = Vec::new();
        if let Some(parent) = &self.cgroups {
            for name in parent.names() {
                let cgroup = parent.adopt(&name);
                cgroup.kill();
                if !cgroup.remove() {
                    failures.push(format!("the control group {name} is still in use"));
                }
            }
            // In every cgroup hierarchy.
            let _ = parent.adopt("").remove();
        }
        for path in &self.mounts {
            if let Err(error) = mount::take_away(path) {
                failures.push(format!("failed to unmount `{}`: {error}", path.display()));
            }
        }
        for path in &self.paths {
            let is_directory = fs::symlink_metadata(path).is_ok_and(|it| it.is_dir());
            let removed =
                if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    failures.push(format!("failed to remove `{}`: {error}", path.display()));
                }
                _ => {}
            }
        }
        for directory in &self.emptied {
            // Fails if it contains other files.
            let _ = fs::remove_dir(directory);
        }
        if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("\n")) }
    }
}

/// Entries of a directory with these names; a `*` at one end matches any text.
fn matching(directory: &Path, names: &[&str]) -> Vec<PathBuf> {
    let fits = |entry: &str| {
        names.iter().any(|name| match (name.strip_prefix('*'), name.strip_suffix('*')) {
            (Some(end), _) => entry.ends_with(end),
            (_, Some(beginning)) => entry.starts_with(beginning),
            _ => entry == *name,
        })
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(fits))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// The directory of servers that the Python package starts.
fn data_dir() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let data = set("XDG_DATA_HOME").map(PathBuf::from);
    Some(data.or_else(|| Some(Path::new(&set("HOME")?).join(".local/share")))?.join("belljar"))
}

fn bytes_in(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| bytes_in(&entry.path())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_names_are_taken() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["python", "python.old-1", "pythonic", "a.sock", "socket", "notes.txt"] {
            fs::write(directory.path().join(name), "12345").unwrap();
        }
        let found = |names: &[&str]| -> Vec<String> {
            let found = matching(directory.path(), names);
            found.iter().map(|path| path.file_name().unwrap().display().to_string()).collect()
        };
        assert_eq!(found(&OF_HOME), ["python", "python.old-1"]);
        assert_eq!(found(&OF_RUN_DIR), ["a.sock"]);
        assert!(matching(&directory.path().join("none"), &OF_HOME).is_empty());
        assert_eq!(bytes_in(directory.path()), 30);
    }
}
