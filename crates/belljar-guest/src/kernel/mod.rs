//! A kernel: an interpreter that keeps its state from one cell to the next, and its supervision.
//!
//! ```text
//!           prepared or spawned
//!                  │
//!              Starting ──fatal, dies──▶ Dead
//!                  │ hello                ▲
//!                Idle ◀──done── Busy      │
//!                  └────cell────▶┴──dies──┘
//! ```
//!
//! [`Dialect`] translates messages for each language.
//!
//! A cell ends in one of four ways: the kernel reports that it is done; the kernel dies; the time is up; or
//! the host interrupts. In the last two cases the process group gets SIGINT, repeatedly, because `system()`
//! ignores some; after a grace period the kernel and everything it started get SIGKILL. User code cannot
//! block the guest: no pipe is read to its end, no lock of the kernel is needed, and SIGKILL ends a stopped
//! process too.

mod cell;
mod inspect;
mod messages;
mod snapshot_socket;
mod spill;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_proto::guest::{Refusal, RefusalCode};
use belljar_proto::kernel::{CellStatus, ToKernel};
use belljar_sys::{channel, process, procfs};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Mutex, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::Guest;
use crate::command::{KILL_TIMEOUT, Killed, SIGCONT, SIGINT, SIGSTOP, kill_tree};
use crate::dialect::Dialect;
use crate::execs::Exec;
use crate::output::Output;
use crate::reaper::End;
use crate::reply::{failed, refuse};

/// SIGINT is repeated at this pace until the cell ends or the grace period is over.
const INTERRUPT_PACE: Duration = Duration::from_millis(200);

/// From fork to exec takes about a millisecond; all these checks together take a hundred.
const FORK_CHECKS: usize = 50;
const FORK_CHECK_PACE: Duration = Duration::from_millis(2);

/// A kernel that has not sent its hello by then is given up.
const START_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) phase: watch::Sender<Phase>,
    language: Language,
    output: Rc<Output>,
    dialect: RefCell<Dialect>,
    to_kernel: Mutex<OwnedWriteHalf>,
    /// Locked while the kernel works on a request: it does one thing at a time.
    turn: Mutex<()>,
    pid: Cell<Option<u32>>,
    end: RefCell<Option<End>>,
    current: RefCell<Option<Running>>,
    /// The request that waits for the variables.
    wants_state: RefCell<Option<oneshot::Sender<Vec<u8>>>>,
    /// The request that waits until values were moved to disk.
    wants_spilled: RefCell<Option<oneshot::Sender<Vec<u8>>>>,
    /// The request that waits until the kernel is ready to receive the socket.
    wants_snapshot_socket: RefCell<Option<oneshot::Sender<()>>>,
    /// The number of the last ping, and of the last that was answered.
    pings: Cell<u64>,
    pongs: watch::Sender<u64>,
}

/// The cell that runs, and the channels to its supervisor.
#[derive(Debug)]
struct Running {
    exec: Rc<Exec>,
    begun: watch::Sender<bool>,
    done: watch::Sender<Option<CellDone>>,
    /// The kernel waits for input, and a task already waits to deliver it.
    asked: Cell<bool>,
    /// The kernel reads its input as a stream, and the host was notified.
    streams: Cell<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    Idle { language_version: String },
    Busy { language_version: String },
    Dead { reason: String },
}

#[derive(Debug, Clone)]
struct CellDone {
    status: CellStatus,
    exit_code: i32,
    execution_count: u64,
}

