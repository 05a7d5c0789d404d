//! Requests about one terminal: follow, write, resize and close.

use std::rc::Rc;

use belljar_proto::guest::{Answer, Refusal};
use belljar_proto::terminal::TerminalSize;

use super::{Response, later};
use crate::Guest;
use crate::reply::Reply;
use crate::terminal;

pub(super) fn attach(guest: &Guest, id: &str, from: Option<u64>) -> Response {
    match guest.terminals.get(id) {
        Ok(terminal) => Response::Followed {
            reply: Answer::Terminal(terminal.info()).into(),
            follow: Box::new(move |outbox| terminal::follow(terminal, from, outbox)),
        },
        Err(refusal) => Response::Now(Err(refusal)),
    }
}

pub(super) fn write(guest: &Guest, id: &str, bytes: Vec<u8>) -> Response {
    match guest.terminals.get(id) {
        Ok(terminal) => later(async move { terminal.type_in(&bytes).await }),
        Err(refusal) => Response::Now(Err(refusal)),
    }
}

pub(super) fn resize(guest: &Guest, id: &str, size: TerminalSize) -> Result<Reply, Refusal> {
    guest.terminals.get(id)?.resize(size)
}

pub(super) fn close(guest: &Rc<Guest>, id: &str) -> Response {
    let guest = Rc::clone(guest);
    match guest.terminals.get(id) {
        Ok(terminal) => later(async move { terminal.close(&guest).await }),
        Err(refusal) => Response::Now(Err(refusal)),
    }
}
