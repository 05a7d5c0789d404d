//! Reads a kernel's messages, and detects its death. Messages are not trusted: user code can forge them.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::exec::Event;
use belljar_proto::kernel::{DisplayKind, FromKernel, ToKernel};
use belljar_sys::process::{self, Ended};
use tokio::io::AsyncReadExt;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{CellDone, Kernel, Phase, Running};
use crate::Guest;
use crate::command::{KILL_TIMEOUT, SIGKILL};
use crate::execs::Exec;

/// How long to read after the death of a kernel. What it wrote before is in the socket already.
const LAST_MESSAGES: Duration = Duration::from_millis(50);

/// What to do after a message of the kernel.
enum AfterMessage {
    Continue,
    Acknowledge,
    AnswerInput(Rc<Exec>, Portion),
    Fail(String),
    Leave,
}

/// How much input a kernel wants at once.
enum Portion {
    Line,
    /// All that is available.
    Piece,
}

/// Why the guest stopped reading from a kernel.
enum Disconnect {
    /// The connection was closed.
    Closed,
    /// The kernel reported an error, or broke the protocol.
    Failed(String),
    /// The kernel asked to end, and is allowed to.
    Leave,
}

impl Kernel {
    /// Reads the kernel's messages until its death, and then records it.
    pub(super) fn listen(
        self: &Rc<Self>,
        guest: Rc<Guest>,
        mut from_kernel: OwnedReadHalf,
    ) -> impl Future<Output = ()> + use<> {
        let kernel = Rc::clone(self);
        async move {
            // Usually the kernel's end closes the connection. A child of the kernel may hold it open; then
            // only the end of the process shows it.
            let why = tokio::select! {
                biased;
                why = kernel.read_messages(&guest, &mut from_kernel) => Some(why),
                () = kernel.process_ended() => None,
            };
            let disconnect = match why {
                Some(disconnect) => disconnect,
                None => {
                    let last_messages = kernel.read_messages(&guest, &mut from_kernel);
                    timeout(LAST_MESSAGES, last_messages).await.unwrap_or(Disconnect::Closed)
                }
            };
            if matches!(disconnect, Disconnect::Closed) && kernel.is_shell() && kernel.is_busy() {
                // `exec` replaces the shell by another program, which does not use the connection and may
                // run as long as the cell.
                kernel.process_ended().await;
            }
            kernel.record_death(&guest, disconnect).await;
        }
    }

    /// Kills what is left of the kernel, and publishes why it died.
    async fn record_death(self: &Rc<Self>, guest: &Guest, disconnect: Disconnect) {
        // A kernel without a connection cannot be used.
        if let Some(pid) = self.pid.get() {
            let _ = process::signal(pid, SIGKILL);
        }
        let end = self.end.borrow().clone();
        let has_left = matches!(disconnect, Disconnect::Leave);
        let reason = match (disconnect, end) {
            (Disconnect::Failed(why), _) => why,
            (Disconnect::Leave, _) => "ended because it was not needed".into(),
            (Disconnect::Closed, Some(end)) => match timeout(KILL_TIMEOUT, end.ended()).await {
                Ok(ended) => describe(ended),
                Err(_) => "was killed but does not go away".into(),
            },
            (Disconnect::Closed, None) => "closed its connection before it was ready".into(),
        };
        self.output.drain();
        let unnoticed = matches!(*self.phase.borrow(), Phase::Idle { .. });
        if unnoticed && !has_left {
            guest.lost_kernel.borrow_mut().insert(self.language, reason.clone());
        }
        self.phase.send_replace(Phase::Dead { reason });
        *self.current.borrow_mut() = None;
        // Another kernel may have replaced it already.
        let mut kernels = guest.kernels.borrow_mut();
        if kernels.get(&self.language).is_some_and(|current| Rc::ptr_eq(current, self)) {
            kernels.remove(&self.language);
        }
    }

    /// Handles messages until the connection ends, or should.
    async fn read_messages(
        self: &Rc<Self>,
        guest: &Guest,
        from_kernel: &mut OwnedReadHalf,
    ) -> Disconnect {
        let mut buffer = vec![0; 8 * 1024];
        loop {
            loop {
                let next = self.dialect.borrow_mut().next();
                let (message, body) = match next {
                    Ok(Some(message)) => message,
                    Ok(None) => break,
                    Err(error) => {
                        return Disconnect::Failed(format!("broke the protocol: {error}"));
                    }
                };
                match self.handle(guest, message, body) {
                    AfterMessage::Continue => {}
                    AfterMessage::Acknowledge => self.say(&ToKernel::Seen, &[]).await,
                    AfterMessage::AnswerInput(exec, portion) => {
                        tokio::task::spawn_local(Rc::clone(self).answer_input(exec, portion));
                    }
                    AfterMessage::Fail(why) => return Disconnect::Failed(why),
                    AfterMessage::Leave => return Disconnect::Leave,
                }
            }
            match from_kernel.read(&mut buffer).await {
                Ok(0) | Err(_) => return Disconnect::Closed,
                Ok(n) => self.dialect.borrow_mut().push(&buffer[..n]),
            }
        }
    }

