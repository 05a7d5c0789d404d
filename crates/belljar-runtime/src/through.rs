//! Bytes to or from a guest, through what it handed over for that: a pipe or a socket, or a stream
//! that is carried over the link, where descriptors cannot be handed over.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use crate::RuntimeError;
use crate::link::Reply;
use crate::relay::RelayStream;

/// Reading where it is for writing only gives nothing, and the other way round an error. Dropped, it
/// ends; what was written arrives all the same.
#[derive(Debug)]
pub enum Through {
    Reading(pipe::Receiver),
    Writing(pipe::Sender),
    Socket(UnixStream),
    Carried(RelayStream),
}

impl Through {
    pub(crate) fn reading(reply: Reply) -> Result<Through, RuntimeError> {
        // What is no reading end is refused here.
        Through::of(reply, |fd| pipe::Receiver::from_owned_fd(fd).map(Through::Reading))
    }

    pub(crate) fn writing(reply: Reply) -> Result<Through, RuntimeError> {
        Through::of(reply, |fd| pipe::Sender::from_owned_fd(fd).map(Through::Writing))
    }

    pub(crate) fn socket(reply: Reply) -> Result<Through, RuntimeError> {
        Through::of(reply, |fd| {
            let stream = std::os::unix::net::UnixStream::from(fd);
            stream.set_nonblocking(true)?;
            UnixStream::from_std(stream).map(Through::Socket)
        })
    }

    fn of(
        reply: Reply,
        made: impl FnOnce(OwnedFd) -> io::Result<Through>,
    ) -> Result<Through, RuntimeError> {
        match (reply.carried, reply.fds.into_iter().next()) {
            (Some(stream), _) => Ok(Through::Carried(stream)),
            (None, Some(fd)) => made(fd).map_err(RuntimeError::Connect),
            (None, None) => Err(RuntimeError::UnexpectedAnswer),
        }
    }
}

impl AsyncRead for Through {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Through::Reading(pipe) => Pin::new(pipe).poll_read(context, buffer),
            Through::Writing(_) => Poll::Ready(Ok(())),
            Through::Socket(socket) => Pin::new(socket).poll_read(context, buffer),
            Through::Carried(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Through {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Through::Reading(_) => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Through::Writing(pipe) => Pin::new(pipe).poll_write(context, bytes),
            Through::Socket(socket) => Pin::new(socket).poll_write(context, bytes),
            Through::Carried(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Through::Reading(_) | Through::Writing(_) | Through::Socket(_) => Poll::Ready(Ok(())),
            Through::Carried(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            // A pipe ends when it is dropped.
            Through::Reading(_) | Through::Writing(_) => Poll::Ready(Ok(())),
            Through::Socket(socket) => Pin::new(socket).poll_shutdown(context),
            Through::Carried(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
