//! One cell, from its message to the kernel until its end.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::exec::{ExecSpec, KILLED_FOR_MEMORY, KernelState, Status, What};
use belljar_proto::guest::{Refusal, RefusalCode};
use belljar_proto::kernel::{CellStatus, ToKernel};
use belljar_sys::channel::Fifo;
use belljar_sys::process::{self, Ended};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{CellDone, INTERRUPT_PACE, Kernel, Running};
use crate::Guest;
use crate::command::SIGINT;
use crate::dialect::CellRequest;
use crate::execs::{Ending, Exec};
use crate::reaper::End;
use crate::time_limit;

/// A cell that is ready to be run.
#[derive(Debug)]
pub(crate) struct PreparedCell {
    spec: ExecSpec,
    /// The message to the kernel.
    bytes: Vec<u8>,
    /// The standard input of a cell in a shell: the named pipe, and our end of it.
    stdin: Option<(Fifo, OwnedFd)>,
}

/// How the supervision of a cell ended: why the guest stopped the cell, if it did, and how the cell ended
/// (`Ok`) or the kernel died (`Err`).
type Verdict = (Option<Status>, Result<CellDone, String>);

/// The state before the cell began.
struct Before {
    oom_kills: u64,
    lost_kernel: Option<String>,
}

/// The receiving ends of the channels in [`Running`].
struct Progress {
    begun: watch::Receiver<bool>,
    done: watch::Receiver<Option<CellDone>>,
}

/// How long a kernel has to act on an interrupt message before it gets the signal.
const MESSAGE_FIRST: Duration = Duration::from_millis(100);

/// The end of a cell that was interrupted before it could report its end.
const INTERRUPTED: CellDone =
    CellDone { status: CellStatus::Interrupted, exit_code: 130, execution_count: 0 };

impl Kernel {
    /// Encodes a cell for the kernel.
    pub(crate) fn prepare_cell(
        &self,
        spec: ExecSpec,
        echo: bool,
        code: &[u8],
    ) -> Result<PreparedCell, Refusal> {
        let stdin = if spec.stdin && self.is_shell() { Some(fifo()?) } else { None };
        let path = stdin.as_ref().and_then(|(fifo, _)| fifo.path().to_str());
        let variant = match &spec.what {
            What::Cell { language, .. } => language.variant(),
            What::Command { .. } => None,
        };
        let request = CellRequest { spec: &spec, echo, variant, stdin: path, code };
        let bytes = self.dialect.borrow_mut().cell(&request);
        let bytes = bytes.map_err(|message| Refusal { code: RefusalCode::Invalid, message })?;
        Ok(PreparedCell { spec, bytes, stdin })
    }

    /// Runs one cell to its end and records it. The kernel must be occupied.
    pub(crate) async fn run_cell(
        self: Rc<Self>,
        guest: Rc<Guest>,
        cell: PreparedCell,
        exec: Rc<Exec>,
    ) {
        let before = Before {
            oom_kills: guest.oom_kills(),
            lost_kernel: guest.lost_kernel.borrow_mut().remove(&self.language),
        };
        let progress = self.begin(&exec);
        match self.supervise(&guest, cell, &exec, progress).await {
            (stopped_by, Ok(done)) => self.finish_cell(&guest, &exec, &done, stopped_by, before),
            (stopped_by, Err(reason)) => {
                self.finish_dead(&guest, &exec, stopped_by, before.oom_kills, reason);
            }
        }
    }

    fn begin(&self, exec: &Rc<Exec>) -> Progress {
        // Only a shell reports that it begins.
        let (begun_sender, begun) = watch::channel(!self.is_shell());
        let (done_sender, done) = watch::channel(None);
        *self.current.borrow_mut() = Some(Running {
            exec: Rc::clone(exec),
            begun: begun_sender,
            done: done_sender,
            asked: Cell::new(false),
            streams: Cell::new(false),
        });
        self.output.attach(exec);
        Progress { begun, done }
    }

