//! Runs the commands of a build: as root on an overlay over the layers so far, in their own mount,
//! PID, IPC and UTS namespaces, with the network of the host.
//!
//! A new process of our binary makes the namespaces, because a process with threads must not fork.
//! It ends when we end, and then everything that it started ends too.

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

/// How many of the last lines of a failed command are shown.
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

/// The main function of a helper: runs the order from standard input and returns the exit status of
/// the command.
pub fn perform_step() -> io::Result<i32> {
    process::die_with_parent()?;
    let order: StepOrder = serde_json::from_reader(io::stdin().lock()).map_err(io::Error::other)?;
    isolated::run(&order.plan, &order.argv, &order.env)
}

/// The directories of a build. Names are short, because the kernel limits the length of an
/// overlay's mount options. `base` is a link to the root of the base; `1`, `2`, ... are the upper
/// directories.
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

    /// Adds an upper directory; commands write there from now on.
    pub(super) fn next_upper(&mut self) -> Result<PathBuf, ImageError> {
        self.uppers += 1;
        let upper = self.directory.join(self.uppers.to_string());
        for path in [&upper, &self.directory.join(format!("w{}", self.uppers))] {
            places::directory(path)?;
        }
        Ok(upper)
    }

    /// The directories of all layers so far, the newest first.
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
            // So that compiled Python is the same in each build.
            ("PYTHONHASHSEED", "0"),
        ];
        let own = host.env();
        env.extend(own.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        // A shell inside finds the program on its PATH. It does not interpret the arguments.
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

/// Runs a program to its end and reports its output as progress. Returns the last lines, and
/// whether it succeeded.
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
    // `command` still holds the write end of the pipe; replacing it closes that end.
    *command = Command::new("true");
    if let Some(mut stdin) = child.stdin.take() {
        // If the program has ended already, its output says why.
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
