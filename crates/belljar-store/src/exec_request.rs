//! The request of an execution.

use std::collections::BTreeMap;

use belljar_proto::exec::{
    DEFAULT_GRACE_MS, DEFAULT_OUTPUT_LIMIT, DEFAULT_TIMEOUT_MS, ExecSpec, Language, What,
};
use belljar_runtime::languages;
use serde::{Deserialize, Serialize};

/// What to execute and how, without the code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    #[serde(flatten)]
    pub what: What,
    pub timeout_ms: u64,
    pub output_limit: u64,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Runs beside other executions, and the client does not wait for it.
    #[serde(default)]
    pub background: bool,
    /// Takes input while it runs.
    #[serde(default)]
    pub stdin: bool,
    /// For a cell in bash: stderr is part of stdout, in the order in which both were written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merge_output: bool,
}

impl ExecRequest {
    #[must_use]
    pub fn new(what: What) -> ExecRequest {
        ExecRequest {
            what,
            timeout_ms: DEFAULT_TIMEOUT_MS,
            output_limit: DEFAULT_OUTPUT_LIMIT,
            env: BTreeMap::new(),
            background: false,
            stdin: false,
            merge_output: false,
        }
    }

    /// A cell in the session's kernel of this language.
    #[must_use]
    pub fn cell(language: Language) -> ExecRequest {
        ExecRequest::new(What::Cell { language, echo: true })
    }

    /// The kernel whose queue the execution waits in. Cells share a kernel and wait for each other;
    /// commands have their own process.
    #[must_use]
    pub fn lane(&self) -> Option<Language> {
        match self.what {
            What::Cell { language, .. } => Some(language.kernel()),
            What::Command { .. } => None,
        }
    }

    /// The name of what runs: a language, or `command`.
    #[must_use]
    pub fn language(&self) -> &'static str {
        match self.what {
            What::Cell { language, .. } => languages::name(language),
            What::Command { .. } => "command",
        }
    }

    /// The request to the guest. `base_env` is the environment of the session.
    #[must_use]
    pub fn spec(&self, exec_id: &str, base_env: &[(String, String)]) -> ExecSpec {
        let mut env: BTreeMap<String, String> = base_env.iter().cloned().collect();
        env.extend(self.env.clone());
        ExecSpec {
            exec_id: exec_id.to_owned(),
            what: self.what.clone(),
            env: env.into_iter().collect(),
            timeout_ms: self.timeout_ms,
            grace_ms: DEFAULT_GRACE_MS,
            output_limit: self.output_limit,
            stdin: self.stdin,
            script: None,
            merge_output: self.merge_output,
        }
    }
}
