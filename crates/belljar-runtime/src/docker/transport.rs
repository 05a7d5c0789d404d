//! Meeting the guest of a container: at a socket of ours that it comes to, or attached to its
//! standard streams.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_proto::handshake::{self, GUEST_HELLO_SIZE, Piece, Scanner};
use belljar_sys::channel;
use belljar_sys::untrusted::{Closer, Untrusted, UntrustedFd};
use bollard::Docker;
use bollard::container::LogOutput;
use bollard::query_parameters::AttachContainerOptionsBuilder;
use futures_util::StreamExt;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::recipe::SOCKET;
use crate::error::{ContainerEngineError, RuntimeError};
use crate::link::{self, MAX_UNCLOSED};

/// From the start of a container to its guest at our door; engines under load take a while.
const ARRIVAL: Duration = Duration::from_secs(30);

/// Whoever comes to our door says at once who they are.
const KNOCKING: Duration = Duration::from_secs(2);

/// A directory that one container sees, below one that only we can enter. Removed when dropped.
///
/// The container's user must get to the socket in it, whoever that is on this machine. So the
/// directory and the socket are open to all, and the directory above is what keeps others out: the
/// engine mounts this one into the container without going through those above it.
#[derive(Debug)]
pub(super) struct Transport {
    directory: PathBuf,
}

impl Transport {
    /// Opens the door of a sandbox; whatever an earlier server left there is replaced. The directory
    /// itself is not: a container that runs already has it mounted.
    pub(super) fn open(directory: PathBuf) -> Result<(Transport, Reception), RuntimeError> {
        let prepare = |cause: io::Error| RuntimeError::Prepare { path: directory.clone(), cause };
        fs::create_dir_all(&directory).map_err(prepare)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o711)).map_err(prepare)?;
        let socket = directory.join(SOCKET);
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(prepare(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&socket).map_err(|cause| unusable(&socket, cause))?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).map_err(prepare)?;
        let closer = Closer::default();
        let queue = listener.as_fd().try_clone_to_owned().map_err(prepare)?;
        let queue = Untrusted::new(queue, &closer);
        let reception = Reception { listener, _queue: queue, closer, socket };
        Ok((Transport { directory }, reception))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

/// The socket at which we wait for the guest. Nobody can connect any more when the guest has.
#[derive(Debug)]
pub(super) struct Reception {
    listener: UnixListener,
    /// The same socket again, dropped after the other: closing it closes whatever is in the queues of
    /// those who came and were not let in.
    _queue: UntrustedFd,
    closer: Closer,
    socket: PathBuf,
}

