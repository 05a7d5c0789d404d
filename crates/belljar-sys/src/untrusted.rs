//! Descriptors that came from a sandbox, and the thread that closes them.
//!
//! The sender can make closing slow: a TCP socket lingers until its data is sent, the last descriptor of a deleted memory file
//! frees all its pages, and a UNIX socket closes the descriptors in its queue. Linux does all that in the thread that closes.
//! So no thread that others wait for closes such a descriptor: dropping an [`Untrusted`] passes it to the [`Closer`] of its
//! sandbox.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// How long a thread waits for more to close before it ends.
const IDLE: Duration = Duration::from_secs(1);

/// Dropping a descriptor needs little.
const STACK: usize = 64 * 1024;

/// Closes the descriptors of one sandbox, one after the other, on at most one thread. A sandbox whose
/// descriptors take long to close delays only its own.
#[derive(Debug, Clone, Default)]
pub struct Closer(Arc<CloserState>);

#[derive(Debug, Default)]
struct CloserState {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// With a channel to report the end to, if one is wanted.
    waiting: VecDeque<(OwnedFd, Option<oneshot::Sender<()>>)>,
    /// A descriptor was taken from the queue and is being closed.
    closing: bool,
    /// The thread runs.
    running: bool,
}

impl Closer {
    /// How many descriptors are not closed yet. The owner of the sandbox bounds this: it stops
    /// receiving from a sandbox that has too many.
    #[must_use]
    pub fn backlog(&self) -> usize {
        let queue = self.lock();
        queue.waiting.len() + usize::from(queue.closing)
    }

    /// Queues a descriptor for the thread. Never waits.
    fn close(&self, fd: OwnedFd, done: Option<oneshot::Sender<()>>) {
        let mut queue = self.lock();
        queue.waiting.push_back((fd, done));
        if queue.running {
            self.0.more.notify_one();
            return;
        }
        let closer = self.clone();
        let thread = std::thread::Builder::new().name("closer".into()).stack_size(STACK);
        // If no thread can be started, the descriptor waits for the next attempt.
        queue.running = thread.spawn(move || closer.run()).is_ok();
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            if let Some((fd, done)) = queue.waiting.pop_front() {
                queue.closing = true;
                drop(queue);
                drop(fd);
                // The receiver may be gone.
                let _ = done.map(|done| done.send(()));
                queue = self.lock();
                queue.closing = false;
                continue;
            }
            let waited = self.0.more.wait_timeout(queue, IDLE);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            queue = again;
            if timeout.timed_out() && queue.waiting.is_empty() {
                queue.running = false;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No critical section can panic: they only move values.
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A descriptor that a sandbox sent, or one of our sockets with descriptors of a sandbox in its queue. Dropping it lets the
/// [`Closer`] of that sandbox close it.
#[derive(Debug)]
pub struct Untrusted<T: Into<OwnedFd>> {
    inner: ManuallyDrop<T>,
    closer: Closer,
}

/// A descriptor of unchecked kind, or not of a file.
pub type UntrustedFd = Untrusted<OwnedFd>;

/// Known to be a plain file.
pub type UntrustedFile = Untrusted<File>;

impl<T: Into<OwnedFd>> Untrusted<T> {
    pub fn new(inner: T, closer: &Closer) -> Untrusted<T> {
        Untrusted { inner: ManuallyDrop::new(inner), closer: closer.clone() }
    }

    /// The closer of its sandbox.
    #[must_use]
    pub fn closer(&self) -> &Closer {
        &self.closer
    }

    /// Closes it, and resolves when it is closed. A program that is open for writing cannot be executed, for example.
    pub async fn close(self) {
        let (inner, closer) = self.into_parts();
        let (done, closed) = oneshot::channel();
        closer.close(inner.into(), Some(done));
        let _ = closed.await;
    }

    fn into_parts(self) -> (T, Closer) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped or used again, so each field is moved out once.
        unsafe { (ManuallyDrop::take(&mut this.inner), std::ptr::read(&raw const this.closer)) }
    }
}

impl UntrustedFd {
    /// Converts it to a file. The caller has checked that it is one.
    #[must_use]
    pub fn into_file(self) -> UntrustedFile {
        let (fd, closer) = self.into_parts();
        Untrusted { inner: ManuallyDrop::new(File::from(fd)), closer }
    }
}

impl<T: Into<OwnedFd>> Drop for Untrusted<T> {
    fn drop(&mut self) {
        // SAFETY: it is dropped once, and nothing uses the field afterwards.
        let inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        self.closer.close(inner.into(), None);
    }
}

impl<T: Into<OwnedFd>> Deref for Untrusted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: Into<OwnedFd> + AsFd> AsFd for Untrusted<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl<T: Into<OwnedFd> + AsRawFd> AsRawFd for Untrusted<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl Borrow<File> for UntrustedFile {
    fn borrow(&self) -> &File {
        &self.inner
    }
}

impl io::Write for UntrustedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.inner).flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    /// Longer than any test machine is busy.
    const LINGER: Duration = Duration::from_secs(30);

