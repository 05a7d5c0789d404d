//! Starts, finds and ends processes.

mod keeper;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};

use crate::plan::Namespace;
pub use keeper::{ENDED_SIZE, Kept, is_marked, read_ended, spawn_kept};

/// Whether this process is the parent or the child of a clone.
#[derive(Debug)]
pub enum Forked<P> {
    Parent(P),
    Child,
}

/// A process we started.
#[derive(Debug)]
pub struct Started {
    pub pid: u32,
    pub pidfd: OwnedFd,
}

/// Continues in two processes, the child in new namespaces.
///
/// The caller must be single-threaded: the child is a copy of this process without other threads, and locks that they
/// held would never be released.
pub fn clone_process(namespaces: &[Namespace]) -> io::Result<Forked<Started>> {
    insist_on_one_thread()?;
    let flags = namespaces.iter().fold(libc::CLONE_PIDFD, |flags, n| flags | flag_of(*n));
    let mut pidfd: RawFd = -1;
    // SAFETY: all-zero is a valid `clone_args`.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = u64::try_from(flags).map_err(io::Error::other)?;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = u64::try_from(libc::SIGCHLD).map_err(io::Error::other)?;
    // SAFETY: the structure and the place for the pidfd are live; no memory is shared and no stack
    // is given, so this behaves as fork does. Being single-threaded, the child may go on using
    // everything it inherits.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    match pid {
        0 => Ok(Forked::Child),
        pid if pid > 0 => Ok(Forked::Parent(Started {
            pid: u32::try_from(pid).map_err(io::Error::other)?,
            // SAFETY: the kernel just stored a descriptor there that nothing else owns.
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
        })),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Continues in two processes, in the present namespaces. The caller must be single-threaded, as for [`clone_process`].
/// The guest uses this: its own seccomp filter refuses clone3.
pub fn fork_process() -> io::Result<Forked<u32>> {
    insist_on_one_thread()?;
    // SAFETY: single-threaded, so the child may go on using everything it inherits.
    match unsafe { libc::fork() } {
        0 => Ok(Forked::Child),
        pid if pid > 0 => Ok(Forked::Parent(pid.unsigned_abs())),
        _ => Err(io::Error::last_os_error()),
    }
}

fn insist_on_one_thread() -> io::Result<()> {
    assert_eq!(crate::procfs::own_threads()?, 1, "only a single-threaded process may be forked");
    Ok(())
}

fn flag_of(namespace: Namespace) -> libc::c_int {
    match namespace {
        Namespace::User => libc::CLONE_NEWUSER,
        Namespace::Mount => libc::CLONE_NEWNS,
        Namespace::Pid => libc::CLONE_NEWPID,
        Namespace::Net => libc::CLONE_NEWNET,
        Namespace::Ipc => libc::CLONE_NEWIPC,
        Namespace::Uts => libc::CLONE_NEWUTS,
    }
}

/// This process is killed when its parent ends.
pub fn die_with_parent() -> io::Result<()> {
    let signal = Some(Signal::KILL);
    Ok(rustix::process::set_parent_process_death_signal(signal)?)
}

/// Moves this process into new user and mount namespaces. It must be single-threaded.
pub fn unshare_user_and_mounts() -> io::Result<()> {
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)
}

/// Moves this thread, and what it starts, into a new, empty network namespace.
pub fn unshare_network() -> io::Result<()> {
    unshare(libc::CLONE_NEWNET)
}

pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes an integer. No other thread shares our descriptors: the process has one thread.
    let result = unsafe { libc::unshare(flags) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Ends this process at once, without exit handlers.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: never returns and touches no memory of ours.
    unsafe { libc::_exit(status) }
}

