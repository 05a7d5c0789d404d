//! Terminals of a sandbox, which the guest owns.
//!
//! The output of a terminal has a separate connection, which is read only as fast as the caller takes it. A slow caller delays
//! only this connection; `belljar_proto::terminal` describes what the guest does then. Input uses the ordinary link, so that it
//! is not queued behind output.

use belljar_proto::frame::FrameError;
use belljar_proto::guest::{Answer, Call, FromGuest};
use belljar_proto::terminal::{
    MAX_TERMINAL_INPUT, TerminalEvent, TerminalInfo, TerminalSize, TerminalSpec,
};

use crate::stream::GuestStream;
use crate::{RuntimeError, Sandbox};

/// The output of a terminal, from the position where it was attached.
#[derive(Debug)]
pub struct TerminalOutput(GuestStream);

impl TerminalOutput {
    /// The next event, with its output; `None` when the sandbox is gone. May be cancelled without losing an event.
    pub async fn next(&mut self) -> Result<Option<(TerminalEvent, Vec<u8>)>, RuntimeError> {
        match self.0.next().await? {
            Some((FromGuest::Terminal { event, .. }, body)) => Ok(Some((event, body))),
            Some(_) => Err(RuntimeError::UnexpectedAnswer),
            None => Ok(None),
        }
    }
}

impl Sandbox {
    /// Starts a program on a new terminal.
    pub async fn open_terminal(&self, spec: TerminalSpec) -> Result<TerminalInfo, RuntimeError> {
        self.must_know_jobs()?;
        match self.link().call(Call::OpenTerminal(spec), &[]).await?.answer {
            Answer::Terminal(info) => Ok(info),
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }

    /// All terminals, the oldest first. An older guest has none.
    pub async fn terminals(&self) -> Result<Vec<TerminalInfo>, RuntimeError> {
        if self.must_know_jobs().is_err() {
            return Ok(Vec::new());
        }
        let reply = self.link().call(Call::ListTerminals, &[]).await?;
        let parsed = serde_json::from_slice(&reply.body);
        parsed.map_err(|error| RuntimeError::Nonsense(FrameError::Head(error)))
    }

    /// Follows a terminal from a position on, or from the oldest output that is kept.
    pub async fn attach_terminal(
        &self,
        terminal: &str,
        from: Option<u64>,
    ) -> Result<(TerminalInfo, TerminalOutput), RuntimeError> {
        self.must_know_jobs()?;
        let call = Call::AttachTerminal { terminal: terminal.to_owned(), from };
        match GuestStream::open(self.link(), call).await? {
            (Answer::Terminal(info), stream) => Ok((info, TerminalOutput(stream))),
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }

    /// Writes input, and returns when the program has read all of it.
    pub async fn type_at_terminal(&self, terminal: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.must_know_jobs()?;
        for piece in bytes.chunks(MAX_TERMINAL_INPUT) {
            let call = Call::TerminalInput { terminal: terminal.to_owned() };
            self.link().call(call, piece).await?;
        }
        Ok(())
    }

    pub async fn resize_terminal(
        &self,
        terminal: &str,
        size: TerminalSize,
    ) -> Result<(), RuntimeError> {
        self.must_know_jobs()?;
        let call = Call::ResizeTerminal { terminal: terminal.to_owned(), size };
        self.link().call(call, &[]).await.map(|_| ())
    }

    /// Ends every process that was started at a terminal, and forgets the terminal.
    pub async fn close_terminal(&self, terminal: &str) -> Result<(), RuntimeError> {
        self.must_know_jobs()?;
        let call = Call::CloseTerminal { terminal: terminal.to_owned() };
        self.link().call(call, &[]).await.map(|_| ())
    }
}