    /// A socket that takes [`LINGER`] to close, and the end that does not read.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (silent, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 64 * 1024]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
        (socket.into(), silent)
    }

    fn until(what: impl Fn() -> bool) {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < LINGER / 2, "it did not come to be");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn threads(name: &str) -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|found| found.trim() == name).count()
    }

    #[test]
    fn a_descriptor_that_is_slow_to_close_delays_no_other_sandbox() {
        let (slow, other) = (Closer::default(), Closer::default());
        let (socket, silent) = lingering();
        let (mut reader, writer) = io::pipe().unwrap();
        let begun = Instant::now();
        drop(Untrusted::new(socket, &slow));
        // This one is queued behind it.
        let (mut late_reader, late) = io::pipe().unwrap();
        drop(Untrusted::new(OwnedFd::from(late), &slow));
        drop(Untrusted::new(OwnedFd::from(writer), &other));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "another sandbox's is closed meanwhile");
        assert!(begun.elapsed() < LINGER / 2, "{:?}", begun.elapsed());
        assert_eq!(slow.backlog(), 2, "one is being closed, one waits");
        // A reset ends the lingering.
        drop(silent);
        assert_eq!(late_reader.read(&mut [0]).unwrap(), 0);
        until(|| slow.backlog() == 0);
    }

    #[test]
    fn one_sandbox_has_one_thread_which_ends() {
        let closer = Closer::default();
        let (socket, silent) = lingering();
        drop(Untrusted::new(socket, &closer));
        let before = threads("closer");
        for _ in 0..200 {
            drop(Untrusted::new(OwnedFd::from(io::pipe().unwrap().0), &closer));
        }
        assert_eq!(closer.backlog(), 201);
        // Tests that run at the same time have at most three.
        assert!(threads("closer") <= before + 3, "{} threads", threads("closer"));
        drop(silent);
        until(|| closer.backlog() == 0);
        until(|| !closer.lock().running);
    }

    #[test]
    fn receiving_from_the_hostile_never_waits() {
        let closer = Closer::default();
        let (ours, theirs) = channel::packet_pair().unwrap();
        let (socket, _silent) = lingering();
        let received = |fds: &mut Vec<UntrustedFd>| {
            let begun = Instant::now();
            let received = channel::recv_untrusted(&ours, &mut [0; 4], fds, &closer);
            assert!(begun.elapsed() < LINGER / 2, "{:?}", begun.elapsed());
            received
        };
        let nothing = received(&mut Vec::new()).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock, "although the socket may block");
        let mut fds = Vec::new();
        channel::send_with_fds(&theirs, b"much too long", &[socket.as_fd()]).unwrap();
        drop(socket);
        assert_eq!(received(&mut fds).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(fds.len(), 1, "what came with it is known");
        // The most that Linux allows in one message.
        let (null, mut fds) = (File::open("/dev/null").unwrap(), Vec::new());
        channel::send_with_fds(&theirs, b"many", &[null.as_fd(); channel::MAX_RECEIVED]).unwrap();
        assert_eq!(received(&mut fds).unwrap(), 4);
        assert_eq!(fds.len(), channel::MAX_RECEIVED);
    }
}
