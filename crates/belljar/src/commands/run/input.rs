//! Passes our standard input to the code.
//!
//! Python code sends a request before it reads. So a run that reads nothing leaves the input to other programs. Bash
//! cannot send a request and gets the input from the start.

use std::io::{self, IsTerminal, Read};
use std::sync::{Arc, Mutex, PoisonError};

use belljar_proto::exec::InputRequest;
use belljar_sys::tty::{self, HiddenTyping};
use tokio::sync::mpsc;

use crate::commands::output;

/// How much is read at once. The guest accepts less than 1 MiB.
const PIECE: usize = 64 * 1024;

/// How many pieces may wait for the guest.
const IN_FLIGHT: usize = 2;

pub(super) struct Input {
    /// Present until reading begins.
    pieces: Option<mpsc::Sender<Vec<u8>>>,
    hidden: Arc<Mutex<Option<HiddenTyping>>>,
}

impl Input {
    /// The input, and the receiver of its pieces.
    pub(super) fn new() -> (Input, mpsc::Receiver<Vec<u8>>) {
        let (pieces, received) = mpsc::channel(IN_FLIGHT);
        (Input { pieces: Some(pieces), hidden: Arc::default() }, received)
    }

    /// No input: the code reads the end of its input at once.
    pub(super) fn none() -> mpsc::Receiver<Vec<u8>> {
        mpsc::channel(1).1
    }

    /// Handles a request for input. A script prints its prompts itself, except those whose answer must be hidden.
    pub(super) fn asked(&mut self, body: &[u8]) {
        if let Ok(InputRequest { prompt, password: true }) = serde_json::from_slice(body) {
            eprint!("{}", output::without_escapes(&prompt));
            let hiding = HiddenTyping::begin(io::stdin()).ok();
            *self.hidden.lock().unwrap_or_else(PoisonError::into_inner) = hiding;
        }
        self.begin();
    }

    /// Starts reading in a thread that is not joined: it ends with the process.
    pub(super) fn begin(&mut self) {
        let Some(pieces) = self.pieces.take() else { return };
        let hidden = Arc::clone(&self.hidden);
        std::thread::spawn(move || {
            let mut stdin = io::stdin().lock();
            let mut buffer = vec![0; PIECE];
            while let Ok(n @ 1..) = stdin.read(&mut buffer) {
                if hidden.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
                    // The terminal did not echo Enter either.
                    eprintln!();
                }
                if pieces.blocking_send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
    }

    /// The same for code that cannot send requests. In the background nothing is read, because reading from the
    /// terminal would stop the process.
    pub(super) fn begin_unasked(&mut self) {
        let stdin = io::stdin();
        if stdin.is_terminal() && !tty::may_read(&stdin) {
            self.pieces = None;
        } else {
            self.begin();
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // The code has ended. The thread may still read, so the terminal is restored here.
        self.hidden.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