    fn handle(&self, guest: &Guest, message: FromKernel, body: Vec<u8>) -> AfterMessage {
        let current = self.current.borrow();
        match message {
            FromKernel::Hello { language_version, pid, .. } => {
                return self.welcome(guest, language_version, pid);
            }
            FromKernel::Fatal => {
                let text = String::from_utf8_lossy(&body);
                return AfterMessage::Fail(format!("could not start: {text}"));
            }
            FromKernel::Display { kind, wait } => {
                let event = match kind {
                    DisplayKind::Display => Event::Display,
                    DisplayKind::Result => Event::Result,
                };
                self.publish(current.as_ref(), event, body);
                if wait {
                    return AfterMessage::Acknowledge;
                }
            }
            FromKernel::Error => self.publish(current.as_ref(), Event::Error, body),
            FromKernel::Input { stream } => {
                return self.input_requested(current.as_ref(), stream, body);
            }
            FromKernel::State => answer(&self.wants_state, body),
            FromKernel::Spilled => answer(&self.wants_spilled, body),
            FromKernel::SnapshotSocket => answer(&self.wants_snapshot_socket, ()),
            // User code can forge it, but only for a ping that was sent, and then it harms only its own cell.
            FromKernel::Pong { token } if token <= self.pings.get() => {
                self.pongs.send_replace(token);
            }
            FromKernel::Pong { .. } => {}
            // A busy kernel got a request at the same time, and stays.
            FromKernel::Leave if matches!(*self.phase.borrow(), Phase::Idle { .. }) => {
                return AfterMessage::Leave;
            }
            FromKernel::Leave => {}
            FromKernel::Begun { exec_id } => {
                if let Some(Running { exec, begun, .. }) = &*current
                    && exec.id == exec_id
                {
                    begun.send_replace(true);
                }
            }
            FromKernel::Done { exec_id, status, exit_code, execution_count } => {
                let done = CellDone { status, exit_code, execution_count };
                self.cell_done(current.as_ref(), &exec_id, done);
            }
        }
        AfterMessage::Continue
    }

    fn input_requested(
        &self,
        current: Option<&Running>,
        stream: bool,
        prompt: Vec<u8>,
    ) -> AfterMessage {
        let Some(Running { exec, asked, streams, .. }) = current else {
            return AfterMessage::Continue;
        };
        self.output.drain();
        // A stream is read in many pieces; the host is asked only once to send it.
        if !(stream && streams.replace(true)) {
            exec.publish(Event::Input, prompt);
        }
        if asked.replace(true) {
            return AfterMessage::Continue;
        }
        let portion = if stream { Portion::Piece } else { Portion::Line };
        AfterMessage::AnswerInput(Rc::clone(exec), portion)
    }

    fn cell_done(&self, current: Option<&Running>, exec_id: &str, cell: CellDone) {
        if let Some(Running { exec, begun, done, .. }) = current
            && exec.id == exec_id
        {
            self.output.drain();
            // A shell that could not begin sends only this.
            begun.send_replace(true);
            done.send_replace(Some(cell));
        }
    }

    /// Adds an event to the execution that runs, after the output that was printed before it.
    fn publish(&self, current: Option<&Running>, event: Event, body: Vec<u8>) {
        if let Some(Running { exec, .. }) = current {
            self.output.drain();
            exec.publish(event, body);
        }
    }

    fn welcome(&self, guest: &Guest, language_version: String, pid: u32) -> AfterMessage {
        // A second hello, sent by user code, must not redirect our signals to another process.
        if self.pid.get().is_none() {
            self.pid.set(Some(pid));
            *self.end.borrow_mut() = Some(guest.reaper.watch(pid));
        }
        if matches!(*self.phase.borrow(), Phase::Dead { .. }) {
            return AfterMessage::Fail("was replaced".into());
        }
        if *self.phase.borrow() == Phase::Starting {
            if self.is_shell() {
                // It printed a warning that there is no terminal.
                self.output.forget_idle();
            }
            self.phase.send_replace(Phase::Idle { language_version });
        }
        AfterMessage::Continue
    }

    /// Sends the next portion of input, or the end of input, if the cell still runs by then.
    async fn answer_input(self: Rc<Self>, exec: Rc<Exec>, portion: Portion) {
        let next = async {
            match portion {
                Portion::Line => exec.input.line().await,
                Portion::Piece => exec.input.piece().await,
            }
        };
        let line = tokio::select! {
            line = next => line.unwrap_or_default(),
            () = exec.over() => return,
        };
        if let Some(Running { exec: current, asked, .. }) = &*self.current.borrow()
            && Rc::ptr_eq(current, &exec)
        {
            asked.set(false);
        }
        self.say(&ToKernel::Input { exec_id: exec.id.clone() }, &line).await;
    }
}

/// Answers the request that waits for this message, if one does.
fn answer<T>(waiting: &RefCell<Option<oneshot::Sender<T>>>, value: T) {
    if let Some(sender) = waiting.borrow_mut().take() {
        let _ = sender.send(value);
    }
}

pub(super) fn describe(ended: Ended) -> String {
    match ended {
        Ended::Exited(code) => format!("exited with status {code}"),
        Ended::Signaled(11) => "died of a segmentation fault (signal 11)".into(),
        Ended::Signaled(signal) => format!("was killed by signal {signal}"),
    }
}