/// The ends of a kernel's connections that its process gets.
#[derive(Debug)]
pub(crate) struct KernelEnds {
    pub(crate) control: OwnedFd,
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// Waits a moment for a condition.
async fn becomes_true(condition: impl Fn() -> bool) {
    for _ in 0..FORK_CHECKS {
        if condition() {
            return;
        }
        sleep(FORK_CHECK_PACE).await;
    }
}

impl Kernel {
    /// Makes the guest's half of a kernel. It replaces any other kernel of its language.
    pub(crate) fn prepare(guest: &Rc<Guest>, language: Language) -> io::Result<KernelEnds> {
        let (ours, theirs) = UnixStream::pair()?;
        let (output, write_ends) = Output::new()?;
        let stdin = std::fs::File::open("/dev/null")?;
        let (from_kernel, to_kernel) = ours.into_split();
        let kernel = Rc::new(Kernel {
            phase: watch::Sender::new(Phase::Starting),
            language,
            output,
            dialect: RefCell::new(Dialect::of(language)),
            to_kernel: Mutex::new(to_kernel),
            turn: Mutex::default(),
            pid: Cell::new(None),
            end: RefCell::default(),
            current: RefCell::default(),
            wants_state: RefCell::default(),
            wants_spilled: RefCell::default(),
            wants_snapshot_socket: RefCell::default(),
            pings: Cell::new(0),
            pongs: watch::Sender::new(0),
        });
        let replaced = guest.kernels.borrow_mut().insert(language, Rc::clone(&kernel));
        if let Some(old) = replaced {
            old.retire(guest);
        }
        tokio::task::spawn_local(Rc::clone(&kernel.output).pump());
        tokio::task::spawn_local(kernel.listen(Rc::clone(guest), from_kernel));
        Ok(KernelEnds {
            control: theirs.into_std()?.into(),
            stdin: stdin.into(),
            stdout: write_ends.stdout,
            stderr: write_ends.stderr,
        })
    }

    /// Another kernel replaces this one. A kernel that is still starting ends when it sends its hello.
    fn retire(&self, guest: &Guest) {
        // If it died on its own a moment ago, that is the reason to report.
        guest.reaper.collect();
        let ended = self.end.borrow().as_ref().and_then(End::now);
        let reason = ended.map_or_else(|| "was replaced".into(), messages::describe);
        let before = self.phase.send_replace(Phase::Dead { reason: reason.clone() });
        if matches!(before, Phase::Idle { .. }) {
            guest.lost_kernel.borrow_mut().insert(self.language, reason);
        }
        self.kill_everything(guest);
    }

    /// Starts a fresh interpreter, which is the slow way. The control socket becomes descriptor 3, or the
    /// standard input of a shell.
    pub(crate) fn spawn(
        guest: &Rc<Guest>,
        language: Language,
        argv: &[String],
        env: &[(String, String)],
        cwd: &str,
    ) -> io::Result<()> {
        let program = process::find_program(argv, env)?;
        let kernel = Kernel::execute(guest, language, &program, env, cwd, None)?;
        tokio::task::spawn_local(async move {
            let setup = kernel.dialect.borrow().setup();
            kernel.send(setup).await;
        });
        Ok(())
    }

    /// Starts the loader of a kernel, and returns the host's end of the socket over which the loader gets the
    /// snapshot that it becomes. The loader's end is descriptor 4.
    pub(crate) fn load(
        guest: &Rc<Guest>,
        language: Language,
        argv: &[String],
    ) -> io::Result<OwnedFd> {
        let (theirs, hosts) = channel::packet_pair()?;
        Kernel::execute(guest, language, argv, &[], "/", Some(theirs.as_fd()))?;
        Ok(hosts)
    }

    fn execute(
        guest: &Rc<Guest>,
        language: Language,
        argv: &[String],
        env: &[(String, String)],
        cwd: &str,
        snapshot_socket: Option<BorrowedFd<'_>>,
    ) -> io::Result<Rc<Kernel>> {
        let ends = Kernel::prepare(guest, language)?;
        let kernel = guest.kernels.borrow().get(&language).cloned();
        let kernel = kernel.ok_or_else(|| io::Error::other("the kernel is gone already"))?;
        // A blocking socket is what a plain interpreter expects.
        let control = std::os::unix::net::UnixStream::from(ends.control);
        control.set_nonblocking(false)?;
        let output = [ends.stdout.as_fd(), ends.stderr.as_fd()];
        let mut fds = if kernel.is_shell() {
            vec![control.as_fd(), output[0], output[1]]
        } else {
            vec![ends.stdin.as_fd(), output[0], output[1], control.as_fd()]
        };
        fds.extend(snapshot_socket);
        let command = process::Command { argv, env, cwd, fds: &fds, on_terminal: false };
        let pid = process::spawn(&command)?;
        *kernel.end.borrow_mut() = Some(guest.reaper.watch(pid));
        kernel.pid.set(Some(pid));
        Ok(kernel)
    }

