//! Reads the pipes of a process's standard output and error.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use belljar_sys::channel;
use tokio::net::unix::pipe;

use crate::execs::{Exec, Stream};

/// Output that arrives while no execution runs (a background thread, a daemon) is kept up to this
/// size and shown at the start of the next one, which also counts what was dropped.
const MAX_IDLE_OUTPUT: usize = 64 * 1024;

/// A pipe holds 64 KiB, or up to 1 MiB if code enlarges it, so one drain never needs more. The bound keeps
/// an endless writer from blocking the event loop.
const MAX_DRAIN: usize = 1024 * 1024;

/// Both pipes of one process or kernel, and the execution that their content belongs to.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    sink: RefCell<OutputSink>,
}

#[derive(Debug, Default)]
struct OutputSink {
    exec: Option<Rc<Exec>>,
    idle: Vec<(Stream, Vec<u8>)>,
    idle_bytes: usize,
    /// Bytes of stdout and stderr beyond the bound.
    idle_dropped: [u64; 2],
}

/// The ends that a new process gets.
#[derive(Debug)]
pub(crate) struct WriteEnds {
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

impl Output {
    pub(crate) fn new() -> io::Result<(Rc<Output>, WriteEnds)> {
        let (out_read, out_write) = io::pipe()?;
        let (err_read, err_write) = io::pipe()?;
        let output = Rc::new(Output {
            stdout: pipe::Receiver::from_owned_fd(out_read.into())?,
            stderr: pipe::Receiver::from_owned_fd(err_read.into())?,
            sink: RefCell::default(),
        });
        Ok((output, WriteEnds { stdout: out_write.into(), stderr: err_write.into() }))
    }

    /// From now on output belongs to this execution, beginning with what came while none ran.
    pub(crate) fn attach(&self, exec: &Rc<Exec>) {
        let mut sink = self.sink.borrow_mut();
        for (stream, bytes) in sink.idle.drain(..) {
            exec.output(stream, &bytes);
        }
        sink.idle_bytes = 0;
        let [stdout, stderr] = std::mem::take(&mut sink.idle_dropped);
        exec.count_dropped(Stream::Stdout, stdout);
        exec.count_dropped(Stream::Stderr, stderr);
        sink.exec = Some(Rc::clone(exec));
    }

    pub(crate) fn detach(&self) {
        self.sink.borrow_mut().exec = None;
    }

    /// Drops what came while no execution ran.
    pub(crate) fn forget_idle(&self) {
        self.drain();
        let mut sink = self.sink.borrow_mut();
        sink.idle.clear();
        sink.idle_bytes = 0;
        sink.idle_dropped = [0, 0];
    }

    /// Reads both pipes until all writers have closed them. Never stops reading: a full pipe would block
    /// the process that writes.
    pub(crate) async fn pump(self: Rc<Self>) {
        let mut open = [true, true];
        while open[0] || open[1] {
            tokio::select! {
                _ = self.stdout.readable(), if open[0] => {
                    open[0] = self.read(Stream::Stdout, |buffer| self.stdout.try_read(buffer));
                }
                _ = self.stderr.readable(), if open[1] => {
                    open[1] = self.read(Stream::Stderr, |buffer| self.stderr.try_read(buffer));
                }
            }
        }
    }

    /// Reads what is in the pipes now: everything written before the message that has just arrived.
    pub(crate) fn drain(&self) {
        for (stream, pipe) in [(Stream::Stdout, &self.stdout), (Stream::Stderr, &self.stderr)] {
            // tokio may not know yet that the pipe is readable, so ask Linux.
            self.read(stream, |buffer| channel::read_now(pipe, buffer));
        }
    }

    /// Reads without waiting, up to a bound; false at the end of the pipe.
    fn read(&self, stream: Stream, mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> bool {
        // On the stack, so that an idle guest holds no buffers.
        let mut buffer = [0; 16 * 1024];
        let mut total = 0;
        while total < MAX_DRAIN {
            match read(&mut buffer) {
                Ok(0) => return false,
                Ok(n) => {
                    total += n;
                    self.sink.borrow_mut().accept(stream, &buffer[..n]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

impl OutputSink {
    fn accept(&mut self, stream: Stream, bytes: &[u8]) {
        match &self.exec {
            Some(exec) => exec.output(stream, bytes),
            None => {
                let room = MAX_IDLE_OUTPUT.saturating_sub(self.idle_bytes).min(bytes.len());
                if room > 0 {
                    self.idle_bytes += room;
                    self.idle.push((stream, bytes[..room].to_vec()));
                }
                let lost = (bytes.len() - room) as u64;
                match stream {
                    Stream::Stdout => self.idle_dropped[0] += lost,
                    Stream::Stderr => self.idle_dropped[1] += lost,
                }
            }
        }
    }
}
