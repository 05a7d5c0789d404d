//! Encodes and decodes the messages of each kind of kernel. Everything else about kernels is in
//! [`crate::kernel`].

mod shell;

use belljar_proto::exec::{ExecSpec, Language};
use belljar_proto::frame::{self, Decoder};
use belljar_proto::kernel::{FromKernel, ToKernel};

use shell::Shell;

/// The encoding of one kernel's messages, with the state of its connection.
#[derive(Debug)]
pub(crate) enum Dialect {
    /// One of our kernel programs, which uses frames.
    Frames(Decoder),
    /// A plain shell, for which messages become shell commands.
    Shell(Shell),
}

/// A cell to be sent to a kernel.
#[derive(Debug)]
pub(crate) struct CellRequest<'a> {
    pub(crate) spec: &'a ExecSpec,
    pub(crate) echo: bool,
    /// Which of the kernel's languages it is, if not the first.
    pub(crate) variant: Option<&'a str>,
    /// Where a shell finds the standard input of the cell, if it has any.
    pub(crate) stdin: Option<&'a str>,
    pub(crate) code: &'a [u8],
}

impl Dialect {
    pub(crate) fn of(language: Language) -> Dialect {
        match language {
            Language::Bash => Dialect::Shell(Shell::default()),
            _ => Dialect::Frames(Decoder::default()),
        }
    }

    pub(crate) fn is_shell(&self) -> bool {
        matches!(self, Dialect::Shell(_))
    }

    /// Sent to a fresh kernel, which needs it before it can send its hello.
    pub(crate) fn setup(&self) -> &'static [u8] {
        match self {
            Dialect::Frames(_) => b"",
            Dialect::Shell(_) => shell::SETUP.as_bytes(),
        }
    }

    /// Encodes a cell.
    pub(crate) fn cell(&mut self, request: &CellRequest<'_>) -> Result<Vec<u8>, String> {
        let spec = request.spec;
        match self {
            Dialect::Frames(_) => {
                let env = spec.env.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
                let message = ToKernel::Exec {
                    exec_id: spec.exec_id.clone(),
                    echo: request.echo,
                    acknowledges: true,
                    stdin: spec.stdin,
                    variant: request.variant.map(str::to_owned),
                    env,
                    script: spec.script.clone(),
                };
                Ok(frame::encode(&message, request.code))
            }
            Dialect::Shell(shell) => shell.cell(request),
        }
    }

    /// Encodes any other message. Returns no bytes for messages that a shell does not need.
    pub(crate) fn encode(&mut self, message: &ToKernel, body: &[u8]) -> Vec<u8> {
        match self {
            Dialect::Frames(_) => frame::encode(message, body),
            Dialect::Shell(shell) => shell.encode(message),
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match self {
            Dialect::Frames(decoder) => decoder.push(bytes),
            Dialect::Shell(shell) => shell.push(bytes),
        }
    }

    /// The next whole message and its body. After an error nothing more can be decoded.
    pub(crate) fn next(&mut self) -> Result<Option<(FromKernel, Vec<u8>)>, String> {
        match self {
            Dialect::Frames(decoder) => {
                let Some(frame) = decoder.next_frame().map_err(|e| e.to_string())? else {
                    return Ok(None);
                };
                let message = frame.head().map_err(|e| e.to_string())?;
                Ok(Some((message, frame.body)))
            }
            Dialect::Shell(shell) => Ok(shell.next()),
        }
    }
}
