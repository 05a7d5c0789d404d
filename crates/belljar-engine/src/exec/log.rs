//! One execution as an entry of a session's log.

use belljar_proto::exec::{Dropped, ErrorReport, KernelState, MimeBundle, Status, What};
use serde::Serialize;

use super::request::ExecRequest;
use super::result::ExecResult;
use crate::artifacts::Artifacts;
use crate::clock;
use crate::text::LargeText;

/// An entry of `session.log`.
#[derive(Debug, Serialize)]
pub struct LogEntry {
    pub exec_id: String,
    pub number: u64,
    pub time: String,
    pub language: &'static str,
    pub code: String,
    /// The command line of a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(flatten)]
    pub result: LoggedResult,
}

/// A result without the fields that the entry itself has.
#[derive(Debug, Serialize)]
pub struct LoggedResult {
    pub status: Status,
    pub exit_code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub stdout: LargeText,
    pub stderr: LargeText,
    pub results: Vec<MimeBundle>,
    pub error: Option<ErrorReport>,
    pub duration_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    pub kernel_state: KernelState,
    pub dropped: Dropped,
    #[serde(flatten)]
    pub artifacts: Artifacts,
}

impl LogEntry {
    #[must_use]
    pub fn new(
        number: u64,
        accepted_ms: i64,
        request: &ExecRequest,
        code: &[u8],
        result: ExecResult,
    ) -> LogEntry {
        LogEntry {
            exec_id: result.exec_id,
            number,
            time: clock::rfc3339(accepted_ms),
            language: request.language(),
            code: String::from_utf8_lossy(code).into_owned(),
            command: match &request.what {
                What::Command { argv, .. } => Some(argv.clone()),
                What::Cell { .. } => None,
            },
            result: LoggedResult {
                status: result.status,
                exit_code: result.exit_code,
                reason: result.reason,
                stdout: result.stdout,
                stderr: result.stderr,
                results: result.results,
                error: result.error,
                duration_ms: result.duration_ms,
                memory_bytes: result.memory_bytes,
                kernel_state: result.kernel_state,
                dropped: result.dropped,
                artifacts: result.artifacts,
            },
        }
    }
}
