//! Where commands of a build run: an overlay over what there is so far, as root of it, in mount, PID,
//! IPC and UTS namespaces of their own, with the network of the host.
//!
//! The program that makes the namespaces is a fresh copy of ours: nothing is forked from a process
//! with threads. It ends with us, and its end ends all it started.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use belljar_sys::plan::{Access, Namespace, Plan, Source, Step};
use belljar_sys::{isolated, process};
use serde::{Deserialize, Serialize};

use super::host::Host;
use super::places;
use crate::{ImageError, Progress};

pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Lines of a failed command that are shown.
const SHOWN_LINES: usize = 60;

/// The longest line of output that is read; a program may write without line breaks.
const MAX_LINE: usize = 4096;

/// The input of a helper, as JSON on its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub struct StepOrder {
    plan: Plan,
    argv: Vec<String>,
    env: Vec<(String, String)>,
}

/// The life of a helper: carries out the order on standard input and ends as the command did.
pub fn perform_step() -> io::Result<i32> {
    process::die_with_parent()?;
    let order: StepOrder = serde_json::from_reader(io::stdin().lock()).map_err(io::Error::other)?;
    isolated::run(&order.plan, &order.argv, &order.env)
}

/// The directories of a build. Names are short, since the kernel takes only so much about an
/// overlay: `base` is a link to the root below, `1`, `2`, ... are what was written on top.
#[derive(Debug)]
pub(super) struct Room {
    directory: PathBuf,
    uppers: usize,
}

impl Room {
    pub(super) fn new(directory: PathBuf, base: &Path) -> Result<Room, ImageError> {
        symlink(base, directory.join("base")).map_err(ImageError::file(&directory))?;
        for name in ["root", "empty"] {
            fs::create_dir(directory.join(name)).map_err(ImageError::file(&directory))?;
        }
        Ok(Room { directory, uppers: 0 })
    }

    /// From now on commands write here.
    pub(super) fn next_upper(&mut self) -> Result<PathBuf, ImageError> {
        self.uppers += 1;
        let upper = self.directory.join(self.uppers.to_string());
        for path in [&upper, &self.directory.join(format!("w{}", self.uppers))] {
            places::directory(path)?;
        }
        Ok(upper)
    }

    /// What there is so far, the newest first.
    pub(super) fn view(&self) -> Vec<PathBuf> {
        let uppers = (1..=self.uppers).rev().map(|n| self.directory.join(n.to_string()));
        uppers.chain([self.directory.join("base")]).collect()
    }

    pub(super) fn run(
        &self,
        helper: &Path,
        host: &Host,
        command: &[&str],
        progress: &dyn Progress,
    ) -> Result<(), ImageError> {
        let mut env = vec![
            ("PATH", PATH),
            ("HOME", "/root"),
            ("LANG", "C.UTF-8"),
            ("DEBIAN_FRONTEND", "noninteractive"),
            ("TERM", "dumb"),
            // Compiled Python is then the same each time.
            ("PYTHONHASHSEED", "0"),
        ];
        let own = host.env();
        env.extend(own.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        // The program is looked for by a shell inside, which knows the path; its words are not read.
        let mut argv = ["/bin/sh", "-c", "exec \"$@\"", "step"].map(str::to_owned).to_vec();
        argv.extend(command.iter().map(|word| (*word).to_owned()));
        let order = StepOrder { plan: self.plan(host), argv, env: env.iter().map(owned).collect() };
        let order = serde_json::to_vec(&order).expect("plans serialize to JSON");
        let (lines, success) = watch(Command::new(helper).arg("build-step"), &order, progress)?;
        if success {
            return Ok(());
        }
        let shown: Vec<&str> = command.iter().take(6).copied().collect();
        let dots = if command.len() > 6 { " ..." } else { "" };
        Err(ImageError::Build(format!("`{}{dots}` failed:\n{lines}", shown.join(" "))))
    }

    fn plan(&self, host: &Host) -> Plan {
        let root = self.directory.join("root");
        let lowers: Vec<String> = (1..self.uppers).rev().map(|n| n.to_string()).collect();
        let lower = lowers.into_iter().chain(["base".to_owned()]).collect::<Vec<_>>().join(":");
        let directory = |path: PathBuf| Step::MakeDir { path, mode: 0o755, owner: None };
        let tmpfs =
            |path: PathBuf| Step::Tmpfs { target: path, size: 16 << 20, inodes: 4096, mode: 0o755 };
        let mut steps = vec![
            Step::SetHostname { name: "build".into() },
            Step::PrivateMounts,
            Step::ChangeDir { path: self.directory.clone() },
            Step::Overlay {
                lower,
                upper: self.uppers.to_string(),
                work: format!("w{}", self.uppers),
                target: root.clone(),
            },
            Step::Proc { target: root.join("proc") },
            tmpfs(root.join("dev")),
            tmpfs(root.join("run")),
        ];
        for name in DEVICES {
            let target = root.join("dev").join(name);
            steps.push(Step::MakeFile { path: target.clone(), contents: String::new() });
            let source = Source::Path(Path::new("/dev").join(name));
            steps.push(Step::Bind { source, target, access: Access::DEVICE });
        }
        for (name, to) in [("fd", "/proc/self/fd"), ("ptmx", "pts/ptmx")] {
            steps.push(Step::Symlink { path: root.join("dev").join(name), to: to.into() });
        }
        steps.push(directory(root.join("dev/pts")));
        steps.push(Step::Devpts { target: root.join("dev/pts"), terminals: 64 });
        steps.push(Step::MakeDir { path: root.join("dev/shm"), mode: 0o1777, owner: None });
        steps.extend(host.steps(&root));
        steps.extend([
            Step::PivotRoot { root },
            Step::ChangeDir { path: "/".into() },
            Step::NoCoreDumps,
            Step::LimitCapabilities,
            Step::NoNewPrivileges,
        ]);
        let namespaces = vec![Namespace::Mount, Namespace::Pid, Namespace::Ipc, Namespace::Uts];
        Plan { namespaces, ids: None, steps }
    }
}

/// Runs a program to its end, telling what it says; returns the last of it.
pub(super) fn watch(
    command: &mut Command,
    input: &[u8],
    progress: &dyn Progress,
) -> Result<(String, bool), ImageError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |cause| ImageError::File { path: program.clone().into(), cause };
    let (reader, writer) = io::pipe().map_err(failed)?;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(writer.try_clone().map_err(failed)?)
        .stderr(writer)
        .spawn()
        .map_err(failed)?;
    // The command holds our end of the pipe as well.
    *command = Command::new("true");
    if let Some(mut stdin) = child.stdin.take() {
        // One that ended already says why.
        let _ = stdin.write_all(input);
    }
    let mut last: VecDeque<String> = VecDeque::new();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        let n = io::Read::take(&mut reader, MAX_LINE as u64).read_until(b'\n', &mut line);
        if n.map_err(failed)? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        progress.detail(&text);
        if last.len() == SHOWN_LINES {
            last.pop_front();
        }
        last.push_back(text);
    }
    let status = child.wait().map_err(failed)?;
    Ok((Vec::from(last).join("\n"), status.success()))
}
