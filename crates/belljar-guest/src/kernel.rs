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
//! Which language it speaks is the business of its [`Dialect`].
//!
//! A cell ends in one of four ways: the kernel says done; the kernel dies; the time is up or the
//! host interrupts, which is first said politely (SIGINT to the process group, repeatedly, because
//! `system()` swallows some) and after a grace period with SIGKILL to the kernel and everything it
//! started. Nothing the code does can make us wait for it: no pipe is read to its end, no lock of
//! the kernel's is needed, and a stopped process dies of SIGKILL as any other.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::exec::{Event, ExecSpec, KernelState, Language, Status};
use belljar_proto::guest::{Refusal, RefusalCode};
use belljar_proto::kernel::{CellStatus, DisplayKind, FromKernel, ToKernel};
use belljar_sys::channel::Fifo;
use belljar_sys::process::{self, Ended};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf, pipe};
use tokio::sync::{Mutex, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::Guest;
use crate::command::{KILL_TIMEOUT, SIGINT, SIGKILL, kill_tree};
use crate::dialect::{Dialect, Order};
use crate::execs::{Ending, Exec};
use crate::input;
use crate::output::Output;
use crate::reaper::End;

/// A kernel that has not said hello by then never will.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// SIGINT is repeated at this pace until the cell ends or the grace period is over.
const INTERRUPT_PACE: Duration = Duration::from_millis(200);

/// What a kernel wrote before it died is there already when we hear of its death.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// How long a kernel may take to tell its variables; it has bounds of its own, which are lower.
const STATE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a kernel is interrupted that does not come back from telling its variables. After
/// that it is left alone; the next cell has a time limit, and kills it.
const STATE_INTERRUPTS: usize = 10;

#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) phase: watch::Sender<Phase>,
    language: Language,
    output: Rc<Output>,
    dialect: RefCell<Dialect>,
    to_kernel: Mutex<OwnedWriteHalf>,
    /// Held while the kernel does something for us: it does one thing at a time.
    turn: Mutex<()>,
    pid: Cell<Option<u32>>,
    end: RefCell<Option<End>>,
    current: RefCell<Option<Running>>,
    /// Who waits to be told the variables.
    wants_state: RefCell<Option<oneshot::Sender<Vec<u8>>>>,
    /// The number of the last ping, and of the last that was answered.
    pings: Cell<u64>,
    pongs: watch::Sender<u64>,
}

/// The cell that runs, and the way to tell its supervisor how far it is.
#[derive(Debug)]
struct Running {
    exec: Rc<Exec>,
    begun: watch::Sender<bool>,
    done: watch::Sender<Option<CellDone>>,
    /// It waits for a line of input, which is being waited for.
    asked: Cell<bool>,
}

/// The other end of [`Running`].
struct Progress {
    begun: watch::Receiver<bool>,
    done: watch::Receiver<Option<CellDone>>,
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
    AnswerInput(Rc<Exec>),
    GiveUp(String),
}

#[derive(Debug, Clone)]
struct CellDone {
    status: CellStatus,
    exit_code: i32,
    execution_count: u64,
}

/// A cell that is ready to be run.
#[derive(Debug)]
pub(crate) struct Job {
    spec: ExecSpec,
    /// What is said to the kernel.
    bytes: Vec<u8>,
    /// The standard input of a cell in a shell: the way to it, and our end of it.
    stdin: Option<(Fifo, OwnedFd)>,
}

/// How the supervision of a cell ended: what stopped it, if something did, and either how the
/// kernel says the cell ended or how the kernel itself did.
type Verdict = (Option<Status>, Result<CellDone, String>);

/// What was so before the cell began.
struct Before {
    oom_kills: u64,
    lost_kernel: Option<String>,
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
            language,
            output,
            dialect: RefCell::new(Dialect::of(language)),
            to_kernel: Mutex::new(to_kernel),
            turn: Mutex::default(),
            pid: Cell::new(None),
            end: RefCell::default(),
            current: RefCell::default(),
            wants_state: RefCell::default(),
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