impl Reception {
    /// Waits for the guest. `pid` is the container's first process, which the guest is: the kernel
    /// says who connected, and nothing that anybody else sent is read. `nonce` is what the guest is
    /// known by, nothing before the first conversation.
    pub(super) async fn guest(
        self,
        nonce: Option<&str>,
        pid: u32,
    ) -> Result<UntrustedFd, RuntimeError> {
        let expected = handshake::guest_hello(nonce.unwrap_or_default());
        let mut stranger = None;
        let waiting = async {
            loop {
                let (stream, _) = self.listener.accept().await.map_err(RuntimeError::Connect)?;
                let peer = stream.peer_cred().ok().and_then(|peer| peer.pid()).unwrap_or(-1);
                let stream =
                    link::untrusted(stream, &self.closer).map_err(RuntimeError::Connect)?;
                if is_guest(peer, pid) {
                    let stream =
                        channel::watched_untrusted(stream).map_err(RuntimeError::Connect)?;
                    let knocked = timeout(KNOCKING, heard(&stream)).await;
                    if matches!(knocked, Ok(Ok(knock)) if knock == expected) {
                        return Ok(stream.into_inner());
                    }
                }
                stranger = Some(peer);
                if self.closer.backlog() > MAX_UNCLOSED {
                    let why = "too many others connect to the socket of the guest";
                    return Err(RuntimeError::Connect(io::Error::other(why)));
                }
            }
        };
        let met = timeout(ARRIVAL, waiting).await;
        met.unwrap_or_else(|_| match stranger {
            Some(peer) => Err(ContainerEngineError::Strangers { peer, pid }.into()),
            None => Err(RuntimeError::TimedOut(ARRIVAL.as_secs())),
        })
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

/// Whether the process that the kernel names is the container's first. It says 0 of processes that
/// it cannot name to us, which happens where we are in a container ourselves: there the directory,
/// and in later conversations the nonce, have to do.
fn is_guest(peer: i32, pid: u32) -> bool {
    peer == 0 || u32::try_from(peer) == Ok(pid)
}

/// What somebody says who came to the door. Who brings descriptors is not the guest.
async fn heard(stream: &AsyncFd<UntrustedFd>) -> io::Result<[u8; GUEST_HELLO_SIZE]> {
    let closer = stream.get_ref().closer();
    let (mut knock, mut fds, mut at) = ([0; GUEST_HELLO_SIZE], Vec::new(), 0);
    while at < GUEST_HELLO_SIZE {
        let receive = |stream: &UntrustedFd| {
            channel::recv_untrusted(stream, &mut knock[at..], &mut fds, closer)
        };
        at += match stream.async_io(Interest::READABLE, receive).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => read,
        };
        if !fds.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(knock)
}

impl Drop for Transport {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn unusable(socket: &Path, cause: io::Error) -> RuntimeError {
    let hint = match cause.raw_os_error() {
        // Operation not supported: the file system cannot hold sockets.
        Some(95) => {
            "the file system there cannot hold sockets; put them on a Linux one with \
                     BELLJAR_SOCKET_DIR"
        }
        // Invalid argument, and what Rust says of a name that does not fit.
        _ if cause.kind() == io::ErrorKind::InvalidInput => {
            "its path is too long; a shorter one can be set with BELLJAR_SOCKET_DIR"
        }
        _ => "BELLJAR_SOCKET_DIR says where sockets go",
    };
    let cause = io::Error::new(cause.kind(), format!("{cause} ({hint})"));
    RuntimeError::Prepare { path: socket.into(), cause }
}

/// Attaches to a container's standard streams and begins a conversation there. The result is our
/// end of it; it ends when it is dropped, or the engine goes away.
pub(super) async fn attach(
    docker: &Docker,
    container: &str,
    nonce: &str,
) -> Result<UntrustedFd, bollard::errors::Error> {
    let options =
        AttachContainerOptionsBuilder::new().stream(true).stdin(true).stdout(true).build();
    let mut attached = docker.attach_container(container, Some(options)).await?;
    let marker = handshake::marker(nonce);
    attached.input.write_all(&marker).await?;
    attached.input.flush().await?;
    let (ours, theirs) = UnixStream::pair()?;
    let (mut to_guest, mut from_guest) = theirs.into_split();
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        let outward = async {
            while let Ok(read @ 1..) = to_guest.read(&mut buffer).await {
                let sent = attached.input.write_all(&buffer[..read]).await;
                if sent.is_err() || attached.input.flush().await.is_err() {
                    return;
                }
            }
        };
        let inward = async {
            let mut scanner = Scanner::new(marker);
            let mut begun = false;
            while let Some(Ok(output)) = attached.output.next().await {
                let LogOutput::StdOut { message } = output else { continue };
                scanner.push(&message);
                while let Some(piece) = scanner.next_piece() {
                    match piece {
                        Piece::Marker => begun = true,
                        // The rest of what an earlier host was told.
                        Piece::Bytes(_) if !begun => {}
                        Piece::Bytes(bytes) => {
                            if from_guest.write_all(&bytes).await.is_err() {
                                return;
                            }
                        }
                    }
                }
            }
        };
        // When one direction is over, so is the other.
        tokio::select! { () = outward => {}, () = inward => {} }
    });
    Ok(link::untrusted(ours, &Closer::default())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile::{KINDS, Watchdog, send};
    use std::os::unix::net::UnixStream as StdStream;

    #[tokio::test]
    async fn strangers_with_descriptors_hold_up_nobody() {
        let place = tempfile::tempdir().unwrap();
        for (kind, make) in KINDS {
            let watchdog = Watchdog::start();
            let (door, reception) = Transport::open(place.path().join("door")).unwrap();
            let socket = place.path().join("door").join(SOCKET);
            let come = |knock: &[u8]| {
                let stranger = StdStream::connect(&socket).unwrap();
                send(&stranger, knock, &make());
                send(&stranger, b"more", &make());
                stranger
            };
            // One who knows what to say, one who does not, and then the guest.
            let strangers = [come(&handshake::guest_hello("nonce")), come(&[1; GUEST_HELLO_SIZE])];
            let mut guest = StdStream::connect(&socket).unwrap();
            io::Write::write_all(&mut guest, &handshake::guest_hello("nonce")).unwrap();
            let met = reception.guest(Some("nonce"), std::process::id()).await.unwrap();
            io::Write::write_all(&mut guest, b"it is me").unwrap();
            let mut heard = [0; 8];
            rustix::net::recv(&met, &mut heard, rustix::net::RecvFlags::PEEK).unwrap();
            assert_eq!(&heard, b"it is me", "{kind}");
            assert!(!socket.exists(), "nobody else can come");
            drop((met, door, strangers));
            watchdog.content(kind).await;
        }
    }
}
