//! One command in a fresh process.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::exec::{ExecSpec, KernelState, Status};
use belljar_sys::process::{self, Ended};
use belljar_sys::procfs;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::time::{sleep, timeout};

use crate::Guest;
use crate::execs::{Ending, Exec};
use crate::output::Output;
use crate::reaper::End;
use crate::time_limit;

pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGCONT: i32 = 18;
pub(crate) const SIGSTOP: i32 = 19;

/// How many times the process tree is searched: new processes may appear while their parents are killed. After
/// this many sweeps all are found, or the pids limit has stopped new ones.
const KILL_SWEEPS: usize = 16;

/// How long to wait for killed processes. Usually they are gone at once; on an overloaded machine they may not
/// be.
pub(crate) const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// How often to check whether killed processes are dead.
const KILL_PACE: Duration = Duration::from_millis(1);

/// Starts the command. A task supervises it and puts its output and its end into `exec`.
pub(crate) fn start(
    guest: &Rc<Guest>,
    spec: &ExecSpec,
    argv: &[String],
    cwd: &str,
    stdin: Vec<u8>,
    exec: &Rc<Exec>,
) -> io::Result<()> {
    let oom_before = guest.oom_kills();
    let (output, write_ends) = Output::new()?;
    output.attach(exec);
    let (stdin_read, stdin_write) = io::pipe()?;
    let fds = [stdin_read.as_fd(), write_ends.stdout.as_fd(), write_ends.stderr.as_fd()];
    let kept = process::spawn_kept(&process::Command {
        argv,
        env: &spec.env,
        cwd,
        fds: &fds,
        on_terminal: false,
    })?;
    let keeper_end = guest.reaper.watch(kept.keeper);
    drop((stdin_read, write_ends));
    let process::Kept { pid, keeper, leash, mark } = kept;
    leash.set_nonblocking(true)?;
    let leash = UnixStream::from_std(leash)?;

    exec.input.begin_with(stdin);
    let feed = pipe::Sender::from_owned_fd(stdin_write.into())?;
    tokio::task::spawn_local(Rc::clone(exec).pump_input(feed));
    tokio::task::spawn_local(Rc::clone(&output).pump());
    let supervised = Supervised { pid, keeper, keeper_end, mark, leash, output, oom_before };
    let (guest, exec) = (Rc::clone(guest), Rc::clone(exec));
    let (limit, grace) =
        (Duration::from_millis(spec.timeout_ms), Duration::from_millis(spec.grace_ms));
    tokio::task::spawn_local(async move {
        let ending = supervised.supervise(&guest, &exec, limit, grace).await;
        exec.finish(ending);
    });
    Ok(())
}

struct Supervised {
    pid: u32,
    /// The parent of the command and of everything it starts, see [`process::Kept`].
    keeper: u32,
    keeper_end: End,
    mark: Option<String>,
    leash: UnixStream,
    output: Rc<Output>,
    oom_before: u64,
}

impl Supervised {
    async fn supervise(
        mut self,
        guest: &Guest,
        exec: &Exec,
        limit: Duration,
        grace: Duration,
    ) -> Ending {
        let (pid, keeper) = (self.pid, self.keeper);
        let mut interrupt = exec.interrupt.subscribe();
        let mut ended = pin!(await_end(&mut self.leash, pid, guest));
        let (mut how, stopped_by) = tokio::select! {
            biased;
            how = &mut ended => (Some(how), None),
            () = time_limit::elapsed(limit) => (None, Some(Status::Timeout)),
            _ = interrupt.wait_for(|asked| *asked) => (None, Some(Status::Interrupted)),
        };
        if stopped_by.is_some() {
            let _ = process::signal_group(pid, SIGINT);
            how = timeout(grace, &mut ended).await.ok();
            // Also if the command has ended: processes that it left behind are killed too.
            if self.keeper_end.now().is_none() {
                kill_kept(keeper, self.mark.as_deref()).await;
            } else if how.is_none() {
                kill_kept(pid, self.mark.as_deref()).await;
            }
            if how.is_none() {
                let _ = timeout(KILL_TIMEOUT, self.keeper_end.ended()).await;
            }
        }
        // The command itself has ended; processes that it left behind may still write.
        self.output.drain();
        let out_of_memory = guest.oom_kills() > self.oom_before;
        ending(how.unwrap_or(Ended::Signaled(SIGKILL)), stopped_by, out_of_memory)
    }
}

