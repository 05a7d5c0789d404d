//! Requests about executions: begin, join, interrupt, feed and forget.

use std::rc::Rc;

use belljar_proto::exec::{ExecSpec, Language, What};
use belljar_proto::guest::{Answer, FromGuest, Refusal, RefusalCode};

use super::{Response, kernels};
use crate::execs::{Exec, SpoolPosition};
use crate::input::{InputError, MAX_WAITING};
use crate::outbox::Outbox;
use crate::reply::{Reply, failed, refuse};
use crate::{Guest, command};

/// Begins an execution; its events follow the reply.
pub(super) fn begin(guest: &Rc<Guest>, spec: ExecSpec, body: Vec<u8>) -> Response {
    let begun = match spec.what.clone() {
        What::Cell { language, echo } => begin_cell(guest, spec, language, echo, &body),
        What::Command { argv, cwd } => begin_command(guest, &spec, &argv, &cwd, body),
    };
    match begun {
        Ok(exec) => started(exec, SpoolPosition::default()),
        Err(refusal) => Response::Now(Err(refusal)),
    }
}

/// Sends the events of an execution again, from a given position.
pub(super) fn join(guest: &Guest, exec_id: &str, from: u64, offset: u64) -> Response {
    match find(guest, exec_id) {
        Ok(exec) if exec.is_over_before(from) => {
            let message = format!("execution {exec_id} ended before event {from}");
            Response::Now(Err(refuse(RefusalCode::Invalid, message)))
        }
        Ok(exec) => started(exec, SpoolPosition { entry: from, offset }),
        Err(refusal) => Response::Now(Err(refusal)),
    }
}

pub(super) fn interrupt(guest: &Guest, exec_id: &str) -> Result<Reply, Refusal> {
    find(guest, exec_id)?.interrupt.send_replace(true);
    Ok(Answer::Done.into())
}

/// Adds to the standard input of an execution.
pub(super) fn feed(
    guest: &Guest,
    exec_id: &str,
    bytes: &[u8],
    close: bool,
) -> Result<Reply, Refusal> {
    let error = match find(guest, exec_id)?.input.feed(bytes, close) {
        Ok(()) => return Ok(Answer::Done.into()),
        Err(error) => error,
    };
    let (code, message) = match error {
        InputError::NotWanted => {
            (RefusalCode::Invalid, "was not started with standard input".into())
        }
        InputError::Closed => (RefusalCode::Invalid, "has had the end of its input already".into()),
        InputError::Over => (RefusalCode::Invalid, "is over or has closed its input".into()),
        InputError::TooLarge => {
            (RefusalCode::Invalid, format!("takes at most {MAX_WAITING} bytes at a time"))
        }
        InputError::Full => {
            let message =
                format!("has up to {MAX_WAITING} bytes of input that it has not read yet");
            (RefusalCode::Busy, message)
        }
    };
    Err(refuse(code, format!("execution {exec_id} {message}")))
}

pub(super) fn forget(guest: &Guest, exec_ids: &[String]) -> Result<Reply, Refusal> {
    exec_ids.iter().for_each(|exec_id| guest.execs.forget(exec_id));
    Ok(Answer::Done.into())
}

fn started(exec: Rc<Exec>, from: SpoolPosition) -> Response {
    let follow = Box::new(move |outbox| follow(exec, from, outbox));
    Response::Followed { reply: Answer::Started.into(), follow }
}

/// Sends the events of an execution from `position` on, until its end or the connection's.
fn follow(exec: Rc<Exec>, mut position: SpoolPosition, outbox: Outbox) {
    tokio::task::spawn_local(async move {
        while let Some((from, event, body)) = exec.next(&mut position).await {
            let head = FromGuest::Event {
                exec_id: exec.id.clone(),
                seq: from.entry,
                offset: from.offset,
                event,
            };
            if !outbox.send(&head, &body).await {
                return;
            }
        }
    });
}

fn begin_command(
    guest: &Rc<Guest>,
    spec: &ExecSpec,
    argv: &[String],
    cwd: &str,
    stdin: Vec<u8>,
) -> Result<Rc<Exec>, Refusal> {
    let exec = guest.execs.begin(spec).ok_or_else(|| duplicate(spec))?;
    match command::start(guest, spec, argv, cwd, stdin, &exec) {
        Ok(()) => Ok(exec),
        Err(error) => {
            guest.execs.discard(&spec.exec_id);
            let program = argv.first().map_or("", String::as_str);
            Err(failed(format!("failed to start `{program}` in `{cwd}`: {error}")))
        }
    }
}

fn begin_cell(
    guest: &Rc<Guest>,
    spec: ExecSpec,
    language: Language,
    echo: bool,
    code: &[u8],
) -> Result<Rc<Exec>, Refusal> {
    let kernel = kernels::live(guest, language)?;
    kernel.occupy()?;
    let Some(exec) = guest.execs.begin(&spec) else {
        kernel.release();
        return Err(duplicate(&spec));
    };
    let exec_id = spec.exec_id.clone();
    match kernel.prepare_cell(spec, echo, code) {
        Ok(cell) => {
            let running = kernel.run_cell(Rc::clone(guest), cell, Rc::clone(&exec));
            tokio::task::spawn_local(running);
            Ok(exec)
        }
        Err(refusal) => {
            guest.execs.discard(&exec_id);
            kernel.release();
            Err(refusal)
        }
    }
}

fn find(guest: &Guest, exec_id: &str) -> Result<Rc<Exec>, Refusal> {
    let unknown = || format!("there is no execution {exec_id}");
    guest.execs.get(exec_id).ok_or_else(|| refuse(RefusalCode::UnknownExec, unknown()))
}

fn duplicate(spec: &ExecSpec) -> Refusal {
    refuse(RefusalCode::DuplicateExec, format!("execution {} exists already", spec.exec_id))
}
