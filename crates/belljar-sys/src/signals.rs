//! Signals that a single-threaded process waits for instead of handling them at any moment.

use std::io;
use std::time::Duration;

pub use libc::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

/// Signals that are blocked, and so wait until [`Awaited::next`] takes them. Programs that this process executes must unblock
/// them; [`process::spawn`](crate::process::spawn) does.
#[derive(Debug)]
pub struct Awaited {
    set: libc::sigset_t,
}

impl Awaited {
    /// Blocks these signals in the calling thread, which must be the only one.
    pub fn block(signals: &[i32]) -> io::Result<Awaited> {
        // SAFETY: all-zero is a valid set, which is emptied before use; the pointers are to live memory.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in signals {
                if libc::sigaddset(&raw mut set, *signal) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            set
        };
        // SAFETY: the set is live; the former mask is not asked for.
        let result =
            unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Awaited { set }) }
    }

    /// The next signal; none if none comes within `limit`.
    pub fn next(&self, limit: Option<Duration>) -> io::Result<Option<i32>> {
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        loop {
            // SAFETY: the set and the limit are live, no information about the signal is asked for.
            let signal =
                unsafe { libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), limit) };
            if signal > 0 {
                return Ok(Some(signal));
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(None),
                // Another signal, or this process was stopped and continued.
                Some(libc::EINTR) => {}
                _ => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_waits_until_it_is_taken() {
        // Signals are per process, and tests run in processes of their own.
        let signals = Awaited::block(&[libc::SIGUSR1]).unwrap();
        assert_eq!(signals.next(Some(Duration::from_millis(1))).unwrap(), None);
        // SAFETY: integers only; the signal is blocked in this thread.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert_eq!(signals.next(None).unwrap(), Some(libc::SIGUSR1));
    }
}
