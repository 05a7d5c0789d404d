//! One cell, from the moment it is said to the kernel to its end.

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
use crate::dialect::Order;
use crate::execs::{Ending, Exec};
use crate::input;
use crate::reaper::End;

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

/// The other end of [`Running`].
struct Progress {
    begun: watch::Receiver<bool>,
    done: watch::Receiver<Option<CellDone>>,
}

/// How long a kernel that hears interrupts has to act on one, before it gets the signal.
const ASKED_FIRST: Duration = Duration::from_millis(100);

/// What is known of a cell that was interrupted and did not come to say so.
const INTERRUPTED: CellDone =
    CellDone { status: CellStatus::Interrupted, exit_code: 130, execution_count: 0 };

impl Kernel {
    /// Puts a cell into the kernel's language.
    pub(crate) fn job(&self, spec: ExecSpec, echo: bool, code: &[u8]) -> Result<Job, Refusal> {
        let stdin = if spec.stdin && self.is_shell() { Some(fifo()?) } else { None };
        let path = stdin.as_ref().and_then(|(fifo, _)| fifo.path().to_str());
        let variant = match &spec.what {
            What::Cell { language, .. } => language.variant(),
            What::Command { .. } => None,
        };
        let order = Order { spec: &spec, echo, variant, stdin: path, code };
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
            streams: Cell::new(false),
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
        let limit = Duration::from_millis(job.spec.timeout_ms);
        let grace = Duration::from_millis(job.spec.grace_ms);
        let mut interrupt = exec.interrupt.subscribe();
        let begun = progress.begun.clone();
        let mut done = pin!(self.to_its_end(job, exec, progress));
        let stopped_by = tokio::select! {
            biased;
            done = &mut done => return (None, Ok(done)),
            reason = self.died() => return (None, Err(reason)),
            () = sleep(limit) => Status::Timeout,
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
        let running = self.current.borrow().as_ref().map(|running| running.exec.id.clone());
        if let Some(exec_id) = running.filter(|_| self.hears_interrupts()) {
            let asking = async {
                self.say(&ToKernel::Interrupt { exec_id }, &[]).await;
                sleep(ASKED_FIRST).await;
            };
            tokio::select! {
                biased;
                done = &mut done => {
                    // What it had started in its group would have had the signal.
                    self.signal_company(SIGINT);
                    return done;
                }
                () = asking => {}
            }
        }
        let mut said = None;
        loop {
            self.interrupt_once().await;
            let token = if self.is_shell() { self.ping() } else { None };
            let mut pause = pin!(sleep(INTERRUPT_PACE));
            loop {
                tokio::select! {
                    biased;
                    () = self.answered(token) => return said.unwrap_or(INTERRUPTED),
                    done = &mut done, if said.is_none() => match token {
                        None => return done,
                        Some(_) => said = Some(done),
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
}

/// A pipe with a name that a shell can open and nobody could expect.
fn fifo() -> Result<(Fifo, OwnedFd), Refusal> {
    let path = PathBuf::from(format!("/tmp/.belljar-stdin-{}", process::random_name()));
    Fifo::make(path).map_err(|error| Refusal {
        code: RefusalCode::Failed,
        message: format!("failed to make a pipe for standard input in `/tmp`: {error}"),
    })
}
