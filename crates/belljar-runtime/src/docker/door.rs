//! Meeting the guest of a container: at a socket of ours that it comes to, or attached to its
//! standard streams.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use belljar_proto::door::{self, KNOCK_SIZE, Piece, Scanner};
use bollard::Docker;
use bollard::container::LogOutput;
use bollard::query_parameters::AttachContainerOptionsBuilder;
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::engine::EngineError;
use super::recipe::SOCKET;
use crate::RuntimeError;

/// From the start of a container to its guest at our door; engines under load take a while.
const ARRIVAL: Duration = Duration::from_secs(30);

/// Whoever comes to our door says at once who they are.
const KNOCKING: Duration = Duration::from_secs(2);

/// Connections of others that are being closed at a time: closing one may take a while.
const MAX_LEAVING: usize = 64;

/// A directory that one container sees, below one that only we can enter. Removed when dropped.
///
/// The container's user must get to the socket in it, whoever that is on this machine. So the
/// directory and the socket are open to all, and the directory above is what keeps others out: the
/// engine mounts this one into the container without going through those above it.
#[derive(Debug)]
pub(super) struct Door {
    directory: PathBuf,
}

impl Door {
    /// Opens the door of a sandbox; whatever an earlier server left there is replaced. The directory
    /// itself is not: a container that runs already has it mounted.
    pub(super) fn open(directory: PathBuf) -> Result<(Door, Reception), RuntimeError> {
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
        let reception = Reception { listener: Some(listener), socket };
        Ok((Door { directory }, reception))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The socket at which we wait for the guest. Nobody can connect any more when the guest has.
#[derive(Debug)]
pub(super) struct Reception {
    /// There until it is dropped.
    listener: Option<UnixListener>,
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
    ) -> Result<UnixStream, RuntimeError> {
        let listener = self.listener.as_ref().ok_or(RuntimeError::Gone)?;
        let expected = door::knock(nonce.unwrap_or_default());
        let mut strangers = Strangers::default();
        let waiting = async {
            loop {
                let (mut stream, _) = listener.accept().await.map_err(RuntimeError::Connect)?;
                let peer = stream.peer_cred().ok().and_then(|peer| peer.pid()).unwrap_or(-1);
                if !is_guest(peer, pid) {
                    strangers.send_away(peer, stream)?;
                    continue;
                }
                let mut knock = [0; KNOCK_SIZE];
                let knocked = timeout(KNOCKING, stream.read_exact(&mut knock)).await;
                if matches!(knocked, Ok(Ok(_))) && knock == expected {
                    return Ok(stream);
                }
                strangers.send_away(peer, stream)?;
            }
        };
        let met = timeout(ARRIVAL, waiting).await;
        met.unwrap_or_else(|_| match strangers.last {
            Some(peer) => Err(EngineError::Strangers { peer, pid }.into()),
            None => Err(RuntimeError::TimedOut(ARRIVAL.as_secs())),
        })
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        // Connections that nobody accepted go with it.
        if let Some(listener) = self.listener.take().and_then(|it| it.into_std().ok()) {
            std::thread::spawn(move || drop(listener));
        }
    }
}

/// Whether the process that the kernel names is the container's first. It says 0 of processes that
/// it cannot name to us, which happens where we are in a container ourselves: there the directory,
/// and in later conversations the nonce, have to do.
fn is_guest(peer: i32, pid: u32) -> bool {
    peer == 0 || u32::try_from(peer) == Ok(pid)
}

/// Connections that are not the guest's. They are closed on a thread of their own: what their
/// sender put into them is closed with them, and may take as long as the sender chose.
#[derive(Debug, Default)]
struct Strangers {
    last: Option<i32>,
    closing: Option<mpsc::SyncSender<std::os::unix::net::UnixStream>>,
}

impl Strangers {
    fn send_away(&mut self, peer: i32, stream: UnixStream) -> Result<(), RuntimeError> {
        self.last = Some(peer);
        let stream = stream.into_std().map_err(RuntimeError::Connect)?;
        let closing = self.closing.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::sync_channel(MAX_LEAVING);
            std::thread::spawn(move || receiver.into_iter().for_each(drop));
            sender
        });
        closing.try_send(stream).map_err(|error| {
            let (mpsc::TrySendError::Full(stream) | mpsc::TrySendError::Disconnected(stream)) =
                error;
            std::thread::spawn(move || drop(stream));
            RuntimeError::Connect(io::Error::other("too many others connect"))
        })
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
) -> Result<UnixStream, bollard::errors::Error> {
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
    Ok(ours)
}
