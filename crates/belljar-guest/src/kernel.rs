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
//! A cell ends in one of four ways: the kernel says done; the kernel dies; the time is up or the
//! host interrupts, which is first said politely (SIGINT to the process group, repeatedly, because
//! `system()` swallows some) and after a grace period with SIGKILL to the kernel and everything it
//! started. Nothing the code does can make us wait for it: no pipe is read to its end, no lock of
//! the kernel's is needed, and a stopped process dies of SIGKILL as any other.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::exec::{Event, ExecSpec, KernelState, Language, Status};
use belljar_proto::frame::{self, Decoder, Frame};
use belljar_proto::kernel::{CellStatus, DisplayKind, FromKernel, ToKernel};
use belljar_sys::process::{self, Ended};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::Guest;
use crate::command::{KILL_TIMEOUT, SIGINT, SIGKILL, kill_tree};
use crate::execs::{Ending, Exec};
use crate::output::Output;
use crate::reaper::End;

/// A kernel that has not said hello by then never will.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// SIGINT is repeated at this pace until the cell ends or the grace period is over.
const INTERRUPT_PACE: Duration = Duration::from_millis(200);

/// What a kernel wrote before it died is there already when we hear of its death.
const LAST_WORDS: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) phase: watch::Sender<Phase>,
    output: Rc<Output>,
    to_kernel: Mutex<OwnedWriteHalf>,
    pid: Cell<Option<u32>>,
    end: RefCell<Option<End>>,
    current: RefCell<Option<Running>>,
}

/// The cell that runs, and the way to tell its supervisor that it is done.
#[derive(Debug)]
struct Running {
    exec: Rc<Exec>,
    done: watch::Sender<Option<CellDone>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    Idle { language_version: String },
    Busy { language_version: String },
    Dead { reason: String },
}

/// What to do after a message of the kernel's.
enum Next {
    GoOn,
    Acknowledge,
    GiveUp(String),
}

#[derive(Debug, Clone)]
struct CellDone {
    status: CellStatus,
    exit_code: i32,
    execution_count: u64,
}

/// The half of a kernel's connections that its process gets.
#[derive(Debug)]
pub(crate) struct KernelEnds {
    pub(crate) control: OwnedFd,
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

impl Kernel {
    /// Makes our half of a kernel, which replaces any other of its language.
    pub(crate) fn prepare(guest: &Rc<Guest>, language: Language) -> io::Result<KernelEnds> {
        let (ours, theirs) = UnixStream::pair()?;
        let (output, write_ends) = Output::new()?;
        let stdin = std::fs::File::open("/dev/null")?;
        let (from_kernel, to_kernel) = ours.into_split();
        let kernel = Rc::new(Kernel {
            phase: watch::Sender::new(Phase::Starting),
            output,
            to_kernel: Mutex::new(to_kernel),
            pid: Cell::new(None),
            end: RefCell::default(),
            current: RefCell::default(),
        });
        let replaced = guest.kernels.borrow_mut().insert(language, Rc::clone(&kernel));
        if let Some(old) = replaced {
            old.retire(guest, language);
        }
        tokio::task::spawn_local(Rc::clone(&kernel.output).pump());
        tokio::task::spawn_local(kernel.listen(Rc::clone(guest), language, from_kernel));
        Ok(KernelEnds {
            control: theirs.into_std()?.into(),
            stdin: stdin.into(),
            stdout: write_ends.stdout,
            stderr: write_ends.stderr,
        })
    }

    /// Another takes its place. One that is still on its way here dies when it says hello.
    fn retire(&self, guest: &Guest, language: Language) {
        let reason = "was replaced".to_owned();
        let before = self.phase.send_replace(Phase::Dead { reason: reason.clone() });
        if matches!(before, Phase::Idle { .. }) {
            guest.lost_kernel.borrow_mut().insert(language, reason);
        }
        self.kill_everything(guest);
    }