    async fn supervise(
        &self,
        guest: &Guest,
        cell: PreparedCell,
        exec: &Rc<Exec>,
        progress: Progress,
    ) -> Verdict {
        let limit = Duration::from_millis(cell.spec.timeout_ms);
        let grace = Duration::from_millis(cell.spec.grace_ms);
        let mut interrupt = exec.interrupt.subscribe();
        let begun = progress.begun.clone();
        let mut done = pin!(self.to_its_end(cell, exec, progress));
        let stopped_by = tokio::select! {
            biased;
            done = &mut done => return (None, Ok(done)),
            reason = self.died() => return (None, Err(reason)),
            () = time_limit::elapsed(limit) => Status::Timeout,
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

    /// Sends the cell and waits, without a limit, until the kernel reports that it is done.
    async fn to_its_end(
        &self,
        cell: PreparedCell,
        exec: &Rc<Exec>,
        mut progress: Progress,
    ) -> CellDone {
        let _turn = self.turn.lock().await;
        // If the kernel does not read its socket, this waits until the time limit, as for endless code.
        self.send(&cell.bytes).await;
        if let Some((fifo, writer)) = cell.stdin {
            // The shell opens its input before it begins. Then the name is not needed any more.
            let _ = progress.begun.wait_for(|begun| *begun).await;
            drop(fifo);
            if let Ok(pipe) = pipe::Sender::from_owned_fd(writer) {
                tokio::task::spawn_local(Rc::clone(exec).pump_input(pipe));
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
    /// The cell of a shell is over when the shell answers a ping that was sent after the last SIGINT: the
    /// signal may have aborted the command that reports "done", and the shell must have handled the
    /// signal before the next cell is sent.
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
        let running = self.current.borrow().as_ref().map(|running| running.exec.id.clone());
        if let Some(exec_id) = running.filter(|_| self.takes_interrupt_messages()) {
            let asking = async {
                self.say(&ToKernel::Interrupt { exec_id }, &[]).await;
                sleep(MESSAGE_FIRST).await;
            };
            tokio::select! {
                biased;
                done = &mut done => {
                    // A signal would also have reached the processes that the kernel started in its
                    // group.
                    self.signal_others_in_group(SIGINT);
                    return done;
                }
                () = asking => {}
            }
        }
        let mut reported = None;
        loop {
            self.interrupt_once().await;
            let token = if self.is_shell() { self.ping() } else { None };
            let mut pause = pin!(sleep(INTERRUPT_PACE));
            loop {
                tokio::select! {
                    biased;
                    () = self.answered(token) => return reported.unwrap_or(INTERRUPTED),
                    done = &mut done, if reported.is_none() => match token {
                        None => return done,
                        Some(_) => reported = Some(done),
                    },
                    () = &mut pause => break,
                }
            }
        }
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
            // The guest stopped it, so the kernel's own status does not matter.
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
                Some(format!("{killed} process(es) started by the code were {KILLED_FOR_MEMORY}"))
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
        // This result reports it, so the next cell need not.
        guest.lost_kernel.borrow_mut().remove(&self.language);
        let out_of_memory = guest.oom_kills() > oom_before;
        let ended = self.end.borrow().as_ref().and_then(End::now);
        let (status, exit_code) = match (stopped_by, ended) {
            (Some(Status::Timeout), _) => (Status::Timeout, 124),
            (Some(status), _) => (status, 130),
            // `exit` and `set -e` end a shell on purpose.
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
}

/// A named pipe that a shell can open, with a name that cannot be guessed.
fn fifo() -> Result<(Fifo, OwnedFd), Refusal> {
    let path = PathBuf::from(format!("/tmp/.belljar-stdin-{}", process::random_name()));
    Fifo::make(path).map_err(|error| Refusal {
        code: RefusalCode::Failed,
        message: format!("failed to make a pipe for standard input in `/tmp`: {error}"),
    })
}
