//! A stream of bytes to or from a guest: a pipe or a socket that the guest sent, which the sandbox's own thread reads and
//! writes, or a stream that is relayed over the link, where descriptors cannot be sent.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use belljar_sys::untrusted::UntrustedFd;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::oneshot;

use crate::RuntimeError;
use crate::link::{Link, Reply};
use crate::relay::RelayStream;
use crate::stream_thread::{carry_socket, read_pipe, write_pipe};

/// A read from a stream that is only for writing waits until the other side ends. Dropping the value ends the stream;
/// what was written is still delivered.
#[derive(Debug)]
pub struct GuestPipe(RelayStream);

impl GuestPipe {
    pub(crate) fn reading(link: &Link, reply: Reply) -> Result<GuestPipe, RuntimeError> {
        GuestPipe::of(link, reply, read_pipe)
    }

    pub(crate) fn writing(link: &Link, reply: Reply) -> Result<GuestPipe, RuntimeError> {
        GuestPipe::of(link, reply, write_pipe)
    }

    pub(crate) fn socket(link: &Link, reply: Reply) -> Result<GuestPipe, RuntimeError> {
        GuestPipe::of(link, reply, carry_socket)
    }

    fn of<C: Future<Output = ()> + Send + 'static>(
        link: &Link,
        reply: Reply,
        carry: impl FnOnce(UntrustedFd, DuplexStream, oneshot::Receiver<()>) -> C,
    ) -> Result<GuestPipe, RuntimeError> {
        match (reply.relayed, reply.fds.into_iter().next()) {
            (Some(stream), _) => Ok(GuestPipe(stream)),
            (None, Some(fd)) => {
                let thread = link.stream_thread().map_err(RuntimeError::Connect)?;
                let (stream, other_end, dropped) = RelayStream::pair();
                thread.spawn(carry(fd, other_end, dropped));
                Ok(GuestPipe(stream))
            }
            (None, None) => Err(RuntimeError::UnexpectedAnswer),
        }
    }
}

impl AsyncRead for GuestPipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for GuestPipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