    /// Starts the interpreter ourselves, the slow way. The control socket becomes descriptor 3.
    pub(crate) fn spawn(
        guest: &Rc<Guest>,
        language: Language,
        argv: &[String],
        env: &[(String, String)],
        cwd: &str,
    ) -> io::Result<()> {
        let ends = Kernel::prepare(guest, language)?;
        // A blocking socket is what a plain interpreter expects.
        let control = std::os::unix::net::UnixStream::from(ends.control);
        control.set_nonblocking(false)?;
        let fds = [ends.stdin.as_fd(), ends.stdout.as_fd(), ends.stderr.as_fd(), control.as_fd()];
        let pid = process::spawn(&process::Command { argv, env, cwd, fds: &fds })?;
        let end = guest.reaper.watch(pid);
        let kernel = guest.kernels.borrow().get(&language).cloned();
        if let Some(kernel) = kernel {
            kernel.pid.set(Some(pid));
            *kernel.end.borrow_mut() = Some(end);
        }
        Ok(())
    }

    /// Waits until the kernel is ready; the version of its language, or why there is none.
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

    /// Runs one cell to its end, whatever that is, and records it. The kernel must be idle.
    pub(crate) async fn run_cell(
        self: Rc<Self>,
        guest: Rc<Guest>,
        language: Language,
        spec: ExecSpec,
        echo: bool,
        code: Vec<u8>,
        exec: Rc<Exec>,
    ) {
        let oom_before = guest.oom_kills();
        let lost_before = guest.lost_kernel.borrow_mut().remove(&language);
        let deadline = Instant::now() + Duration::from_millis(spec.timeout_ms);
        let (done_sender, mut done) = watch::channel(None);
        *self.current.borrow_mut() = Some(Running { exec: Rc::clone(&exec), done: done_sender });
        self.output.attach(&exec);

        let env = spec.env.into_iter().map(|(key, value)| (key, value.into())).collect();
        let message =
            ToKernel::Exec { exec_id: spec.exec_id, echo, acknowledges: true, stdin: false, env };
        let frame = frame::encode(&message, &code);
        drop(code);
        let mut interrupt = exec.interrupt.subscribe();
        let cell_done = async {
            // A kernel that does not read its socket is as good as one that computes for ever.
            let sent = self.to_kernel.lock().await.write_all(&frame).await;
            if sent.is_err() {
                std::future::pending::<()>().await;
            }
            match done.wait_for(Option::is_some).await {
                Ok(done) => done.clone(),
                Err(_) => std::future::pending().await,
            }
        };
        tokio::pin!(cell_done);
        let stopped_by = tokio::select! {
            biased;
            done = &mut cell_done => {
                self.finish_cell(&guest, &exec, done.as_ref(), None, oom_before, lost_before);
                return;
            }
            reason = self.died() => {
                self.finish_dead(&guest, language, &exec, None, oom_before, reason);
                return;
            }
            () = sleep_until(deadline) => Status::Timeout,
            _ = interrupt.wait_for(|asked| *asked) => Status::Interrupted,
        };

        let grace_ends = Instant::now() + Duration::from_millis(spec.grace_ms);
        let polite = async {
            loop {
                self.signal_group(SIGINT);
                tokio::time::sleep(INTERRUPT_PACE).await;
            }
        };
        tokio::select! {
            biased;
            done = &mut cell_done => {
                self.finish_cell(&guest, &exec, done.as_ref(), Some(stopped_by), oom_before, lost_before);
                return;
            }
            reason = self.died() => {
                self.finish_dead(&guest, language, &exec, Some(stopped_by), oom_before, reason);
                return;
            }
            () = sleep_until(grace_ends) => {}
            () = polite => {}
        }
        self.kill_everything(&guest);
        let reason = timeout(KILL_TIMEOUT, self.died())
            .await
            .unwrap_or_else(|_| "was killed but does not go away".into());
        self.finish_dead(&guest, language, &exec, Some(stopped_by), oom_before, reason);
    }

