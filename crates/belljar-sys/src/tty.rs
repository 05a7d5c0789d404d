//! Controls the user's terminal while a remote program uses it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::{LocalModes, OptionalActions, Termios};

/// A terminal in raw mode, until this is dropped.
#[derive(Debug)]
pub struct RawMode {
    terminal: OwnedFd,
    before: Termios,
}

impl RawMode {
    pub fn enter(terminal: impl AsFd) -> io::Result<RawMode> {
        let terminal = rustix::io::fcntl_dupfd_cloexec(&terminal, 3)?;
        let before = rustix::termios::tcgetattr(&terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        Ok(RawMode { terminal, before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // Unread input was meant for the remote program: the local shell must not get it.
        let _ = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// A terminal that does not show what is typed, until this is dropped.
#[derive(Debug)]
pub struct HiddenTyping {
    terminal: OwnedFd,
    before: Termios,
}

impl HiddenTyping {
    pub fn begin(terminal: impl AsFd) -> io::Result<HiddenTyping> {
        let terminal = rustix::io::fcntl_dupfd_cloexec(&terminal, 3)?;
        let before = rustix::termios::tcgetattr(&terminal)?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        rustix::termios::tcsetattr(&terminal, OptionalActions::Now, &hidden)?;
        Ok(HiddenTyping { terminal, before })
    }
}

impl Drop for HiddenTyping {
    fn drop(&mut self) {
        let _ = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// Whether this process may read from it without being stopped: it is no terminal, or this process is in its foreground.
#[must_use]
pub fn may_read(input: impl AsFd) -> bool {
    match rustix::termios::tcgetpgrp(input) {
        Ok(foreground) => foreground == rustix::process::getpgrp(),
        Err(_) => true,
    }
}

/// Rows and columns, if it is a terminal that knows them.
#[must_use]
pub fn size(terminal: impl AsFd) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_is_hidden_for_a_while() {
        let pty = crate::pty::open(24, 80).unwrap();
        let echoes = || {
            let modes = rustix::termios::tcgetattr(&pty.slave).unwrap();
            modes.local_modes.contains(LocalModes::ECHO)
        };
        assert!(echoes());
        let hidden = HiddenTyping::begin(&pty.slave).unwrap();
        assert!(!echoes());
        drop(hidden);
        assert!(echoes());
        assert!(HiddenTyping::begin(std::fs::File::open("/dev/null").unwrap()).is_err());
        assert!(may_read(std::fs::File::open("/dev/null").unwrap()));
    }

    #[test]
    fn a_terminal_is_afterwards_as_it_was() {
        let pty = crate::pty::open(5, 6).unwrap();
        let modes = || rustix::termios::tcgetattr(&pty.slave).unwrap().local_modes;
        let before = modes();
        let raw = RawMode::enter(&pty.slave).unwrap();
        assert_ne!(modes(), before);
        drop(raw);
        assert_eq!(modes(), before);
        assert_eq!(size(&pty.slave), Some((5, 6)));
        assert!(RawMode::enter(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