    /// Another takes its place. One that is still on its way here dies when it says hello.
    fn retire(&self, guest: &Guest) {
        let reason = "was replaced".to_owned();
        let before = self.phase.send_replace(Phase::Dead { reason: reason.clone() });
        if matches!(before, Phase::Idle { .. }) {
            guest.lost_kernel.borrow_mut().insert(self.language, reason);
        }
        self.kill_everything(guest);
    }

    /// Starts the interpreter ourselves, the slow way. The control socket becomes descriptor 3,
    /// or the standard input of a shell.
    pub(crate) fn spawn(
        guest: &Rc<Guest>,
        language: Language,
        argv: &[String],
        env: &[(String, String)],
        cwd: &str,
    ) -> io::Result<()> {
        let ends = Kernel::prepare(guest, language)?;
        let kernel = guest.kernels.borrow().get(&language).cloned();
        let kernel = kernel.ok_or_else(|| io::Error::other("the kernel is gone already"))?;
        // A blocking socket is what a plain interpreter expects.
        let control = std::os::unix::net::UnixStream::from(ends.control);
        control.set_nonblocking(false)?;
        let output = [ends.stdout.as_fd(), ends.stderr.as_fd()];
        let fds = if kernel.is_shell() {
            vec![control.as_fd(), output[0], output[1]]
        } else {
            vec![ends.stdin.as_fd(), output[0], output[1], control.as_fd()]
        };
        let pid = process::spawn(&process::Command { argv, env, cwd, fds: &fds })?;
        *kernel.end.borrow_mut() = Some(guest.reaper.watch(pid));
        kernel.pid.set(Some(pid));
        tokio::task::spawn_local(async move {
            let first_words = kernel.dialect.borrow().first_words();
            kernel.send(first_words).await;
        });
        Ok(())
    }

    fn is_shell(&self) -> bool {
        self.dialect.borrow().is_shell()
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

    fn is_busy(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Busy { .. })
    }

    /// From idle to busy, or why not.
    pub(crate) fn occupy(&self) -> Result<(), Refusal> {
        let mut refused = self.available().err();
        self.phase.send_if_modified(|phase| match phase {
            Phase::Idle { language_version } => {
                *phase = Phase::Busy { language_version: std::mem::take(language_version) };
                refused = None;
                true
            }
            _ => false,
        });
        refused.map_or(Ok(()), Err)
    }

    fn available(&self) -> Result<(), Refusal> {
        let (code, message) = match &*self.phase.borrow() {
            Phase::Idle { .. } => return Ok(()),
            Phase::Busy { .. } => (RefusalCode::Busy, "the kernel runs another execution"),
            Phase::Starting | Phase::Dead { .. } => {
                (RefusalCode::NoKernel, "there is no live kernel")
            }
        };
        Err(Refusal { code, message: message.into() })
    }

    /// The kernel is free for the next cell.
    pub(crate) fn release(&self) {
        self.phase.send_modify(|phase| {
            if let Phase::Busy { language_version } = phase {
                *phase = Phase::Idle { language_version: std::mem::take(language_version) };
            }
        });
    }

    /// Puts a cell into the kernel's language.
    pub(crate) fn job(&self, spec: ExecSpec, echo: bool, code: &[u8]) -> Result<Job, Refusal> {
        let stdin = if spec.stdin && self.is_shell() { Some(fifo()?) } else { None };
        let path = stdin.as_ref().and_then(|(fifo, _)| fifo.path().to_str());
        let order = Order { spec: &spec, echo, stdin: path, code };
        let bytes = self.dialect.borrow_mut().cell(&order);
        let bytes = bytes.map_err(|message| Refusal { code: RefusalCode::Invalid, message })?;
        Ok(Job { spec, bytes, stdin })
    }

