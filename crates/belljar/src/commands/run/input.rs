//! Our own standard input, handed on to the code.
//!
//! Python code asks before it reads, so that a run which reads nothing takes nothing from whoever else reads the
//! same input. Bash cannot ask and gets the input from the start.

use std::io::{self, IsTerminal, Read};
use std::sync::{Arc, Mutex, PoisonError};

use belljar_proto::exec::InputRequest;
use belljar_sys::tty::{self, HiddenTyping};
use tokio::sync::mpsc;

use crate::commands::output;

/// Read at once. The guest takes less than 1 MiB.
const PIECE: usize = 64 * 1024;

/// Pieces that wait for the guest to have room.
const IN_FLIGHT: usize = 2;

pub(super) struct Input {
    /// Until reading begins.
    pieces: Option<mpsc::Sender<Vec<u8>>>,
    hidden: Arc<Mutex<Option<HiddenTyping>>>,
}

impl Input {
    /// The way in, and what comes of it.
    pub(super) fn new() -> (Input, mpsc::Receiver<Vec<u8>>) {
        let (pieces, received) = mpsc::channel(IN_FLIGHT);
        (Input { pieces: Some(pieces), hidden: Arc::default() }, received)
    }

    /// Nothing is read: the code finds the end of its input.
    pub(super) fn none() -> mpsc::Receiver<Vec<u8>> {
        mpsc::channel(1).1
    }

    /// The code waits for input. A question of a script comes here only if its answer is to be hidden: it prints
    /// all others itself.
    pub(super) fn asked(&mut self, body: &[u8]) {
        if let Ok(InputRequest { prompt, password: true }) = serde_json::from_slice(body) {
            eprint!("{}", output::without_escapes(&prompt));
            let hiding = HiddenTyping::begin(io::stdin()).ok();
            *self.hidden.lock().unwrap_or_else(PoisonError::into_inner) = hiding;
        }
        self.begin();
    }

    /// Reads from now on, in a thread that is not waited for: it ends with us.
    pub(super) fn begin(&mut self) {
        let Some(pieces) = self.pieces.take() else { return };
        let hidden = Arc::clone(&self.hidden);
        std::thread::spawn(move || {
            let mut stdin = io::stdin().lock();
            let mut buffer = vec![0; PIECE];
            while let Ok(n @ 1..) = stdin.read(&mut buffer) {
                if hidden.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
                    // Enter was not shown either.
                    eprintln!();
                }
                if pieces.blocking_send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
    }

    /// The same for code that cannot ask. A program in the background that reads from its terminal would be
    /// stopped, so there nothing is read.
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
        // The code is over. The thread may still read, and must not keep the terminal as it is.
        self.hidden.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
