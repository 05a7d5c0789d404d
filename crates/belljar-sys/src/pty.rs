//! Makes pseudo-terminals, inside a sandbox, on its own devpts.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::{InputModes, OptionalActions, Winsize};

/// Both ends of a pseudo-terminal.
#[derive(Debug)]
pub struct Pty {
    /// Output is read from it, and input is written to it. Nonblocking.
    pub master: OwnedFd,
    /// The standard input, output and error of the program.
    pub slave: OwnedFd,
}

/// Makes one of this size.
pub fn open(rows: u16, cols: u16) -> io::Result<Pty> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    let slave = other_end(&master, flags)?;
    resize(&master, rows, cols)?;
    let mut modes = rustix::termios::tcgetattr(&slave)?;
    // The erase key deletes a whole UTF-8 character.
    modes.input_modes |= InputModes::IUTF8;
    rustix::termios::tcsetattr(&slave, OptionalActions::Now, &modes)?;
    rustix::fs::fcntl_setfl(&master, rustix::fs::fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
    Ok(Pty { master, slave })
}

fn other_end(master: &OwnedFd, flags: OpenptFlags) -> io::Result<OwnedFd> {
    // Without a path, so that replaced names below /dev/pts do not matter.
    match rustix::pty::ioctl_tiocgptpeer(master, flags) {
        // gVisor knows only the path.
        Err(Errno::NOTTY | Errno::INVAL) => {
            let name = rustix::pty::ptsname(master, Vec::new())?;
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            Ok(rustix::fs::open(name, flags, rustix::fs::Mode::empty())?)
        }
        other => Ok(other?),
    }
}

/// Changes the size of a terminal, and notifies its programs.
pub fn resize(terminal: impl AsFd, rows: u16, cols: u16) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

/// Writes what can be written right now.
pub fn write_now(terminal: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::io::write(terminal, bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::read_now;

    #[test]
    fn what_is_typed_is_echoed_and_read() {
        let Pty { master, slave } = open(10, 20).unwrap();
        let size = rustix::termios::tcgetwinsize(&slave).unwrap();
        assert_eq!((size.ws_row, size.ws_col), (10, 20));
        resize(&master, 11, 21).unwrap();
        assert_eq!(rustix::termios::tcgetwinsize(&slave).unwrap().ws_row, 11);
        assert_eq!(write_now(&master, "\u{e4}\x7fb\n".as_bytes()).unwrap(), 5);
        let mut line = [0; 64];
        // One key deleted the whole character.
        let read = rustix::io::read(&slave, &mut line).unwrap();
        assert_eq!(&line[..read], b"b\n");
        let shown = read_now(&master, &mut line).unwrap();
        assert!(line[..shown].ends_with(b"b\r\n"), "{:?}", &line[..shown]);
        let nothing = read_now(&master, &mut line).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}