    /// Runs one cell to its end, whatever that is, and records it. The kernel must be occupied.
    pub(crate) async fn run_cell(self: Rc<Self>, guest: Rc<Guest>, job: Job, exec: Rc<Exec>) {
        let before = Before {
            oom_kills: guest.oom_kills(),
            lost_kernel: guest.lost_kernel.borrow_mut().remove(&self.language),
        };
        let progress = self.begin(&exec);
        match self.supervise(&guest, job, &exec, progress).await {
            (stopped_by, Ok(done)) => self.finish_cell(&guest, &exec, &done, stopped_by, before),
            (stopped_by, Err(reason)) => {
                self.finish_dead(&guest, &exec, stopped_by, before.oom_kills, reason);
            }
        }
    }

    fn begin(&self, exec: &Rc<Exec>) -> Progress {
        // Only a shell says when it begins.
        let (begun_sender, begun) = watch::channel(!self.is_shell());
        let (done_sender, done) = watch::channel(None);
        *self.current.borrow_mut() = Some(Running {
            exec: Rc::clone(exec),
            begun: begun_sender,
            done: done_sender,
            asked: Cell::new(false),
        });
        self.output.attach(exec);
        Progress { begun, done }
    }

    async fn supervise(
        &self,
        guest: &Guest,
        job: Job,
        exec: &Rc<Exec>,
        progress: Progress,
    ) -> Verdict {
        let deadline = Instant::now() + Duration::from_millis(job.spec.timeout_ms);
        let grace = Duration::from_millis(job.spec.grace_ms);
        let mut interrupt = exec.interrupt.subscribe();
        let begun = progress.begun.clone();
        let mut done = pin!(self.to_its_end(job, exec, progress));
        let stopped_by = tokio::select! {
            biased;
            done = &mut done => return (None, Ok(done)),
            reason = self.died() => return (None, Err(reason)),
            () = sleep_until(deadline) => Status::Timeout,
            _ = interrupt.wait_for(|asked| *asked) => Status::Interrupted,
        };
        let how = tokio::select! {
            biased;
            done = self.interrupt(done, begun) => Ok(done),
            reason = self.died() => Err(reason),
            () = sleep(grace) => Err(self.kill(guest).await),
        };
        (Some(stopped_by), how)
    }

