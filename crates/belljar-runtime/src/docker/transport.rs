//! Connects to the guest of a container: by a socket that the guest connects to, or attached to its standard streams.

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

/// From the start of a container until its guest connects; engines under load take a while.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A guest that has connected sends its hello at once.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The directory with the socket of one container, below a directory that only the server can enter. Removed when dropped.
///
/// The container's user must be able to use the socket with any id on this machine. So the directory and the socket are
/// open to all users. The directory above keeps other users out; the engine mounts this one into the container, which
/// needs no access to the one above.
#[derive(Debug)]
pub(super) struct Transport {
    directory: PathBuf,
}

impl Transport {
    /// Makes the socket, and replaces one of an earlier server. An existing directory stays: a running container has it
    /// mounted.
    pub(super) fn open(directory: PathBuf) -> Result<(Transport, GuestListener), RuntimeError> {
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
        let listener = GuestListener { listener, _queue: queue, closer, socket };
        Ok((Transport { directory }, listener))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

/// The socket that the guest connects to. It is removed as soon as the guest has connected.
#[derive(Debug)]
pub(super) struct GuestListener {
    listener: UnixListener,
    /// The same socket again, dropped after the other: closing it closes the connections that were not accepted, with the
    /// descriptors in their queues.
    _queue: UntrustedFd,
    closer: Closer,
    socket: PathBuf,
}

impl GuestListener {
    /// Waits for the guest, which is the container's first process, `pid`. Linux reports which process connected, and
    /// nothing that another process sends is read. `nonce` is that of the guest; none before the first connection.
    pub(super) async fn accept(
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
                    let hello = timeout(HELLO_TIMEOUT, read_hello(&stream)).await;
                    if matches!(hello, Ok(Ok(hello)) if hello == expected) {
                        return Ok(stream.into_inner());
                    }
                }
                stranger = Some(peer);
                if self.closer.backlog() > MAX_UNCLOSED {
                    let why = "too many other processes connect to the socket of the guest";
                    return Err(RuntimeError::Connect(io::Error::other(why)));
                }
            }
        };
        let accepted = timeout(CONNECT_TIMEOUT, waiting).await;
        accepted.unwrap_or_else(|_| match stranger {
            Some(peer) => Err(ContainerEngineError::Strangers { peer, pid }.into()),
            None => Err(RuntimeError::TimedOut(CONNECT_TIMEOUT.as_secs())),
        })
    }
}

impl Drop for GuestListener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

/// Whether the connected process is the container's first. Linux reports 0 for processes outside of our PID namespace,
/// which happens if the server runs in a container itself. Then only the directory and, after the first connection, the
/// nonce protect the host.
fn is_guest(peer: i32, pid: u32) -> bool {
    peer == 0 || u32::try_from(peer) == Ok(pid)
}

/// Reads the hello of a connected process. One that sends descriptors is not the guest.
async fn read_hello(stream: &AsyncFd<UntrustedFd>) -> io::Result<[u8; GUEST_HELLO_SIZE]> {
    let closer = stream.get_ref().closer();
    let (mut hello, mut fds, mut at) = ([0; GUEST_HELLO_SIZE], Vec::new(), 0);
    while at < GUEST_HELLO_SIZE {
        let receive = |stream: &UntrustedFd| {
            channel::recv_untrusted(stream, &mut hello[at..], &mut fds, closer)
        };
        at += match stream.async_io(Interest::READABLE, receive).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => read,
        };
        if !fds.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(hello)
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
        // Invalid argument: the path does not fit into a socket address.
        _ if cause.kind() == io::ErrorKind::InvalidInput => {
            "its path is too long; a shorter one can be set with BELLJAR_SOCKET_DIR"
        }
        _ => "choose another directory with BELLJAR_SOCKET_DIR",
    };
    let cause = io::Error::new(cause.kind(), format!("{cause} ({hint})"));
    RuntimeError::Prepare { path: socket.into(), cause }
}

/// Attaches to a container's standard streams and begins a conversation. The result is the host's end; it ends when it is
/// dropped, or when the engine disconnects.
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
                        // The rest of a conversation with an earlier host.
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
    async fn strangers_with_descriptors_delay_no_one() {
        let place = tempfile::tempdir().unwrap();
        for (kind, make) in KINDS {
            let watchdog = Watchdog::start();
            let (transport, listener) = Transport::open(place.path().join("socket")).unwrap();
            let socket = place.path().join("socket").join(SOCKET);
            let come = |hello: &[u8]| {
                let stranger = StdStream::connect(&socket).unwrap();
                send(&stranger, hello, &make());
                send(&stranger, b"more", &make());
                stranger
            };
            // Another process with the right hello, one with a wrong hello, and then the guest.
            let strangers = [come(&handshake::guest_hello("nonce")), come(&[1; GUEST_HELLO_SIZE])];
            let mut guest = StdStream::connect(&socket).unwrap();
            io::Write::write_all(&mut guest, &handshake::guest_hello("nonce")).unwrap();
            let met = listener.accept(Some("nonce"), std::process::id()).await.unwrap();
            io::Write::write_all(&mut guest, b"it is me").unwrap();
            let mut received = [0; 8];
            rustix::net::recv(&met, &mut received, rustix::net::RecvFlags::PEEK).unwrap();
            assert_eq!(&received, b"it is me", "{kind}");
            assert!(!socket.exists(), "no other process can connect");
            drop((met, transport, strangers));
            watchdog.content(kind).await;
        }
    }
}
