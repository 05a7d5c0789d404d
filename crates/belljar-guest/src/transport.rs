//! How the host and the guest connect.
//!
//! A native guest inherits a socket that the host bound. In a container the guest connects to the host's
//! socket, in a directory that code inside cannot change, or uses its standard input and output, which
//! works wherever an engine can attach to them.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::handshake::{self, MARKER_SIZE, Marker, Scanner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::time::sleep;

use crate::Guest;
use crate::connection::{self, Carries};
use crate::host_presence::MAX_CONNECTIONS;

/// Between attempts to connect: short at first, while a new server may be starting.
const DIAL_PAUSE: Duration = Duration::from_millis(20);
const DIAL_PAUSE_LATER: Duration = Duration::from_millis(250);
const DIAL_SOON: u32 = 100;

/// How this guest connects.
#[derive(Debug)]
pub enum Transport {
    /// Bound by the host, at a path that code inside cannot see.
    Listener(UnixListener),
    /// The host listens here; code inside cannot replace the socket.
    Dial(PathBuf),
    /// The guest's standard input and output, which no other process inside has.
    Stdio,
}

pub(crate) async fn serve(guest: Rc<Guest>, transport: Transport) -> io::Result<()> {
    match transport {
        Transport::Listener(listener) => listen(guest, listener).await,
        Transport::Dial(path) => dial(guest, &path).await,
        Transport::Stdio => stdio(guest).await,
    }
}

async fn listen(guest: Rc<Guest>, listener: UnixListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        if guest.presence.connections() >= MAX_CONNECTIONS {
            continue;
        }
        tokio::task::spawn_local(connection::serve(Rc::clone(&guest), stream, Carries::Fds));
    }
}

/// Connects to the host whenever there is no connection. Code inside can connect to the socket too. The
/// host recognises the guest by its process, which is the first in the container, and by the nonce of
/// their first connection, which was made before any code ran.
async fn dial(guest: Rc<Guest>, path: &Path) -> io::Result<()> {
    let mut attempts = 0;
    loop {
        if let Ok(mut stream) = UnixStream::connect(path).await {
            let hello = handshake::guest_hello(&guest.nonce());
            if stream.write_all(&hello).await.is_ok() {
                attempts = 0;
                connection::serve(Rc::clone(&guest), stream, Carries::Fds).await;
            }
        }
        attempts += 1;
        sleep(if attempts < DIAL_SOON { DIAL_PAUSE } else { DIAL_PAUSE_LATER }).await;
    }
}

/// Every conversation begins with the marker that the first one chose. The marker ends an incomplete
/// message, which a host that died may have left in the pipes.
async fn stdio(guest: Rc<Guest>) -> io::Result<()> {
    let (stdin, stdout) = (own(io::stdin())?, own(io::stdout())?);
    let mut stdin = pipe::Receiver::from_owned_fd(stdin)?;
    let stdout = Rc::new(tokio::sync::Mutex::new(pipe::Sender::from_owned_fd(stdout)?));
    let mut marker = [0; MARKER_SIZE];
    stdin.read_exact(&mut marker).await?;
    let mut conversation = Conversation::begin(&guest, &stdout, marker).await?;
    let mut scanner = Scanner::new(marker);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = stdin.read(&mut buffer).await?;
        if read == 0 {
            // The pipe is closed: no host can connect again.
            drop(conversation);
            return std::future::pending().await;
        }
        scanner.push(&buffer[..read]);
        while let Some(piece) = scanner.next_piece() {
            match piece {
                // An error means that this conversation is over.
                handshake::Piece::Bytes(bytes) => drop(conversation.inner.write_all(&bytes).await),
                handshake::Piece::Marker => {
                    conversation = Conversation::begin(&guest, &stdout, marker).await?;
                }
            }
        }
    }
}

/// A duplicate of a descriptor.
fn own(stream: impl AsFd) -> io::Result<OwnedFd> {
    stream.as_fd().try_clone_to_owned()
}

/// One conversation over standard input and output.
struct Conversation {
    inner: tokio::net::unix::OwnedWriteHalf,
    over: Rc<Cell<bool>>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Conversation {
    async fn begin(
        guest: &Rc<Guest>,
        stdout: &Rc<tokio::sync::Mutex<pipe::Sender>>,
        marker: Marker,
    ) -> io::Result<Conversation> {
        stdout.lock().await.write_all(&marker).await?;
        let (ours, theirs) = UnixStream::pair()?;
        let (mut from_inner, inner) = ours.into_split();
        let over = Rc::new(Cell::new(false));
        let (ended, stdout) = (Rc::clone(&over), Rc::clone(stdout));
        let pump = async move {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = from_inner.read(&mut buffer).await {
                let mut stdout = stdout.lock().await;
                // A message is written whole even if the next conversation begins.
                if ended.get() || stdout.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
        };
        let serving = connection::serve(Rc::clone(guest), theirs, Carries::BytesOnly);
        let tasks = [tokio::task::spawn_local(pump), tokio::task::spawn_local(serving)];
        Ok(Conversation { inner, over, tasks })
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.over.set(true);
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
