//! Meeting the guest of a container: at a socket of ours that it comes to, or attached to its
//! standard streams.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_proto::door::{self, KNOCK_SIZE, Piece, Scanner};
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
use crate::RuntimeError;
use crate::link::{self, MAX_UNCLOSED};

/// From the start of a container to its guest at our door; engines under load take a while.
const ARRIVAL: Duration = Duration::from_secs(30);

/// Whoever comes to our door says at once who they are.
const KNOCKING: Duration = Duration::from_secs(2);

/// A directory that one container sees, and in it a socket that we listen on. Removed when dropped.
#[derive(Debug)]
pub(super) struct Door {
    directory: PathBuf,
    listener: UnixListener,
    /// The same socket again, dropped after the other: closing it closes whatever is in the queues of
    /// those who came and were not let in.
    _queue: UntrustedFd,
    closer: Closer,
}

impl Door {
    /// Opens the door of a sandbox; whatever an earlier server left there is replaced.
    pub(super) fn open(directory: PathBuf) -> Result<Door, RuntimeError> {
        let prepare = |cause: io::Error| RuntimeError::Prepare { path: directory.clone(), cause };
        fs::create_dir_all(&directory).map_err(prepare)?;
        // The container's user must get to the socket, and nobody outside gets this far.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).map_err(prepare)?;
        let socket = directory.join(SOCKET);
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(prepare(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&socket).map_err(|cause| unusable(&socket, cause))?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).map_err(prepare)?;
        let closer = Closer::default();
        let queue = listener.as_fd().try_clone_to_owned().map_err(prepare)?;
        Ok(Door { directory, listener, _queue: Untrusted::new(queue, &closer), closer })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Waits for the guest; `nonce` is what it is known by, nothing before the first conversation.
    /// Code inside may come to the door as well, and is sent away.
    pub(super) async fn guest(&self, nonce: Option<&str>) -> Result<UntrustedFd, RuntimeError> {
        let expected = door::knock(nonce.unwrap_or_default());
        let waiting = async {
            loop {
                let (stream, _) = self.listener.accept().await.map_err(RuntimeError::Connect)?;
                let stream = link::untrusted(stream, &self.closer)
                    .and_then(channel::watched_untrusted)
                    .map_err(RuntimeError::Connect)?;
                let knocked = timeout(KNOCKING, heard(&stream)).await;
                if matches!(knocked, Ok(Ok(knock)) if knock == expected) {
                    return Ok(stream.into_inner());
                }
                if self.closer.backlog() > MAX_UNCLOSED {
                    let why = "code in the sandbox floods the socket of its guest";
                    return Err(RuntimeError::Connect(io::Error::other(why)));
                }
            }
        };
        timeout(ARRIVAL, waiting).await.unwrap_or(Err(RuntimeError::TimedOut(ARRIVAL.as_secs())))
    }
}

/// What somebody says who came to the door. Who brings descriptors is not the guest.
async fn heard(stream: &AsyncFd<UntrustedFd>) -> io::Result<[u8; KNOCK_SIZE]> {
    let closer = stream.get_ref().closer();
    let (mut knock, mut fds, mut at) = ([0; KNOCK_SIZE], Vec::new(), 0);
    while at < KNOCK_SIZE {
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

impl Drop for Door {
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
    let marker = door::marker(nonce);
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
            let door = Door::open(place.path().join("door")).unwrap();
            let socket = place.path().join("door").join(SOCKET);
            let come = |knock: &[u8]| {
                let stranger = StdStream::connect(&socket).unwrap();
                send(&stranger, knock, &make());
                send(&stranger, b"more", &make());
                stranger
            };
            // One who knows what to say, one who does not, and then the guest.
            let strangers = [come(&door::knock("nonce")), come(&[1; KNOCK_SIZE])];
            let mut guest = StdStream::connect(&socket).unwrap();
            io::Write::write_all(&mut guest, &door::knock("nonce")).unwrap();
            let met = door.guest(Some("nonce")).await.unwrap();
            io::Write::write_all(&mut guest, b"it is me").unwrap();
            let mut heard = [0; 8];
            rustix::net::recv(&met, &mut heard, rustix::net::RecvFlags::PEEK).unwrap();
            assert_eq!(&heard, b"it is me", "{kind}");
            // They are still at the door when it goes.
            let late = [come(&[2; KNOCK_SIZE]), come(b"x")];
            drop((met, door, strangers, late));
            watchdog.content(kind).await;
        }
    }
}
