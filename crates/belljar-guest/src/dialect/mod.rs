//! How each kind of kernel is spoken to: messages to bytes, bytes to messages. All else about
//! kernels is the same and in [`crate::kernel`].

mod shell;

use belljar_proto::exec::{ExecSpec, Language};
use belljar_proto::frame::{self, Decoder};
use belljar_proto::kernel::{FromKernel, ToKernel};

use shell::Shell;

/// One conversation with one kernel, and what there is to remember of it.
#[derive(Debug)]
pub(crate) enum Dialect {
    /// A program of ours, which speaks the protocol itself.
    Frames(Decoder),
    /// A plain shell, which is told what to do in its own language.
    Shell(Shell),
}

/// A cell as it is said to a kernel.
#[derive(Debug)]
pub(crate) struct Order<'a> {
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
            // Whatever it is, and whoever wrote it.
            _ => Dialect::Frames(Decoder::default()),
        }
    }

    pub(crate) fn is_shell(&self) -> bool {
        matches!(self, Dialect::Shell(_))
    }

    /// What a fresh kernel needs to hear before it can say hello.
    pub(crate) fn first_words(&self) -> &'static [u8] {
        match self {
            Dialect::Frames(_) => b"",
            Dialect::Shell(_) => shell::SETUP.as_bytes(),
        }
    }

    /// Says "run this", or why it cannot be said.
    pub(crate) fn cell(&mut self, order: &Order<'_>) -> Result<Vec<u8>, String> {
        let spec = order.spec;
        match self {
            Dialect::Frames(_) => {
                let env = spec.env.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
                let message = ToKernel::Exec {
                    exec_id: spec.exec_id.clone(),
                    echo: order.echo,
                    acknowledges: true,
                    stdin: spec.stdin,
                    variant: order.variant.map(str::to_owned),
                    env,
                    script: spec.script.clone(),
                };
                Ok(frame::encode(&message, order.code))
            }
            Dialect::Shell(shell) => shell.cell(order),
        }
    }

    /// Says anything else. What a shell has no use for becomes nothing.
    pub(crate) fn say(&mut self, message: &ToKernel, body: &[u8]) -> Vec<u8> {
        match self {
            Dialect::Frames(_) => frame::encode(message, body),
            Dialect::Shell(shell) => shell.say(message),
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match self {
            Dialect::Frames(decoder) => decoder.push(bytes),
            Dialect::Shell(shell) => shell.push(bytes),
        }
    }

    /// The next whole message and its body. After an error the kernel cannot be understood any more.
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
