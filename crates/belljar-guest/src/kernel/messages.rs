//! What a kernel says, and what becomes of it when it falls silent. Nothing of it is believed.

use std::rc::Rc;
use std::time::Duration;

use belljar_proto::exec::Event;
use belljar_proto::kernel::{DisplayKind, FromKernel, ToKernel};
use belljar_sys::process::{self, Ended};
use tokio::io::AsyncReadExt;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::timeout;

use super::{CellDone, Kernel, Phase, Running};
use crate::Guest;
use crate::command::{KILL_TIMEOUT, SIGKILL};
use crate::execs::Exec;

/// What a kernel wrote before it died is there already when we hear of its death.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// What to do after a message of the kernel's.
enum Next {
    GoOn,
    Acknowledge,
    AnswerInput(Rc<Exec>, Portion),
    GiveUp(String),
    LetGo,
}

/// How much input a kernel wants at once.
enum Portion {
    Line,
    /// Whatever is there.
    Piece,
}

/// How a kernel's connection came to its end.
enum Parting {
    /// Nothing more came.
    Silence,
    /// It gave a reason, or broke the protocol.
    Because(String),
    /// It asked to go, and may.
    Leave,
}

impl Kernel {
    /// Reads the kernel's messages until its death, which it also establishes.
    pub(super) fn listen(
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
            let parting = match why {
                Some(parting) => parting,
                None => {
                    let last_words = kernel.hear(&guest, &mut from_kernel);
                    timeout(LAST_WORDS, last_words).await.unwrap_or(Parting::Silence)
                }
            };
            if matches!(parting, Parting::Silence) && kernel.is_shell() && kernel.is_busy() {
                // `exec` makes another program of the shell, which has no use for our connection
                // and all the time that the cell has.
                kernel.process_ended().await;
            }
            // Whatever is left of a kernel that stopped talking is of no use to anybody.
            if let Some(pid) = kernel.pid.get() {
                let _ = process::signal(pid, SIGKILL);
            }
            let end = kernel.end.borrow().clone();
            let has_left = matches!(parting, Parting::Leave);
            let reason = match (parting, end) {
                (Parting::Because(why), _) => why,
                (Parting::Leave, _) => "left because nobody needed it".into(),
                (Parting::Silence, Some(end)) => match timeout(KILL_TIMEOUT, end.ended()).await {
                    Ok(ended) => describe(ended),
                    Err(_) => "was killed but does not go away".into(),
                },
                (Parting::Silence, None) => "closed its connection before it was ready".into(),
            };
            kernel.output.drain();
            let unnoticed = matches!(*kernel.phase.borrow(), Phase::Idle { .. });
            if unnoticed && !has_left {
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

    /// Acts on messages until the connection ends, or should.
    async fn hear(self: &Rc<Self>, guest: &Guest, from_kernel: &mut OwnedReadHalf) -> Parting {
        let mut buffer = vec![0; 8 * 1024];
        loop {
            loop {
                let next = self.dialect.borrow_mut().next();
                let (message, body) = match next {
                    Ok(Some(heard)) => heard,
                    Ok(None) => break,
                    Err(error) => return Parting::Because(format!("sent nonsense ({error})")),
                };
                match self.obey(guest, message, body) {
                    Next::GoOn => {}
                    Next::Acknowledge => self.say(&ToKernel::Seen, &[]).await,
                    Next::AnswerInput(exec, portion) => {
                        tokio::task::spawn_local(Rc::clone(self).answer_input(exec, portion));
                    }
                    Next::GiveUp(why) => return Parting::Because(why),
                    Next::LetGo => return Parting::Leave,
                }
            }
            match from_kernel.read(&mut buffer).await {
                Ok(0) | Err(_) => return Parting::Silence,
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
            FromKernel::Input { stream } => {
                if let Some(Running { exec, asked, streams, .. }) = &*current {
                    self.output.drain();
                    // A stream may be read in any number of pieces; the host is asked once to send it.
                    if !(stream && streams.replace(true)) {
                        exec.publish(Event::Input, body);
                    }
                    if !asked.replace(true) {
                        let portion = if stream { Portion::Piece } else { Portion::Line };
                        return Next::AnswerInput(Rc::clone(exec), portion);
                    }
                }
            }
            FromKernel::State => {
                if let Some(asker) = self.wants_state.borrow_mut().take() {
                    let _ = asker.send(body);
                }
            }
            FromKernel::Spilled => {
                if let Some(asker) = self.wants_spilled.borrow_mut().take() {
                    let _ = asker.send(body);
                }
            }
            FromKernel::Line => {
                if let Some(asker) = self.wants_line.borrow_mut().take() {
                    let _ = asker.send(());
                }
            }
            // Code can say it too; but not before we ask, and then it only deceives its own cell.
            FromKernel::Pong { token } if token <= self.pings.get() => {
                self.pongs.send_replace(token);
            }
            FromKernel::Pong { .. } => {}
            // One that is busy was asked for something while it said so, and stays.
            FromKernel::Leave if matches!(*self.phase.borrow(), Phase::Idle { .. }) => {
                return Next::LetGo;
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
                if let Some(Running { exec, begun, done, .. }) = &*current
                    && exec.id == exec_id
                {
                    self.output.drain();
                    // A shell that could not even begin says only this.
                    begun.send_replace(true);
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

    /// Hands on the next portion of input, or that there is none, if the cell still runs by then.
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

pub(super) fn describe(ended: Ended) -> String {
    match ended {
        Ended::Exited(code) => format!("exited with status {code}"),
        Ended::Signaled(11) => "died of a segmentation fault (signal 11)".into(),
        Ended::Signaled(signal) => format!("was killed by signal {signal}"),
    }
}
