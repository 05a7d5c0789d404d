//! A checked request to execute something. The store keeps [`ExecRequest`].

use std::sync::Arc;

use belljar_proto::exec::{Language, What};
use belljar_runtime::paths;

pub use crate::store::ExecRequest;

/// An execution to accept: its request, its code, and an id if the client chose one.
#[derive(Debug, Clone)]
pub struct ExecAsk {
    /// Requests with the same id are executed once.
    pub id: Option<String>,
    pub request: ExecRequest,
    pub code: Arc<[u8]>,
}

/// What to execute, and the bytes that go with it: the code of a cell, or the input of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    pub what: What,
    pub bytes: Arc<[u8]>,
}

impl Code {
    /// A cell in the kernel of a language. With `echo`, the value of a last expression is
    /// published.
    #[must_use]
    pub fn cell(language: Language, code: impl Into<Arc<[u8]>>, echo: bool) -> Code {
        Code { what: What::Cell { language, echo }, bytes: code.into() }
    }

    /// A shell script in a separate process; `args` are its `$0`, `$1`, ...
    #[must_use]
    pub fn shell(script: String, args: Vec<String>) -> Code {
        let argv = shell_argv(script).into_iter().chain(args).collect();
        Code { what: What::Command { argv, cwd: paths::SESSION.into() }, bytes: Arc::default() }
    }
}

/// The command line that executes a shell script.
pub(crate) fn shell_argv(script: String) -> Vec<String> {
    vec!["/bin/bash".into(), "-c".into(), script]
}

/// The longest time limit of an execution: a year. A longer one is a mistake.
pub const MAX_TIMEOUT_S: f64 = 366.0 * 86400.0;

/// Seconds as milliseconds; `None` if an execution may not run that long.
#[must_use]
pub fn timeout_ms(seconds: f64) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
    (seconds > 0.0 && seconds <= MAX_TIMEOUT_S).then(|| (seconds * 1000.0).ceil() as u64)
}