    fn finish_cell(
        &self,
        guest: &Guest,
        exec: &Exec,
        done: Option<&CellDone>,
        stopped_by: Option<Status>,
        oom_before: u64,
        lost_before: Option<String>,
    ) {
        let Some(done) = done else { return };
        self.output.detach();
        *self.current.borrow_mut() = None;
        self.release();
        let status = match (stopped_by, done.status) {
            // The code came back because we asked it to, with whatever face.
            (Some(status), _) => status,
            (None, CellStatus::Ok | CellStatus::Exit) => Status::Ok,
            (None, CellStatus::Error) => Status::Error,
            (None, CellStatus::Interrupted) => Status::Interrupted,
        };
        let exit_code = match status {
            Status::Timeout => 124,
            Status::Interrupted => 130,
            _ => done.exit_code,
        };
        let killed = guest.oom_kills().saturating_sub(oom_before);
        let reason = match lost_before.as_ref() {
            Some(how) => {
                Some(format!("the kernel of earlier executions {how}; their variables are gone"))
            }
            None if killed > 0 => {
                Some(format!("{killed} process(es) started by the code were killed for memory"))
            }
            None => None,
        };
        let kernel_state =
            if lost_before.is_some() { KernelState::Lost } else { KernelState::Kept };
        let execution_count = done.execution_count;
        exec.finish(Ending { status, exit_code, reason, kernel_state, execution_count });
    }

    fn finish_dead(
        &self,
        guest: &Guest,
        language: Language,
        exec: &Exec,
        stopped_by: Option<Status>,
        oom_before: u64,
        reason: String,
    ) {
        self.output.drain();
        self.output.detach();
        // Told here, so it need not be told again.
        guest.lost_kernel.borrow_mut().remove(&language);
        let out_of_memory = guest.oom_kills() > oom_before;
        let ended = self.end.borrow().as_ref().and_then(End::now);
        let (status, exit_code) = match stopped_by {
            Some(Status::Timeout) => (Status::Timeout, 124),
            Some(status) => (status, 130),
            None if out_of_memory => (Status::Oom, 137),
            None => (Status::Crashed, ended.map_or(1, Ended::exit_code)),
        };
        let reason = match status {
            Status::Oom => "the kernel was killed because the memory limit was reached".to_owned(),
            _ => format!("the kernel {reason}"),
        };
        exec.finish(Ending {
            status,
            exit_code,
            reason: Some(reason),
            kernel_state: KernelState::Lost,
            execution_count: 0,
        });
    }

    /// The kernel is free for the next cell.
    pub(crate) fn release(&self) {
        self.phase.send_modify(|phase| {
            if let Phase::Busy { language_version } = phase {
                *phase = Phase::Idle { language_version: std::mem::take(language_version) };
            }
        });
    }