    /// Says the cell and waits until the kernel says that it is done, for ever if need be.
    async fn to_its_end(&self, job: Job, exec: &Rc<Exec>, mut progress: Progress) -> CellDone {
        let _turn = self.turn.lock().await;
        // A kernel that does not read its socket is as good as one that computes for ever.
        self.send(&job.bytes).await;
        if let Some((fifo, writer)) = job.stdin {
            // Before it begins it has opened its input. The name is of no use from then on.
            let _ = progress.begun.wait_for(|begun| *begun).await;
            drop(fifo);
            if let Ok(pipe) = pipe::Sender::from_owned_fd(writer) {
                tokio::task::spawn_local(input::pump(Rc::clone(exec), pipe));
            }
        }
        let done = progress.done.wait_for(Option::is_some).await;
        match done.ok().and_then(|done| done.clone()) {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }

    /// Asks the code to stop, until the cell is over.
    ///
    /// A shell is over when it answers a ping that was said after the last SIGINT: the line that
    /// would have said "done" may have been a victim of the signal, and the signal itself must have
    /// been dealt with before the next cell is said.
    async fn interrupt(
        &self,
        mut done: Pin<&mut impl Future<Output = CellDone>>,
        mut begun: watch::Receiver<bool>,
    ) -> CellDone {
        tokio::select! {
            biased;
            done = &mut done => return done,
            _ = begun.wait_for(|begun| *begun) => {}
        }
        let mut said = None;
        loop {
            self.signal_group(SIGINT);
            let token = if self.is_shell() { self.ping() } else { None };
            let mut pause = pin!(sleep(INTERRUPT_PACE));
            loop {
                tokio::select! {
                    biased;
                    () = self.answered(token) => return said.unwrap_or_else(|| self.was_interrupted()),
                    done = &mut done, if said.is_none() => match token {
                        None => return done,
                        Some(_) => said = Some(done),
                    },
                    () = &mut pause => break,
                }
            }
        }
    }

    /// What is known of a cell that was interrupted and did not say so.
    fn was_interrupted(&self) -> CellDone {
        CellDone { status: CellStatus::Interrupted, exit_code: 130, execution_count: 0 }
    }

    async fn kill(&self, guest: &Guest) -> String {
        self.kill_everything(guest);
        let died = timeout(KILL_TIMEOUT, self.died()).await;
        died.unwrap_or_else(|_| "was killed but does not go away".into())
    }

    /// Asks whether the kernel listens, if that can be said without waiting; the number of the ping.
    fn ping(&self) -> Option<u64> {
        let token = self.pings.get() + 1;
        let bytes = self.dialect.borrow_mut().say(&ToKernel::Ping { token }, &[]);
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

    /// Says something to the kernel. If it cannot be told it is dying, which we hear of elsewhere.
    async fn send(&self, bytes: &[u8]) {
        let _ = self.to_kernel.lock().await.write_all(bytes).await;
    }

    async fn say(&self, message: &ToKernel, body: &[u8]) {
        let bytes = self.dialect.borrow_mut().say(message, body);
        self.send(&bytes).await;
    }

    /// The variables of the kernel, as JSON; only while it is idle.
    pub(crate) async fn state(self: Rc<Self>) -> Result<Vec<u8>, Refusal> {
        self.available()?;
        let (sender, receiver) = oneshot::channel();
        tokio::task::spawn_local(Rc::clone(&self).inspect(sender));
        let failed = |message: &str| Refusal { code: RefusalCode::Failed, message: message.into() };
        match receiver.await {
            Ok(Some(body)) if !body.is_empty() => Ok(body),
            Ok(Some(_)) => Err(failed("the kernel could not tell its variables")),
            Ok(None) => Err(failed("the kernel took too long to tell its variables")),
            Err(_) => {
                let message = "the kernel died while it told its variables".into();
                Err(Refusal { code: RefusalCode::NoKernel, message })
            }
        }
    }

    /// Has the kernel tell its variables, and if it takes too long, stops it.
    async fn inspect(self: Rc<Self>, asker: oneshot::Sender<Option<Vec<u8>>>) {
        let _turn = self.turn.lock().await;
        let (sender, receiver) = oneshot::channel();
        *self.wants_state.borrow_mut() = Some(sender);
        let told = async {
            self.say(&ToKernel::State, &[]).await;
            receiver.await.ok()
        };
        tokio::select! {
            biased;
            body = told => {
                let _ = asker.send(body);
            }
            _ = self.died() => {}
            () = sleep(STATE_TIMEOUT) => {
                let _ = asker.send(None);
                *self.wants_state.borrow_mut() = None;
                tokio::select! {
                    () = self.call_back() => {}
                    _ = self.died() => {}
                }
            }
        }
    }

    /// Interrupts whatever the kernel does until it listens again.
    async fn call_back(&self) {
        let mut token = None;
        for _ in 0..STATE_INTERRUPTS {
            self.signal_group(SIGINT);
            token = self.ping().or(token);
            if timeout(INTERRUPT_PACE, self.answered(token)).await.is_ok() {
                return;
            }
        }
        self.answered(token).await;
    }

    fn finish_cell(
        &self,
        guest: &Guest,
        exec: &Exec,
        done: &CellDone,
        stopped_by: Option<Status>,
        before: Before,
    ) {
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
        let killed = guest.oom_kills().saturating_sub(before.oom_kills);
        let reason = match before.lost_kernel.as_ref() {
            Some(how) => {
                Some(format!("the kernel of earlier executions {how}; their variables are gone"))
            }
            None if killed > 0 => {
                Some(format!("{killed} process(es) started by the code were killed for memory"))
            }
            None => None,
        };
        let kernel_state =
            if before.lost_kernel.is_some() { KernelState::Lost } else { KernelState::Kept };
        let execution_count = done.execution_count;
        exec.finish(Ending { status, exit_code, reason, kernel_state, execution_count });
    }

    fn finish_dead(
        &self,
        guest: &Guest,
        exec: &Exec,
        stopped_by: Option<Status>,
        oom_before: u64,
        reason: String,
    ) {
        self.output.drain();
        self.output.detach();
        // Told here, so it need not be told again.
        guest.lost_kernel.borrow_mut().remove(&self.language);
        let out_of_memory = guest.oom_kills() > oom_before;
        let ended = self.end.borrow().as_ref().and_then(End::now);
        let (status, exit_code) = match (stopped_by, ended) {
            (Some(Status::Timeout), _) => (Status::Timeout, 124),
            (Some(status), _) => (status, 130),
            // To leave is what `exit` and `set -e` are for.
            (None, Some(Ended::Exited(0))) if self.is_shell() => (Status::Ok, 0),
            (None, Some(Ended::Exited(code))) if self.is_shell() => (Status::Error, code),
            (None, _) if out_of_memory => (Status::Oom, 137),
            (None, ended) => (Status::Crashed, ended.map_or(1, Ended::exit_code)),
        };
        let reason = match status {
            Status::Oom => "the kernel was killed because the memory limit was reached".to_owned(),
            Status::Ok | Status::Error => format!(
                "the shell exited with status {exit_code}; its variables and working directory are gone"
            ),
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
        mut from_kernel: OwnedReadHalf,
    ) -> impl Future<Output = ()> + use<> {
        let kernel = Rc::clone(self);
        async move {
            // Usually its end closes the connection; but a child that it forked behind our back may
            // hold it open, and then only the process itself tells.
            let why = tokio::select! {
                biased;
                why = kernel.hear(&guest, &mut from_kernel) => Some(why),
                () = kernel.process_ended() => None,
            };
            let why = match why {
                Some(why) => why,
                None => {
                    let last_words = kernel.hear(&guest, &mut from_kernel);
                    timeout(LAST_WORDS, last_words).await.unwrap_or(None)
                }
            };
            if why.is_none() && kernel.is_shell() && kernel.is_busy() {
                // `exec` makes another program of the shell, which has no use for our connection
                // and all the time that the cell has.
                kernel.process_ended().await;
            }
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
                guest.lost_kernel.borrow_mut().insert(kernel.language, reason.clone());
            }
            kernel.phase.send_replace(Phase::Dead { reason });
            *kernel.current.borrow_mut() = None;
            // A successor may have taken the place already.
            let mut kernels = guest.kernels.borrow_mut();
            if kernels.get(&kernel.language).is_some_and(|current| Rc::ptr_eq(current, &kernel)) {
                kernels.remove(&kernel.language);
            }
        }
    }

    /// Acts on messages until the connection ends; a reason if the kernel itself gave one or if it
    /// broke the protocol.
    async fn hear(
        self: &Rc<Self>,
        guest: &Guest,
        from_kernel: &mut OwnedReadHalf,
    ) -> Option<String> {
        let mut buffer = vec![0; 8 * 1024];
        loop {
            loop {
                let next = self.dialect.borrow_mut().next();
                let (message, body) = match next {
                    Ok(Some(heard)) => heard,
                    Ok(None) => break,
                    Err(error) => return Some(format!("sent nonsense ({error})")),
                };
                match self.obey(guest, message, body) {
                    Next::GoOn => {}
                    Next::Acknowledge => self.say(&ToKernel::Seen, &[]).await,
                    Next::AnswerInput(exec) => {
                        tokio::task::spawn_local(Rc::clone(self).answer_input(exec));
                    }
                    Next::GiveUp(why) => return Some(why),
                }
            }
            match from_kernel.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.dialect.borrow_mut().push(&buffer[..n]),
            }
        }
    }

    fn obey(&self, guest: &Guest, message: FromKernel, body: Vec<u8>) -> Next {
        let current = self.current.borrow();
        match message {
            FromKernel::Hello { language_version, pid, .. } => {
                return self.welcome(guest, language_version, pid);
            }
            FromKernel::Fatal => {
                let text = String::from_utf8_lossy(&body);
                return Next::GiveUp(format!("could not start: {text}"));
            }
            FromKernel::Display { kind, wait } => {
                if let Some(Running { exec, .. }) = &*current {
                    self.output.drain();
                    let event = match kind {
                        DisplayKind::Display => Event::Display,
                        DisplayKind::Result => Event::Result,
                    };
                    exec.publish(event, body);
                }
                if wait {
                    return Next::Acknowledge;
                }
            }
            FromKernel::Error => {
                if let Some(Running { exec, .. }) = &*current {
                    self.output.drain();
                    exec.publish(Event::Error, body);
                }
            }
            FromKernel::Input => {
                if let Some(Running { exec, asked, .. }) = &*current {
                    self.output.drain();
                    exec.publish(Event::Input, body);
                    if !asked.replace(true) {
                        return Next::AnswerInput(Rc::clone(exec));
                    }
                }
            }
            FromKernel::State => {
                if let Some(asker) = self.wants_state.borrow_mut().take() {
                    let _ = asker.send(body);
                }
            }
            // Code that says it knows a later ping than the last only deceives its own cell.
            FromKernel::Pong { token } => {
                self.pongs.send_replace(token);
            }
            FromKernel::Begun { exec_id } => {
                if let Some(Running { exec, begun, .. }) = &*current
                    && exec.id == exec_id
                {
                    begun.send_replace(true);
                }
            }
            FromKernel::Done { exec_id, status, exit_code, execution_count } => {
                if let Some(Running { exec, done, .. }) = &*current
                    && exec.id == exec_id
                {
                    self.output.drain();
                    done.send_replace(Some(CellDone { status, exit_code, execution_count }));
                }
            }
        }
        Next::GoOn
    }

    fn welcome(&self, guest: &Guest, language_version: String, pid: u32) -> Next {
        // Said again by user code, it would only point our signals at the wrong process.
        if self.pid.get().is_none() {
            self.pid.set(Some(pid));
            *self.end.borrow_mut() = Some(guest.reaper.watch(pid));
        }
        if matches!(*self.phase.borrow(), Phase::Dead { .. }) {
            return Next::GiveUp("was replaced".into());
        }
        if *self.phase.borrow() == Phase::Starting {
            if self.is_shell() {
                // It complains that there is no terminal, which is as it should be.
                self.output.forget_idle();
            }
            self.phase.send_replace(Phase::Idle { language_version });
        }
        Next::GoOn
    }

    /// Hands on the next line of input, or that there is none, if the cell still runs by then.
    async fn answer_input(self: Rc<Self>, exec: Rc<Exec>) {
        let line = tokio::select! {
            line = exec.input.line() => line.unwrap_or_default(),
            () = exec.over() => return,
        };
        if let Some(Running { exec: current, asked, .. }) = &*self.current.borrow()
            && Rc::ptr_eq(current, &exec)
        {
            asked.set(false);
        }
        self.say(&ToKernel::Input { exec_id: exec.id.clone() }, &line).await;
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

/// A pipe with a name that a shell can open and nobody could expect.
fn fifo() -> Result<(Fifo, OwnedFd), Refusal> {
    let path = PathBuf::from(format!("/tmp/.belljar-stdin-{}", process::random_name()));
    Fifo::make(path).map_err(|error| Refusal {
        code: RefusalCode::Failed,
        message: format!("failed to make a pipe for standard input in `/tmp`: {error}"),
    })
}

fn describe(ended: Ended) -> String {
    match ended {
        Ended::Exited(code) => format!("exited with status {code}"),
        Ended::Signaled(11) => "died of a segmentation fault (signal 11)".into(),
        Ended::Signaled(signal) => format!("was killed by signal {signal}"),
    }
}