/// Closes every descriptor but the standard three and those in `keep`.
///
/// # Safety
///
/// Owners of closed descriptors must never use them again: call this only in a child that continues with nothing but `keep`.
unsafe fn close_all_but(keep: &[RawFd]) {
    let mut keep: Vec<_> = keep.iter().copied().filter(|&fd| fd > 2).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep.into_iter().chain([RawFd::MAX]) {
        if first < fd {
            // SAFETY: integers only; the caller vouches for the owners.
            unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) };
        }
        first = fd.saturating_add(1);
    }
}

/// Closes all inherited descriptors except the given ones, and connects standard input, output and error with `/dev/null`. For
/// a child that continues as another program.
pub fn detach_from_parent(keep: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
    let null = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    for target in 0..3 {
        // SAFETY: both are descriptors; 0 to 2 are standard streams, which no Rust value owns.
        if unsafe { libc::dup2(null.as_raw_fd(), target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let raw: Vec<RawFd> = keep.into_iter().map(IntoRawFd::into_raw_fd).collect();
    // SAFETY: the caller goes on with `keep` only, as documented.
    unsafe { close_all_but(&raw) };
    // `null` was closed with the rest.
    let _ = null.into_raw_fd();
    // SAFETY: these were given to us as owned and stayed open.
    Ok(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect())
}

/// Replaces this process by a program that gets exactly these descriptors as 0, 1, 2, 3, ...
/// Returns only to report a failure.
pub fn execute(argv: &[String], env: &[(String, String)], fds: &[BorrowedFd<'_>]) -> io::Error {
    match try_execute(argv, env, fds) {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

fn try_execute(
    argv: &[String],
    env: &[(String, String)],
    fds: &[BorrowedFd<'_>],
) -> io::Result<std::convert::Infallible> {
    let argv = argv.iter().map(|a| CString::new(a.as_str())).collect::<Result<Vec<_>, _>>()?;
    let env = env
        .iter()
        .map(|(key, value)| CString::new(format!("{key}={value}")))
        .collect::<Result<Vec<_>, _>>()?;
    let program = argv.first().ok_or_else(|| io::Error::other("no program given"))?;
    // Duplicates above every target first, so that no dup2 below overwrites one still needed.
    let above = RawFd::try_from(fds.len()).map_err(io::Error::other)? + 3;
    let sources = fds
        .iter()
        .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, above))
        .collect::<Result<Vec<_>, _>>()?;
    for (target, source) in (0..).zip(&sources) {
        // SAFETY: `source` is open; the target is below every descriptor still of use.
        if unsafe { libc::dup2(source.as_raw_fd(), target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // The descriptors are marked and not closed: if the exec fails, the error must still be reported.
    // SAFETY: integers only; marked descriptors stay open until the exec succeeds.
    unsafe {
        libc::syscall(libc::SYS_close_range, above - 3, RawFd::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    let pointers = |strings: &[CString]| {
        strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (argv_pointers, env_pointers) = (pointers(&argv), pointers(&env));
    // SAFETY: both arrays end with a null pointer and point to live C strings.
    unsafe { libc::execve(program.as_ptr(), argv_pointers.as_ptr(), env_pointers.as_ptr()) };
    Err(io::Error::last_os_error())
}

/// A program for a new process of the guest.
#[derive(Debug)]
pub struct Command<'a> {
    pub argv: &'a [String],
    pub env: &'a [(String, String)],
    pub cwd: &'a str,
    /// Become 0, 1, 2, 3, ... of the new process.
    pub fds: &'a [BorrowedFd<'a>],
    /// The first of them is a terminal, which becomes the controlling terminal.
    pub on_terminal: bool,
}

/// The command with the full path of its program: a name without a slash is looked up on the `PATH` of its environment.
pub fn find_program(argv: &[String], env: &[(String, String)]) -> io::Result<Vec<String>> {
    let Some(name) = argv.first().filter(|name| !name.contains('/')) else {
        return Ok(argv.to_vec());
    };
    let path = env.iter().find(|(key, _)| key == "PATH").map_or("", |(_, value)| value.as_str());
    let candidates = path.split(':').filter(|directory| directory.starts_with('/'));
    let mut candidates = candidates.map(|directory| format!("{directory}/{name}"));
    let is_program = |path: &String| {
        let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
        is_file && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    let program = candidates.find(is_program).ok_or(io::ErrorKind::NotFound)?;
    Ok(std::iter::once(program).chain(argv[1..].iter().cloned()).collect())
}

/// Starts a program in a new session and returns its pid. The caller is single-threaded and reaps all children itself.
pub fn spawn(command: &Command<'_>) -> io::Result<u32> {
    let (report, failed) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let failed = move_up(failed)?;
    match fork_process()? {
        Forked::Child => {
            let error = become_program(command);
            report_errno(&failed, &error);
            exit_now(127);
        }
        Forked::Parent(pid) => {
            drop(failed);
            let mut errno = [0; 4];
            if !readable_within(&report, EXEC_TIMEOUT)? {
                // Code inside may have stopped it; do not wait for it.
                let _ = signal(pid, libc::SIGKILL);
                return Err(io::ErrorKind::TimedOut.into());
            }
            // The pipe closes by itself when the exec succeeds.
            match rustix::io::read(&report, &mut errno)? {
                4 => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
                _ => Ok(pid),
            }
        }
    }
}

/// Runs a task in a fork of this process, which keeps only the standard three descriptors and `keep`. Returns its pid and a pipe
/// with the bytes that the task returns. The caller is single-threaded and reaps all children itself.
///
/// The task may take any time and memory without affecting the caller.
pub fn work(
    keep: Vec<OwnedFd>,
    task: impl FnOnce(Vec<OwnedFd>) -> Vec<u8>,
) -> io::Result<(u32, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match fork_process()? {
        Forked::Parent(pid) => Ok((pid, reader)),
        Forked::Child => {
            forget_signal_handlers();
            let mut kept: Vec<RawFd> = keep.iter().map(AsRawFd::as_raw_fd).collect();
            kept.push(writer.as_raw_fd());
            // SAFETY: this fork continues with nothing but these, and never returns to the owners of the others.
            unsafe { close_all_but(&kept) };
            // A panic must not unwind into the caller's code.
            let task = std::panic::AssertUnwindSafe(move || task(keep));
            let Ok(report) = std::panic::catch_unwind(task) else { exit_now(101) };
            let mut rest = &report[..];
            while let Ok(written @ 1..) =
                rustix::io::retry_on_intr(|| rustix::io::write(&writer, rest))
            {
                rest = &rest[written..];
            }
            exit_now(0);
        }
    }
}

fn report_errno(failed: &OwnedFd, error: &io::Error) {
    let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
    let _ = rustix::io::write(failed, &errno.to_ne_bytes());
}

/// From fork to exec takes a millisecond.
const EXEC_TIMEOUT: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };

fn readable_within(fd: impl AsFd, limit: rustix::event::Timespec) -> io::Result<bool> {
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&limit)))? > 0)
}

/// Moves a descriptor to a high number, where no program expects one.
pub fn move_up(fd: OwnedFd) -> io::Result<OwnedFd> {
    const ABOVE: RawFd = 100;
    Ok(rustix::io::fcntl_dupfd_cloexec(&fd, ABOVE)?)
}

fn become_program(command: &Command<'_>) -> io::Error {
    // SAFETY: no arguments; a fresh child is never a group leader, so this succeeds.
    unsafe { libc::setsid() };
    if command.on_terminal
        && let Some(terminal) = command.fds.first()
        && let Err(errno) = rustix::process::ioctl_tiocsctty(terminal)
    {
        return errno.into();
    }
    // SAFETY: restores defaults that the guest's async runtime changed; both are plain calls.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    if let Err(errno) = rustix::process::chdir(command.cwd) {
        return errno.into();
    }
    execute(command.argv, command.env, command.fds)
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Exited(i32),
    Signaled(i32),
}

impl Ended {
    /// The number a shell would report.
    #[must_use]
    pub fn exit_code(self) -> i32 {
        match self {
            Ended::Exited(code) => code,
            Ended::Signaled(signal) => 128 + signal,
        }
    }
}

/// Reaps any child that has ended; `None` if there is none now.
pub fn reap_any() -> Option<(u32, Ended)> {
    loop {
        let (pid, status): (Pid, WaitStatus) =
            rustix::process::wait(WaitOptions::NOHANG).ok().flatten()?;
        // Stopped or continued: still alive.
        let Some(ended) = ended_by(status) else { continue };
        return Some((pid.as_raw_pid().unsigned_abs(), ended));
    }
}

pub(crate) fn ended_by(status: WaitStatus) -> Option<Ended> {
    let exited = status.exit_status().map(Ended::Exited);
    exited.or_else(|| status.terminating_signal().map(Ended::Signaled))
}

/// Signals a process by its pid. Only for children that were not reaped yet, whose pid cannot have been reused.
pub fn signal(pid: u32, signal: i32) -> io::Result<()> {
    kill_raw(i32::try_from(pid).map_err(io::Error::other)?, signal)
}

/// Signals the process group that `pid` leads.
pub fn signal_group(pid: u32, signal: i32) -> io::Result<()> {
    kill_raw(-i32::try_from(pid).map_err(io::Error::other)?, signal)
}

fn kill_raw(target: i32, signal: i32) -> io::Result<()> {
    // SAFETY: integers only.
    let result = unsafe { libc::kill(target, signal) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Kills the process of a pidfd, and never another one that got the same pid.
pub fn kill_by_pidfd(pidfd: impl AsFd) -> io::Result<()> {
    match rustix::process::pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

pub fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Processes below this one whose parents end become its children, as those of a PID 1 do. They must be reaped.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: integers only.
    let result = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Standard input, output and error of this process.
#[must_use]
pub fn standard_streams() -> [BorrowedFd<'static>; 3] {
    [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
}

/// Lets Linux reap children at once; their pidfds still report the end. Programs that are executed later have the default
/// behaviour.
pub fn reap_automatically() -> io::Result<()> {
    // SAFETY: all-zero is a valid `sigaction`: the default action and no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = libc::SIG_DFL;
    action.sa_flags = libc::SA_NOCLDWAIT;
    // SAFETY: the structure is live, and no handler of ours is involved.
    let result = unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Removes every signal handler, including those of the Rust runtime. Linux then delivers no signal from inside its namespace
/// to PID 1.
pub fn forget_signal_handlers() {
    for signal in 1..=64 {
        // A broken pipe stays an error of the write.
        if signal != libc::SIGPIPE {
            // SAFETY: integers only. It fails for SIGKILL, SIGSTOP and libc's own, as intended.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// Makes Linux kill this process, and all it will start, before others when the machine runs out of memory. A process without
/// privileges cannot undo it.
pub fn prefer_as_oom_victim(pid: u32) -> io::Result<()> {
    std::fs::write(format!("/proc/{pid}/oom_score_adj"), "500")
}

/// Leaves the terminal and the process group of our parent: a Ctrl-C there must not reach this process.
pub fn leave_terminal() {
    // It fails only for the leader of a group, which has nothing to leave.
    let _ = rustix::process::setsid();
}

/// Takes the descriptor that the parent passed as standard input, and puts `/dev/null` in its place.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let taken = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(taken)
}

/// A name that cannot be guessed: 128 random bits in hexadecimal.
#[must_use]
pub fn random_name() -> String {
    random_bytes::<16>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Random bytes, good for a key. At most 256, which Linux returns in one call.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    const { assert!(N <= 256) };
    let mut bytes = [0u8; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .expect("the kernel has random bytes once it has booted");
    bytes
}
