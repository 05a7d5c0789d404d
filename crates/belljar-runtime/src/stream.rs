//! A separate connection to a guest for events (terminals, watches). It is read only as fast as the caller takes them, so that
//! a slow caller delays only this connection. The guest makes it and sends one end, or relays it where it cannot send
//! descriptors.

use std::time::Duration;

use belljar_proto::frame::{self, Decoder, Frame};
use belljar_proto::guest::{Answer, Call, FromGuest, ReplyOutcome, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::RuntimeError;
use crate::guest_pipe::GuestPipe;
use crate::link::Link;

/// How long a guest may take for the first answer.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct GuestStream {
    connection: GuestPipe,
    decoder: Decoder,
    buffer: Box<[u8]>,
}

impl GuestStream {
    /// Makes one call on a new connection. `next` reads what follows the answer.
    pub(crate) async fn open(
        link: &Link,
        call: Call,
    ) -> Result<(Answer, GuestStream), RuntimeError> {
        tokio::time::timeout(BEGIN_TIMEOUT, GuestStream::try_open(link, call))
            .await
            .unwrap_or(Err(RuntimeError::TimedOut(BEGIN_TIMEOUT.as_secs())))
    }

    async fn try_open(link: &Link, call: Call) -> Result<(Answer, GuestStream), RuntimeError> {
        let reply = link.call(Call::Connect, &[]).await?;
        let mut connection = GuestPipe::socket(link, reply)?;
        let bytes = frame::try_encode(&Request { id: 0, call }, &[]);
        let bytes = bytes.map_err(RuntimeError::Nonsense)?;
        connection.write_all(&bytes).await.map_err(|_| RuntimeError::Gone)?;
        let buffer = vec![0; 32 * 1024].into();
        let mut stream = GuestStream { connection, decoder: Decoder::default(), buffer };
        Ok((stream.answer().await?, stream))
    }

    /// The next message with its body; `None` when the sandbox is gone. May be cancelled without losing a message.
    pub(crate) async fn next(&mut self) -> Result<Option<(FromGuest, Vec<u8>)>, RuntimeError> {
        let Some(frame) = self.frame().await? else { return Ok(None) };
        Ok(Some((frame.head().map_err(RuntimeError::Nonsense)?, frame.body)))
    }

    async fn answer(&mut self) -> Result<Answer, RuntimeError> {
        match self.next().await?.ok_or(RuntimeError::Gone)?.0 {
            FromGuest::Reply { outcome: ReplyOutcome::Ok(answer), .. } => Ok(answer),
            FromGuest::Reply { outcome: ReplyOutcome::Err(refusal), .. } => Err(refusal.into()),
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }

    async fn frame(&mut self) -> Result<Option<Frame>, RuntimeError> {
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(RuntimeError::Nonsense)? {
                return Ok(Some(frame));
            }
            match self.connection.read(&mut self.buffer).await {
                Ok(0) | Err(_) => return Ok(None),
                Ok(n) => self.decoder.push(&self.buffer[..n]),
            }
        }
    }
}