    /// Resolves when the process itself has ended, however many hold on to what it left.
    async fn process_ended(&self) {
        let mut phase = self.phase.subscribe();
        loop {
            let end = self.end.borrow().clone();
            if let Some(end) = end {
                end.ended().await;
                return;
            }
            // Its number becomes known with its hello.
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

    /// Reads the kernel's messages until its death, which it also establishes.
    fn listen(
        self: &Rc<Self>,
        guest: Rc<Guest>,
        language: Language,
        mut from_kernel: OwnedReadHalf,
    ) -> impl Future<Output = ()> + use<> {
        let kernel = Rc::clone(self);
        async move {
            // Usually its end closes the connection; but a child that it forked behind our back may
            // hold it open, and then only the process itself tells.
            let mut decoder = Decoder::default();
            let why = tokio::select! {
                biased;
                why = kernel.hear(&guest, &mut from_kernel, &mut decoder) => Some(why),
                () = kernel.process_ended() => None,
            };
            let why = match why {
                Some(why) => why,
                None => {
                    let last_words = kernel.hear(&guest, &mut from_kernel, &mut decoder);
                    timeout(LAST_WORDS, last_words).await.unwrap_or(None)
                }
            };
            // Whatever is left of a kernel that stopped talking is of no use to anybody.
            if let Some(pid) = kernel.pid.get() {
                let _ = process::signal(pid, SIGKILL);
            }
            let end = kernel.end.borrow().clone();
            let reason = match (why, end) {
                (Some(why), _) => why,
                (None, Some(end)) => match timeout(KILL_TIMEOUT, end.ended()).await {
                    Ok(ended) => describe(ended),
                    Err(_) => "was killed but does not go away".into(),
                },
                (None, None) => "closed its connection before it was ready".into(),
            };
            kernel.output.drain();
            let unnoticed = matches!(*kernel.phase.borrow(), Phase::Idle { .. });
            if unnoticed {
                guest.lost_kernel.borrow_mut().insert(language, reason.clone());
            }
            kernel.phase.send_replace(Phase::Dead { reason });
            *kernel.current.borrow_mut() = None;
            // A successor may have taken the place already.
            let mut kernels = guest.kernels.borrow_mut();
            if kernels.get(&language).is_some_and(|current| Rc::ptr_eq(current, &kernel)) {
                kernels.remove(&language);
            }
        }
    }

    /// Acts on messages until the connection ends; a reason if the kernel itself gave one or if it
    /// broke the protocol.
    async fn hear(
        &self,
        guest: &Guest,
        from_kernel: &mut OwnedReadHalf,
        decoder: &mut Decoder,
    ) -> Option<String> {
        let mut buffer = vec![0; 8 * 1024];
        loop {
            loop {
                let frame = match decoder.next_frame() {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(error) => return Some(format!("sent nonsense ({error})")),
                };
                match frame.head().map(|message| self.obey(guest, message, frame)) {
                    Ok(Next::GoOn) => {}
                    Ok(Next::Acknowledge) => {
                        let seen = frame::encode(&ToKernel::Seen, &[]);
                        // If it cannot be told it is dying, which we hear of here.
                        let _ = self.to_kernel.lock().await.write_all(&seen).await;
                    }
                    Ok(Next::GiveUp(why)) => return Some(why),
                    Err(error) => return Some(format!("sent nonsense ({error})")),
                }
            }
            match from_kernel.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(n) => decoder.push(&buffer[..n]),
            }
        }
    }

    fn obey(&self, guest: &Guest, message: FromKernel, frame: Frame) -> Next {
        let current = self.current.borrow();
        match message {
            FromKernel::Hello { language_version, pid, .. } => {
                // Said again by user code, it would only point our signals at the wrong process.
                if self.pid.get().is_none() {
                    self.pid.set(Some(pid));
                    *self.end.borrow_mut() = Some(guest.reaper.watch(pid));
                }
                if matches!(*self.phase.borrow(), Phase::Dead { .. }) {
                    return Next::GiveUp("was replaced".into());
                }
                if *self.phase.borrow() == Phase::Starting {
                    self.phase.send_replace(Phase::Idle { language_version });
                }
            }
            FromKernel::Fatal => {
                let text = String::from_utf8_lossy(&frame.body);
                return Next::GiveUp(format!("could not start: {text}"));
            }
            FromKernel::Display { kind, wait } => {
                if let Some(Running { exec, .. }) = &*current {
                    self.output.drain();
                    let event = match kind {
                        DisplayKind::Display => Event::Display,
                        DisplayKind::Result => Event::Result,
                    };
                    exec.publish(event, frame.body);
                }
                if wait {
                    return Next::Acknowledge;
                }
            }
            FromKernel::Error => {
                if let Some(Running { exec, .. }) = &*current {
                    self.output.drain();
                    exec.publish(Event::Error, frame.body);
                }
            }
            // Nobody asked.
            FromKernel::Input
            | FromKernel::State
            | FromKernel::Pong { .. }
            | FromKernel::Begun { .. } => {}
            FromKernel::Done { exec_id, status, exit_code, execution_count } => {
                if let Some(Running { exec, done }) = &*current
                    && exec.id == exec_id
                {
                    self.output.drain();
                    done.send_replace(Some(CellDone { status, exit_code, execution_count }));
                }
            }
        }
        Next::GoOn
    }

    fn signal_group(&self, signal: i32) {
        if let Some(pid) = self.pid.get() {
            // The kernel leads a group of its own; should it have left it, reach it directly.
            if process::signal_group(pid, signal).is_err() {
                let _ = process::signal(pid, signal);
            }
        }
    }

    /// Kills the kernel, its descendants, and orphans that nobody supervises: a daemon that
    /// detached itself is still part of what the cell started.
    pub(crate) fn kill_everything(&self, guest: &Guest) {
        let Some(pid) = self.pid.get() else { return };
        let mut watched = guest.reaper.watched();
        watched.retain(|&other| other != pid);
        kill_tree(pid, &watched, true);
    }
}

fn describe(ended: Ended) -> String {
    match ended {
        Ended::Exited(code) => format!("exited with status {code}"),
        Ended::Signaled(11) => "died of a segmentation fault (signal 11)".into(),
        Ended::Signaled(signal) => format!("was killed by signal {signal}"),
    }
}