    /// The process of the kernel, once it is known.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid.get()
    }

    fn is_shell(&self) -> bool {
        self.dialect.borrow().is_shell()
    }

    /// Waits until the kernel is ready, and returns the version of its language.
    pub(crate) async fn ready(&self) -> Result<String, String> {
        let mut phase = self.phase.subscribe();
        let settled = phase.wait_for(|phase| *phase != Phase::Starting);
        match timeout(START_TIMEOUT, settled).await {
            Ok(Ok(phase)) => match &*phase {
                Phase::Idle { language_version } | Phase::Busy { language_version } => {
                    Ok(language_version.clone())
                }
                Phase::Dead { reason } => Err(reason.clone()),
                Phase::Starting => Err("the kernel is still starting".into()),
            },
            _ => Err(format!("the kernel did not start within {} s", START_TIMEOUT.as_secs())),
        }
    }

    fn is_busy(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Busy { .. })
    }

    /// Changes the phase from idle to busy.
    pub(crate) fn occupy(&self) -> Result<(), Refusal> {
        self.available()?;
        self.phase.send_modify(|phase| {
            if let Phase::Idle { language_version } = phase {
                *phase = Phase::Busy { language_version: std::mem::take(language_version) };
            }
        });
        Ok(())
    }

    fn available(&self) -> Result<(), Refusal> {
        match &*self.phase.borrow() {
            Phase::Idle { .. } => Ok(()),
            Phase::Busy { .. } => {
                Err(refuse(RefusalCode::Busy, "the kernel runs another execution"))
            }
            Phase::Starting => Err(refuse(RefusalCode::NoKernel, "the kernel is still starting")),
            Phase::Dead { reason } => {
                Err(refuse(RefusalCode::NoKernel, format!("there is no live kernel: it {reason}")))
            }
        }
    }

    /// The kernel is free for the next cell.
    pub(crate) fn release(&self) {
        self.phase.send_modify(|phase| {
            if let Phase::Busy { language_version } = phase {
                *phase = Phase::Idle { language_version: std::mem::take(language_version) };
            }
        });
    }

    async fn kill(&self, guest: &Guest) -> String {
        let killed = self.kill_everything(guest);
        let died = timeout(KILL_TIMEOUT, self.died()).await;
        killed.are_dead().await;
        died.unwrap_or_else(|_| "was killed but does not go away".into())
    }

    /// Sends a ping if that is possible without waiting, and returns its number.
    fn ping(&self) -> Option<u64> {
        let token = self.pings.get() + 1;
        let bytes = self.dialect.borrow_mut().encode(&ToKernel::Ping { token }, &[]);
        let sent = self.to_kernel.try_lock().ok()?.try_write(&bytes).ok()?;
        self.pings.set(token);
        (sent == bytes.len()).then_some(token)
    }

    async fn answered(&self, token: Option<u64>) {
        let mut pongs = self.pongs.subscribe();
        let Some(token) = token else { return std::future::pending().await };
        // It cannot fail: we hold the sender ourselves.
        let _ = pongs.wait_for(|last| *last >= token).await;
    }

    /// Writes to the kernel. An error means that it is dying, which its reader notices.
    async fn send(&self, bytes: &[u8]) {
        let _ = self.to_kernel.lock().await.write_all(bytes).await;
    }

    async fn say(&self, message: &ToKernel, body: &[u8]) {
        let bytes = self.dialect.borrow_mut().encode(message, body);
        self.send(&bytes).await;
    }

    /// Resolves when the process has ended, even if its children hold the connection open.
    async fn process_ended(&self) {
        let mut phase = self.phase.subscribe();
        loop {
            let end = self.end.borrow().clone();
            if let Some(end) = end {
                end.ended().await;
                return;
            }
            // A forked kernel sends its pid with its hello.
            if phase.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Resolves when the kernel is dead, with how it died.
    async fn died(&self) -> String {
        let mut phase = self.phase.subscribe();
        match phase.wait_for(|phase| matches!(phase, Phase::Dead { .. })).await {
            Ok(phase) => match &*phase {
                Phase::Dead { reason } => reason.clone(),
                _ => String::new(),
            },
            Err(_) => String::new(),
        }
    }

    /// Sends SIGINT to what the kernel runs.
    ///
    /// A shell needs care: its SIGINT handler returns to the prompt, and a child that it has just forked
    /// has that handler until it calls exec. Interrupted before that, the child would return to the
    /// prompt too, and become a second shell that reads the messages for the first. So the shell is
    /// stopped, and its children get a moment to call exec.
    ///
    /// The shell gets its signal first. If a command dies of the signal before the shell has seen its own, the shell
    /// takes it for a command that failed, and after `set -e` it would end.
    async fn interrupt_once(&self) {
        let Some(shell) = self.pid.get().filter(|_| self.is_shell()) else {
            return self.signal_group(SIGINT);
        };
        let is_before_exec = |pid: &u32| {
            *pid != shell && procfs::catches(*pid, SIGINT) && procfs::same_command(*pid, shell)
        };
        let _ = process::signal(shell, SIGSTOP);
        // A subshell with a trap looks like such a child for ever.
        let may_go_on = || {
            procfs::is_stopped(shell) && !procfs::group_members(shell).iter().any(is_before_exec)
        };
        becomes_true(may_go_on).await;
        let members = procfs::group_members(shell);
        let _ = process::signal(shell, SIGINT);
        let _ = process::signal(shell, SIGCONT);
        becomes_true(|| !procfs::is_pending(shell, SIGINT)).await;
        for pid in members.into_iter().filter(|pid| *pid != shell) {
            let _ = process::signal(pid, SIGINT);
        }
    }

    /// Node replaces its SIGINT handlers around code that it can interrupt, and between two of them the
    /// signal would end it. While Node waits, it can be asked with a message instead.
    fn takes_interrupt_messages(&self) -> bool {
        self.language.to_string() == "javascript"
    }

    /// Signals all processes of the kernel's group except the kernel.
    fn signal_others_in_group(&self, signal: i32) {
        let Some(kernel) = self.pid.get() else { return };
        for pid in procfs::group_members(kernel).into_iter().filter(|pid| *pid != kernel) {
            let _ = process::signal(pid, signal);
        }
    }

    fn signal_group(&self, signal: i32) {
        if let Some(pid) = self.pid.get() {
            // The kernel leads its own group. If it left the group, signal it directly.
            if process::signal_group(pid, signal).is_err() {
                let _ = process::signal(pid, signal);
            }
        }
    }

    /// Kills the kernel, its descendants, and orphans that are not supervised: a daemon that detached
    /// itself still belongs to the cell that started it.
    pub(crate) fn kill_everything(&self, guest: &Guest) -> Killed {
        let Some(pid) = self.pid.get() else { return Killed::default() };
        let mut watched = guest.reaper.watched();
        watched.retain(|&other| other != pid);
        kill_tree(pid, &watched, true)
    }
}

/// Why a kernel's program did not start. A missing program has a separate code.
pub(crate) fn not_started(argv: &[String], error: &io::Error) -> Refusal {
    let program = argv.first().map_or("", String::as_str);
    if error.kind() == io::ErrorKind::NotFound {
        let message = format!("there is no `{program}` in this image");
        return refuse(RefusalCode::NoInterpreter, message);
    }
    failed(format!("failed to start {}: {error}", argv.join(" ")))
}
