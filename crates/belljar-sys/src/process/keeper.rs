//! Keepers: processes that keep everything a command starts together, so that it can be stopped.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::process::WaitOptions;

use super::{
    Command, EXEC_TIMEOUT, Ended, Forked, become_program, close_all_but, ended_by, exit_now,
    forget_signal_handlers, fork_process, move_up, random_name, readable_within, report_errno,
    signal,
};

/// A command, and its keeper: the process above it that adopts its orphans.
///
/// Processes that a command leaves behind (a daemon that detached itself, a child whose parent ended) would otherwise
/// become children of PID 1, and their origin would be lost. While the keeper lives, everything that the command ever
/// started is below it.
#[derive(Debug)]
pub struct Kept {
    pub pid: u32,
    pub keeper: u32,
    /// Delivers how the command ended ([`read_ended`]). The keeper ends when this is closed, and the processes that
    /// are left become children of PID 1.
    pub leash: UnixStream,
    /// Only where keepers cannot adopt orphans: a mark in the environment of everything that the command starts,
    /// unless a program removes it.
    pub mark: Option<String>,
}

/// The length of a message on the leash.
pub const ENDED_SIZE: usize = 8;

/// Decodes the keeper's message about the end of its command.
#[must_use]
pub fn read_ended(message: [u8; ENDED_SIZE]) -> Ended {
    let [k0, k1, k2, k3, v0, v1, v2, v3] = message;
    let value = i32::from_ne_bytes([v0, v1, v2, v3]);
    match i32::from_ne_bytes([k0, k1, k2, k3]) {
        0 => Ended::Exited(value),
        _ => Ended::Signaled(value),
    }
}

fn write_ended(ended: Ended) -> [u8; ENDED_SIZE] {
    let (kind, value) = match ended {
        Ended::Exited(code) => (0i32, code),
        Ended::Signaled(signal) => (1, signal),
    };
    let mut message = [0; ENDED_SIZE];
    message[..4].copy_from_slice(&kind.to_ne_bytes());
    message[4..].copy_from_slice(&value.to_ne_bytes());
    message
}

/// Starts a program like [`super::spawn`], below a keeper.
pub fn spawn_kept(command: &Command<'_>) -> io::Result<Kept> {
    let mut env = Vec::new();
    let mark = (!adopts_orphans()).then(random_name);
    let command = match &mark {
        Some(mark) => {
            env.extend_from_slice(command.env);
            env.push((KEEPER_VARIABLE.to_owned(), mark.clone()));
            &Command { env: &env, ..*command }
        }
        None => command,
    };
    let (report, failed) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let failed = move_up(failed)?;
    let (leash, other_end) = UnixStream::pair()?;
    match fork_process()? {
        Forked::Child => keep(command, failed, other_end.into()),
        Forked::Parent(keeper) => {
            drop((failed, other_end));
            match read_start(&report) {
                Ok(pid) => Ok(Kept { pid, keeper, leash, mark }),
                Err(error) => {
                    let _ = signal(keeper, libc::SIGKILL);
                    Err(error)
                }
            }
        }
    }
}

/// A variable that shows under which keeper a process began, where keepers cannot adopt orphans.
const KEEPER_VARIABLE: &str = "BELLJAR_KEEPER";

/// Whether a process can adopt the orphans below it. Older versions of gVisor do not support that.
fn adopts_orphans() -> bool {
    let mut answer: libc::c_int = 0;
    // SAFETY: the kernel writes one integer, and `answer` is a live integer.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut answer, 0, 0, 0) == 0 }
}

/// Whether a process, or one above it, was started with this mark.
#[must_use]
pub fn is_marked(pid: u32, mark: &str) -> bool {
    crate::procfs::has_variable(pid, KEEPER_VARIABLE, mark)
}

/// Reads the pid of the command, which it writes before it becomes the program, and the errno if that fails.
fn read_start(report: impl AsFd) -> io::Result<u32> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 8];
    loop {
        if !readable_within(&report, EXEC_TIMEOUT)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match rustix::io::read(&report, &mut buffer)? {
            0 => break,
            n => bytes.extend_from_slice(&buffer[..n]),
        }
    }
    match bytes[..] {
        [p0, p1, p2, p3] => Ok(u32::from_ne_bytes([p0, p1, p2, p3])),
        [.., e0, e1, e2, e3] => {
            Err(io::Error::from_raw_os_error(i32::from_ne_bytes([e0, e1, e2, e3])))
        }
        _ => Err(io::Error::other("the process ended before it could start the program")),
    }
}

/// Runs the keeper, a fork that uses only these descriptors of its parent.
fn keep(command: &Command<'_>, failed: OwnedFd, leash: OwnedFd) -> ! {
    forget_signal_handlers();
    // SAFETY: integers only. If it fails the command still runs, and its orphans become children of PID 1.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    let pid = match fork_process() {
        Ok(Forked::Child) => {
            let own = std::process::id();
            let _ = rustix::io::write(&failed, &own.to_ne_bytes());
            let error = become_program(command);
            report_errno(&failed, &error);
            exit_now(127);
        }
        Ok(Forked::Parent(pid)) => pid,
        Err(error) => {
            let _ = rustix::io::write(&failed, &0u32.to_ne_bytes());
            report_errno(&failed, &error);
            exit_now(127);
        }
    };
    // SAFETY: this copy of the process never returns, so no owner of a descriptor is used again.
    // It closes `failed` too, which our parent waits for.
    unsafe { close_all_but(&[leash.as_raw_fd()]) };
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended.as_raw_pid().unsigned_abs() == pid => {
                if let Some(ended) = ended_by(status) {
                    let _ = rustix::io::write(&leash, &write_ended(ended));
                    break;
                }
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => exit_now(1),
        }
    }
    // Wait until the parent closes the leash: before that it may want to end the processes below us.
    let _ = rustix::io::retry_on_intr(|| rustix::io::read(&leash, &mut [0u8; 1]));
    exit_now(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_command_ended_survives_the_leash() {
        for ended in [Ended::Exited(0), Ended::Exited(255), Ended::Signaled(9)] {
            assert_eq!(read_ended(write_ended(ended)), ended);
        }
    }
}
