//! Standard input that the host has sent to an execution and that was not read yet.
//!
//! ```text
//!  Call::Stdin ──feed──▶ queue ──chunk──▶ pipe of a command or a shell
//!                          └─────line───▶ message to a kernel that asked
//! ```

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use tokio::sync::Notify;

/// The most bytes that may wait for a process which does not read them. The input that an execution
/// starts with may be larger.
pub(crate) const MAX_WAITING: usize = 1024 * 1024;

/// The most that is delivered at once, even of a longer line.
const MAX_PIECE: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Input {
    queue: RefCell<VecDeque<u8>>,
    state: Cell<State>,
    changed: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// More may come.
    Open,
    /// Nothing comes after what is queued: the execution was started without more input.
    Fixed,
    /// Nothing comes after what is queued: the client closed the input.
    Closed,
    /// The execution has ended, or closed its input.
    Over,
}

/// Why input was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputError {
    NotWanted,
    Closed,
    Over,
    /// Too much for one call.
    TooLarge,
    /// Too much is waiting already.
    Full,
}

impl Input {
    pub(crate) fn new(takes_more: bool) -> Input {
        let state = if takes_more { State::Open } else { State::Fixed };
        Input { queue: RefCell::default(), state: Cell::new(state), changed: Notify::new() }
    }

    /// Sets the input that the execution starts with.
    pub(crate) fn begin_with(&self, bytes: Vec<u8>) {
        *self.queue.borrow_mut() = bytes.into();
        self.changed.notify_waiters();
    }

    pub(crate) fn feed(&self, bytes: &[u8], close: bool) -> Result<(), InputError> {
        match self.state.get() {
            State::Open => {}
            State::Fixed => return Err(InputError::NotWanted),
            State::Closed => return Err(InputError::Closed),
            State::Over => return Err(InputError::Over),
        }
        let mut queue = self.queue.borrow_mut();
        if bytes.len() > MAX_WAITING {
            return Err(InputError::TooLarge);
        }
        if queue.len() + bytes.len() > MAX_WAITING && !bytes.is_empty() {
            return Err(InputError::Full);
        }
        queue.extend(bytes);
        if close {
            self.state.set(State::Closed);
        }
        self.changed.notify_waiters();
        Ok(())
    }

    /// The reader is gone: drops waiting input and refuses more.
    pub(crate) fn shut(&self) {
        self.state.set(State::Over);
        *self.queue.borrow_mut() = VecDeque::new();
        self.changed.notify_waiters();
    }

    /// The next piece, regardless of lines; `None` at the end.
    pub(crate) async fn piece(&self) -> Option<Vec<u8>> {
        self.take(|queue, _| Some(queue.len().min(MAX_PIECE))).await
    }

    /// The next line with its newline, or a part of it if the line is very long or the last; `None` at
    /// the end.
    pub(crate) async fn line(&self) -> Option<Vec<u8>> {
        self.take(|queue, more_comes| {
            let newline = queue.iter().take(MAX_PIECE).position(|byte| *byte == b'\n');
            let incomplete = more_comes && queue.len() < MAX_PIECE;
            match newline {
                Some(at) => Some(at + 1),
                None if incomplete => None,
                None => Some(queue.len().min(MAX_PIECE)),
            }
        })
        .await
    }

    /// Waits until the queue is not empty and `measure` returns how much to take; `None` at the end.
    async fn take(
        &self,
        measure: impl Fn(&VecDeque<u8>, bool) -> Option<usize>,
    ) -> Option<Vec<u8>> {
        loop {
            let changed = self.changed.notified();
            let more_comes = self.state.get() == State::Open;
            {
                let mut queue = self.queue.borrow_mut();
                if queue.is_empty() && !more_comes {
                    return None;
                }
                let size = if queue.is_empty() { None } else { measure(&queue, more_comes) };
                if let Some(size) = size {
                    return Some(queue.drain(..size).collect());
                }
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result, if it is available without waiting.
    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn lines_are_handed_out_one_by_one_and_the_last_one_at_the_end() {
        let input = Input::new(true);
        assert_eq!(now(input.line()), None, "nothing yet");
        input.feed(b"one\ntw", false).unwrap();
        assert_eq!(now(input.line()), Some(Some(b"one\n".to_vec())));
        assert_eq!(now(input.line()), None, "half a line");
        input.feed(b"o\nthree", true).unwrap();
        assert_eq!(now(input.line()), Some(Some(b"two\n".to_vec())));
        assert_eq!(now(input.line()), Some(Some(b"three".to_vec())));
        assert_eq!(now(input.line()), Some(None));
        assert_eq!(input.feed(b"four", false), Err(InputError::Closed));
    }

    #[test]
    fn unread_input_is_bounded() {
        let input = Input::new(true);
        assert_eq!(input.feed(&vec![b'x'; MAX_WAITING + 1], false), Err(InputError::TooLarge));
        input.feed(&vec![b'x'; MAX_WAITING], false).unwrap();
        assert_eq!(input.feed(b"x", false), Err(InputError::Full));
        assert_eq!(input.feed(b"", true), Ok(()), "it can always be closed");
        assert_eq!(now(input.line()).flatten().map(|line| line.len()), Some(MAX_PIECE));
    }

    #[test]
    fn what_an_execution_starts_with_has_an_end_unless_more_was_announced() {
        let input = Input::new(false);
        input.begin_with(b"all".to_vec());
        assert_eq!(input.feed(b"more", false), Err(InputError::NotWanted));
        assert_eq!(now(input.piece()), Some(Some(b"all".to_vec())));
        assert_eq!(now(input.piece()), Some(None));
        let open = Input::new(true);
        open.begin_with(b"first".to_vec());
        assert_eq!(now(open.piece()), Some(Some(b"first".to_vec())));
        assert_eq!(now(open.piece()), None);
        open.shut();
        assert_eq!(now(open.piece()), Some(None));
        assert_eq!(open.feed(b"late", false), Err(InputError::Over));
    }
}
