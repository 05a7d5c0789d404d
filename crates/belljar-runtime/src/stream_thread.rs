//! A thread for the streams of one sandbox.
//!
//! A sandbox shares the pipes and sockets that its guest sends. It can make them blocking, hold the lock that reading needs,
//! and put descriptors into their queues, which Linux closes in the thread that reads. So no worker thread of the server uses
//! them: this thread does, and passes the bytes on. A sandbox can block only its own thread.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use belljar_sys::channel;
use belljar_sys::untrusted::UntrustedFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, Interest};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};

use crate::lock;

/// The most that is moved at once: as much as a pipe holds.
const PIECE: usize = 64 * 1024;

/// The same for events of a guest, which are small.
const SOCKET_PIECE: usize = 16 * 1024;

/// How long a sandbox may take to read the last bytes after the writer was dropped.
const LAST_BYTES: Duration = Duration::from_secs(60);

/// The loops below need little stack.
const STACK: usize = 256 * 1024;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The thread of a sandbox, which exists while it has work.
#[derive(Debug, Default)]
pub(crate) struct StreamThreads(Mutex<Weak<StreamThread>>);

impl StreamThreads {
    pub(crate) fn get(&self) -> io::Result<Arc<StreamThread>> {
        let mut current = lock(&self.0);
        if let Some(thread) = current.upgrade() {
            return Ok(thread);
        }
        let thread = Arc::new(StreamThread::start()?);
        *current = Arc::downgrade(&thread);
        Ok(thread)
    }
}

#[derive(Debug)]
pub(crate) struct StreamThread {
    /// The thread ends when this is dropped. All work keeps the thread alive until it is finished.
    work: mpsc::UnboundedSender<Work>,
}

impl StreamThread {
    fn start() -> io::Result<StreamThread> {
        let (sender, mut work) = mpsc::unbounded_channel::<Work>();
        let thread = std::thread::Builder::new().name("streams".into()).stack_size(STACK);
        thread.spawn(move || {
            // If this fails, all work is dropped, and its callers get an error.
            let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                while let Some(work) = work.recv().await {
                    tokio::spawn(work);
                }
            });
        })?;
        Ok(StreamThread { work: sender })
    }

    /// Runs a future on the thread.
    pub(crate) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let thread = Arc::clone(self);
        let _ = self.work.send(Box::pin(async move {
            work.await;
            drop(thread);
        }));
    }

    /// Runs a future on the thread and waits for the result. Cancelling the wait cancels the work.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let (mut sender, result) = oneshot::channel();
        self.spawn(async move {
            let result = tokio::select! {
                result = work => result,
                () = sender.closed() => return,
            };
            let _ = sender.send(result);
        });
        result.await.unwrap_or_else(|_| Err(io::Error::other("the sandbox's thread has ended")))
    }
}

/// Reads a pipe of the sandbox, until its end or until the reader is dropped.
pub(crate) async fn read_pipe(pipe: UntrustedFd, to: DuplexStream, dropped: oneshot::Receiver<()>) {
    tokio::select! {
        // The reader sees the end; the job that wrote it knows the reason.
        _ = try_read_pipe(pipe, to) => {}
        _ = dropped => {}
    }
}

/// Writes to a pipe of the sandbox. What was written is delivered even if the writer is dropped.
pub(crate) async fn write_pipe(
    pipe: UntrustedFd,
    from: DuplexStream,
    dropped: oneshot::Receiver<()>,
) {
    let too_late = async {
        let _ = dropped.await;
        tokio::time::sleep(LAST_BYTES).await;
    };
    tokio::select! {
        // The writer gets an error.
        _ = try_write_pipe(pipe, from) => {}
        () = too_late => {}
    }
}

/// Moves bytes both ways over a socket, until the guest closes it or the stream is dropped.
pub(crate) async fn carry_socket(
    socket: UntrustedFd,
    io: DuplexStream,
    dropped: oneshot::Receiver<()>,
) {
    tokio::select! {
        _ = try_carry_socket(socket, io) => {}
        _ = dropped => {}
    }
}

async fn try_read_pipe(pipe: UntrustedFd, mut to: DuplexStream) -> io::Result<()> {
    let pipe = channel::watched_untrusted(pipe)?;
    // Only splice from pipe to pipe can avoid waiting, whatever flags the pipe has.
    let (end, beginning) = channel::own_pipe()?;
    let mut buffer = vec![0; PIECE];
    loop {
        let move_some = |pipe: &UntrustedFd| channel::move_now(pipe, &beginning, PIECE);
        let mut moved = pipe.async_io(Interest::READABLE, move_some).await?;
        if moved == 0 {
            return Ok(());
        }
        while moved > 0 {
            let most = moved.min(buffer.len());
            let read = channel::read_now(&end, &mut buffer[..most])?;
            to.write_all(&buffer[..read]).await?;
            moved -= read;
        }
    }
}

async fn try_write_pipe(pipe: UntrustedFd, mut from: DuplexStream) -> io::Result<()> {
    let pipe = channel::watched_untrusted(pipe)?;
    let (end, beginning) = channel::own_pipe()?;
    let mut buffer = vec![0; PIECE];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            let mut inside = channel::write_now(&beginning, rest)?;
            rest = &rest[inside..];
            while inside > 0 {
                let move_some = |pipe: &UntrustedFd| channel::move_now(&end, pipe, inside);
                match pipe.async_io(Interest::WRITABLE, move_some).await? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    moved => inside -= moved,
                }
            }
        }
    }
}

async fn try_carry_socket(socket: UntrustedFd, io: DuplexStream) -> io::Result<()> {
    let socket = channel::watched_untrusted(socket)?;
    let (mut reader, mut writer) = tokio::io::split(io);
    let inward = async {
        let mut buffer = vec![0; SOCKET_PIECE];
        loop {
            let receive = |socket: &UntrustedFd| channel::recv_alone(socket, &mut buffer);
            let (read, _) = socket.async_io(Interest::READABLE, receive).await?;
            if read == 0 {
                return Ok(());
            }
            writer.write_all(&buffer[..read]).await?;
        }
    };
    let outward = async {
        let mut buffer = vec![0; SOCKET_PIECE];
        while let Ok(read @ 1..) = reader.read(&mut buffer).await {
            let mut rest = &buffer[..read];
            while !rest.is_empty() {
                let send = |socket: &UntrustedFd| channel::send_now(socket, rest);
                match socket.async_io(Interest::WRITABLE, send).await {
                    Ok(sent) => rest = &rest[sent..],
                    // Bytes that the guest sent before it closed the socket are still read.
                    Err(_) => std::future::pending::<()>().await,
                }
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = inward => ended,
        () = outward => Ok(()),
    }
}
