//! The body of a request to execute.

use std::collections::BTreeMap;

use belljar_engine::exec::{self, ExecParams, Source, language_named};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::fields::Size;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecBody {
    /// `python` (default), `bash`, `javascript`, `typescript` or another language of the image. Each has
    /// a kernel that keeps its variables; JavaScript and TypeScript share one.
    pub language: Option<String>,
    /// Code for the kernel of that language.
    pub code: Option<String>,
    /// Instead of `code`: a command in a process of its own, as text for a shell or as a list.
    pub command: Option<CommandLine>,
    /// Seconds it may run.
    #[schema(exclusive_minimum = 0, maximum = 31_622_400)]
    pub timeout: Option<f64>,
    pub env: Option<BTreeMap<String, String>>,
    /// Working directory of a command.
    pub cwd: Option<String>,
    /// Answer at once; it runs in a process of its own, beside everything else.
    #[serde(default)]
    pub background: bool,
    /// Standard input: text, for a command; or `true` to keep it open and send input with
    /// `POST .../stdin`. By default it is empty.
    #[serde(default)]
    pub stdin: Stdin,
    /// The user: `belljar` or `1000`, the only one in a sandbox.
    pub user: Option<User>,
    /// Your own id: the same id is executed only once, and answered with the same result.
    pub exec_id: Option<String>,
    /// Bytes of stdout and of stderr to keep, each.
    pub max_output: Option<Size>,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected text for a shell, or an array of words")]
pub(crate) enum CommandLine {
    Text(String),
    List(Vec<String>),
}

/// Standard input: all of it now, or whether more may come.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected text, or true or false")]
pub(crate) enum Stdin {
    Open(bool),
    Text(String),
}

impl Default for Stdin {
    fn default() -> Self {
        Stdin::Open(false)
    }
}

/// By number or by name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a name or a number")]
pub(crate) enum User {
    Id(u32),
    Name(String),
}

impl ExecBody {
    pub(crate) fn into_params(self) -> Result<ExecParams, ApiError> {
        let language = language_named(self.language.as_deref())?;
        let source = match (self.code, self.command) {
            (Some(text), None) => Source::Code { language, text },
            (None, Some(CommandLine::Text(text))) => Source::Shell(text),
            (None, Some(CommandLine::List(argv))) => Source::Program(argv),
            (Some(_), Some(_)) | (None, None) => {
                return Err(ApiError::invalid("give either `code` or `command`"));
            }
        };
        Ok(ExecParams {
            id: self.exec_id,
            timeout_s: self.timeout,
            output_limit: self.max_output.map(|size| size.0),
            env: self.env.unwrap_or_default(),
            cwd: self.cwd,
            background: self.background,
            stdin: match self.stdin {
                Stdin::Open(false) => exec::Stdin::Closed,
                Stdin::Open(true) => exec::Stdin::Open,
                Stdin::Text(text) => exec::Stdin::Text(text),
            },
            user: self.user.map(|user| match user {
                User::Id(id) => id.to_string(),
                User::Name(name) => name,
            }),
            ..ExecParams::new(source)
        })
    }
}
