//! How the host comes in.
//!
//! A native sandbox is given a socket that the host bound. A container cannot be given one: there
//! the guest goes out to the host, through a directory that nobody inside may change, or is spoken
//! to through its standard input and output, which works wherever an engine can attach to them.

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

/// The host needs one connection, and a second while it takes over from a predecessor; in a
/// container the socket can be reached from inside, and must not be a way to exhaust us.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// Between attempts to reach the host: short at first, when its successor may be starting.
const DIAL_PAUSE: Duration = Duration::from_millis(20);
const DIAL_PAUSE_LATER: Duration = Duration::from_millis(250);
const DIAL_SOON: u32 = 100;

/// Where the host is to be met.
#[derive(Debug)]
pub enum Transport {
    /// Bound by the host, at a path nobody inside can see.
    Listener(UnixListener),
    /// The host listens here; nobody inside can put another socket in its place.
    Dial(PathBuf),
    /// Our standard input and output, which nobody else inside has.
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
        if guest.company.connections() >= MAX_CONNECTIONS {
            continue;
        }
        tokio::task::spawn_local(connection::serve(Rc::clone(&guest), stream, Carries::Fds));
    }
}

/// Connects to the host whenever nobody is connected. Code inside can connect as well while the host
/// waits for us: what tells us from it is that we are the first process here, which the host asks
/// its kernel, and the nonce of our first conversation, which began before there was any code.
async fn dial(guest: Rc<Guest>, path: &Path) -> io::Result<()> {
    let mut attempts = 0;
    loop {
        if let Ok(mut stream) = UnixStream::connect(path).await {
            let knock = handshake::knock(&guest.nonce());
            if stream.write_all(&knock).await.is_ok() {
                attempts = 0;
                connection::serve(Rc::clone(&guest), stream, Carries::Fds).await;
            }
        }
        attempts += 1;
        sleep(if attempts < DIAL_SOON { DIAL_PAUSE } else { DIAL_PAUSE_LATER }).await;
    }
}

/// Every conversation begins with the marker that the first one chose: whatever a host that died
/// half-way through a message left in the pipes ends there.
async fn stdio(guest: Rc<Guest>) -> io::Result<()> {
    let (stdin, stdout) = (own(io::stdin())?, own(io::stdout())?);
    let mut stdin = pipe::Receiver::from_owned_fd(stdin)?;
    let stdout = Rc::new(tokio::sync::Mutex::new(pipe::Sender::from_owned_fd(stdout)?));
    let mut marker = [0; MARKER_SIZE];
    stdin.read_exact(&mut marker).await?;
    let mut talk = Talk::begin(&guest, &stdout, marker).await?;
    let mut scanner = Scanner::new(marker);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = stdin.read(&mut buffer).await?;
        if read == 0 {
            // Nobody will ever come back.
            drop(talk);
            return std::future::pending().await;
        }
        scanner.push(&buffer[..read]);
        while let Some(piece) = scanner.next_piece() {
            match piece {
                // A conversation that is over takes no more.
                handshake::Piece::Bytes(bytes) => drop(talk.inner.write_all(&bytes).await),
                handshake::Piece::Marker => talk = Talk::begin(&guest, &stdout, marker).await?,
            }
        }
    }
}

/// A descriptor of our own for one that is open already.
fn own(stream: impl AsFd) -> io::Result<OwnedFd> {
    stream.as_fd().try_clone_to_owned()
}

/// One conversation over standard input and output.
struct Talk {
    inner: tokio::net::unix::OwnedWriteHalf,
    over: Rc<Cell<bool>>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Talk {
    async fn begin(
        guest: &Rc<Guest>,
        stdout: &Rc<tokio::sync::Mutex<pipe::Sender>>,
        marker: Marker,
    ) -> io::Result<Talk> {
        stdout.lock().await.write_all(&marker).await?;
        let (ours, theirs) = UnixStream::pair()?;
        let (mut from_inner, inner) = ours.into_split();
        let over = Rc::new(Cell::new(false));
        let (ended, stdout) = (Rc::clone(&over), Rc::clone(stdout));
        let pump = async move {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = from_inner.read(&mut buffer).await {
                let mut stdout = stdout.lock().await;
                // A message that was begun is ended, however soon the next conversation comes.
                if ended.get() || stdout.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
        };
        let serving = connection::serve(Rc::clone(guest), theirs, Carries::BytesOnly);
        let tasks = [tokio::task::spawn_local(pump), tokio::task::spawn_local(serving)];
        Ok(Talk { inner, over, tasks })
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.over.set(true);
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
