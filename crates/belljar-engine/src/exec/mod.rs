//! Executions: code in a kernel, or a command, in the sandbox of a session or a run.
//!
//! ```text
//!   params ──checks──▶ request ──▶ perform: start, follow, take artifacts ──▶ transcript ──▶ result, log
//! ```
//!
//! Both [`crate::run`] and [`crate::session`] execute through [`perform`]. This module has no queues, and stores
//! nothing.

mod follow;
mod input;
pub mod log;
pub(crate) mod outcome;
mod params;
pub(crate) mod perform;
mod request;
pub mod result;
mod start;
pub mod transcript;

use std::sync::Arc;

use belljar_proto::exec::{Outcome, Status};
use serde::Serialize;
use tokio::sync::watch;

pub use follow::collect;
pub use params::{ExecParams, Source, Stdin, USER_NAME, language_named};
pub(crate) use request::shell_argv;
pub use request::{Code, ExecAsk, ExecRequest, MAX_TIMEOUT_S, timeout_ms};
pub(crate) use start::no_interpreter;

use crate::EngineError;
use outcome::ended_by_us;
use result::ExecResult;
use transcript::Transcript;

/// The progress of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Stage {
    /// It waits behind this many others.
    Queued {
        position: usize,
    },
    Running,
    Finished,
}

/// An execution in memory: one that has not ended, or whose end is not stored yet.
#[derive(Debug)]
pub struct Exec {
    pub id: String,
    pub number: u64,
    pub request: ExecRequest,
    pub code: Arc<[u8]>,
    pub accepted_ms: i64,
    pub transcript: Arc<Transcript>,
    pub(crate) stage: watch::Sender<Stage>,
    /// Whether the store accepted it, once that is known.
    pub(crate) accepted: watch::Sender<Option<bool>>,
}

impl Exec {
    pub(crate) fn new(
        id: String,
        number: u64,
        request: ExecRequest,
        code: Arc<[u8]>,
        accepted_ms: i64,
    ) -> Exec {
        let transcript = Arc::new(Transcript::new(request.output_limit));
        let stage = watch::Sender::new(Stage::Queued { position: 0 });
        let accepted = watch::Sender::new(None);
        Exec { id, number, request, code, accepted_ms, transcript, stage, accepted }
    }

    #[must_use]
    pub fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    pub(crate) fn is_accepted(&self) -> bool {
        *self.accepted.borrow() == Some(true)
    }

    /// Waits until the store has accepted the execution. Fails if the store had its id already.
    pub(crate) async fn once_accepted(self: Arc<Self>) -> Result<Arc<Exec>, EngineError> {
        let mut accepted = self.accepted.subscribe();
        match accepted.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(true)) => {}
            _ => return Err(EngineError::DuplicateExec(self.id.clone())),
        }
        Ok(self)
    }

    /// Waits for the end.
    pub async fn result(&self) -> ExecResult {
        self.transcript.ended().await;
        ExecResult::of(self.id.clone(), &self.transcript)
    }

    /// Ends the execution with an outcome set by the server.
    pub(crate) fn end(&self, status: Status, reason: &str) {
        self.finish(ended_by_us(status, reason));
    }

    pub(crate) fn finish(&self, outcome: Outcome) {
        self.transcript.finish(outcome);
        self.stage.send_replace(Stage::Finished);
    }
}