/// Waits for the end of the command.
pub(crate) async fn await_end(leash: &mut UnixStream, pid: u32, guest: &Guest) -> Ended {
    let mut message = [0; process::ENDED_SIZE];
    if leash.read_exact(&mut message).await.is_ok() {
        return process::read_ended(message);
    }
    // The keeper was killed, so its command became a child of the guest.
    match guest.reaper.adopt(pid) {
        Some(end) => end.ended().await,
        None => Ended::Signaled(SIGKILL),
    }
}

fn ending(ended: Ended, stopped_by: Option<Status>, out_of_memory: bool) -> Ending {
    let (status, exit_code) = match (stopped_by, ended) {
        (Some(Status::Timeout), _) => (Status::Timeout, 124),
        (Some(status), _) => (status, 130),
        (None, Ended::Signaled(SIGKILL)) if out_of_memory => (Status::Oom, 137),
        (None, Ended::Exited(0)) => (Status::Ok, 0),
        (None, ended) => (Status::Error, ended.exit_code()),
    };
    let kernel_state = KernelState::Kept;
    Ending { status, exit_code, reason: None, kernel_state, execution_count: 0 }
}

/// Processes that got SIGKILL, with their start times: pids are reused.
#[derive(Debug, Default)]
pub(crate) struct Killed(HashMap<u32, u64>);

impl Killed {
    fn kill(&mut self, pid: u32) {
        if let Ok(began) = procfs::start_time(pid) {
            self.0.insert(pid, began);
        }
        let _ = process::signal(pid, SIGKILL);
    }

    /// Waits until all of them are dead. On a busy machine a process runs on for a moment after SIGKILL, and a
    /// client that has the result of its command must not find the command still running.
    pub(crate) async fn are_dead(self) {
        let is_alive = |(&pid, &began): (&u32, &u64)| {
            procfs::start_time(pid).is_ok_and(|now| now == began) && !procfs::is_zombie(pid)
        };
        let all_dead = async {
            while self.0.iter().any(is_alive) {
                sleep(KILL_PACE).await;
            }
        };
        let _ = timeout(KILL_TIMEOUT, all_dead).await;
    }
}

/// Kills a keeper, or its command, and everything that the command started, and waits until they are dead.
pub(crate) async fn kill_kept(root: u32, mark: Option<&str>) {
    let mut killed = kill_tree(root, &[], false);
    for _ in 0..KILL_SWEEPS {
        let Some(mark) = mark else { break };
        let mut doomed: Vec<u32> = procfs::parents().into_keys().collect();
        doomed.retain(|&pid| process::is_marked(pid, mark) && !procfs::is_zombie(pid));
        if doomed.is_empty() {
            break;
        }
        doomed.into_iter().for_each(|pid| killed.kill(pid));
    }
    killed.are_dead().await;
}

/// Kills a process and its descendants; with `orphans` also every process that lost its parent and
/// is not among `spare`.
pub(crate) fn kill_tree(root: u32, spare: &[u32], orphans: bool) -> Killed {
    const INIT: u32 = 1;
    let mut killed = Killed::default();
    // While it is stopped, the root cannot start anything new.
    let _ = process::signal(root, SIGSTOP);
    for _ in 0..KILL_SWEEPS {
        let parents = procfs::parents();
        let mut doomed = procfs::descendants(&parents, root);
        if orphans {
            let strays: Vec<u32> = parents
                .iter()
                .filter(|(pid, parent)| **parent == INIT && **pid != root && !spare.contains(pid))
                .map(|(pid, _)| *pid)
                .collect();
            for stray in strays {
                doomed.extend(procfs::descendants(&parents, stray));
                doomed.push(stray);
            }
        }
        // Zombies stay visible until we reap them, which happens after this.
        doomed.retain(|&pid| !procfs::is_zombie(pid));
        if doomed.is_empty() {
            break;
        }
        doomed.into_iter().for_each(|pid| killed.kill(pid));
    }
    killed.kill(root);
    killed
}
