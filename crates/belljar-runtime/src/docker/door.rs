//! Meeting the guest of a container: at a socket of ours that it comes to, or attached to its
//! standard streams.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_proto::door::{self, KNOCK_SIZE, Piece, Scanner};
use bollard::Docker;
use bollard::container::LogOutput;
use bollard::query_parameters::AttachContainerOptionsBuilder;
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::recipe::SOCKET;
use crate::RuntimeError;

/// From the start of a container to its guest at our door; engines under load take a while.
const ARRIVAL: Duration = Duration::from_secs(30);

/// Whoever comes to our door says at once who they are.
const KNOCKING: Duration = Duration::from_secs(2);

/// A directory that one container sees, and in it a socket that we listen on. Removed when dropped.
#[derive(Debug)]
pub(super) struct Door {
    directory: PathBuf,
    listener: UnixListener,
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
        Ok(Door { directory, listener })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Waits for the guest; `nonce` is what it is known by, nothing before the first conversation.
    /// Code inside may come to the door as well, and is sent away.
    pub(super) async fn guest(&self, nonce: Option<&str>) -> Result<UnixStream, RuntimeError> {
        let expected = door::knock(nonce.unwrap_or_default());
        let waiting = async {
            loop {
                let (mut stream, _) =
                    self.listener.accept().await.map_err(RuntimeError::Connect)?;
                let mut knock = [0; KNOCK_SIZE];
                let knocked = timeout(KNOCKING, stream.read_exact(&mut knock)).await;
                if matches!(knocked, Ok(Ok(_))) && knock == expected {
                    return Ok(stream);
                }
            }
        };
        timeout(ARRIVAL, waiting).await.unwrap_or(Err(RuntimeError::TimedOut(ARRIVAL.as_secs())))
    }
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
