//! One execution in a session, as the server knows it.

pub(crate) mod input;
pub mod log;
pub mod request;
pub mod result;
pub mod transcript;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use belljar_proto::exec::{Dropped, ExecSpec, KernelState, Language, Outcome, Status, What};
use belljar_proto::guest::RefusalCode;
use belljar_runtime::link::Following;
use belljar_runtime::{RuntimeError, Sandbox, languages};
use serde::Serialize;
use tokio::sync::watch;

use crate::EngineError;
use result::ExecResult;
use transcript::Transcript;

pub use request::{ExecRequest, MAX_TIMEOUT_S, timeout_ms};

/// Where an execution is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Stage {
    /// Behind this many others.
    Queued {
        position: usize,
    },
    Running,
    Finished,
}

/// An execution that has not ended, or has just.
#[derive(Debug)]
pub struct Exec {
    pub id: String,
    pub number: u64,
    pub request: ExecRequest,
    pub code: Arc<[u8]>,
    pub accepted_ms: i64,
    pub transcript: Arc<Transcript>,
    pub(crate) stage: watch::Sender<Stage>,
    /// Whether it could be written down, once that is known.
    pub(crate) accepted: watch::Sender<Option<bool>>,
    /// It does nothing any more, although its end is not told yet.
    pub(crate) at_rest: AtomicBool,
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
        let at_rest = AtomicBool::new(false);
        Exec { id, number, request, code, accepted_ms, transcript, stage, accepted, at_rest }
    }

    #[must_use]
    pub fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    pub(crate) fn is_accepted(&self) -> bool {
        *self.accepted.borrow() == Some(true)
    }

    /// For whoever asks for it a second time: this one, unless it turns out not to be one.
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

    /// Ends it from our side.
    pub(crate) fn end(&self, status: Status, reason: &str) {
        self.finish(ended_by_us(status, reason));
    }

    pub(crate) fn finish(&self, outcome: Outcome) {
        self.transcript.finish(outcome);
        self.stage.send_replace(Stage::Finished);
    }
}

/// The end of an execution that the guest could not tell us.
pub(crate) fn ended_by_us(status: Status, reason: &str) -> Outcome {
    let exit_code = match status {
        Status::Timeout => 124,
        Status::Interrupted => 130,
        _ => 137,
    };
    Outcome {
        status,
        exit_code,
        reason: Some(reason.to_owned()),
        kernel_state: KernelState::Lost,
        execution_count: 0,
        duration_us: 0,
        dropped: Dropped::default(),
        artifacts: None,
        memory_bytes: None,
        checkpoint: None,
        no_checkpoint: None,
    }
}

/// A sandbox that stopped talking has ended, or is about to; where others watch over it, we hear of
/// that, and why, a moment later.
const END_NOTICE: Duration = Duration::from_secs(3);

/// Whether a sandbox that was lost has run out of memory.
pub(crate) async fn ran_out_of_memory(sandbox: &Sandbox) -> bool {
    // One that still talks was given up for other reasons.
    if !sandbox.link().is_open() {
        let _ = tokio::time::timeout(END_NOTICE, sandbox.ended()).await;
    }
    sandbox.oom_kills() > 0
}

/// What the code in a sandbox died of that ended by itself.
pub(crate) async fn end_of_lost(sandbox: &Sandbox) -> (Status, &'static str) {
    if ran_out_of_memory(sandbox).await {
        (Status::Oom, "the sandbox ran out of memory")
    } else {
        (Status::Crashed, SANDBOX_ENDED)
    }
}

pub(crate) const SANDBOX_ENDED: &str = "the sandbox ended before the code did";

/// How much later than its own limits a healthy guest reports the end of an execution, at most.
pub(crate) const GUEST_SLACK: Duration = Duration::from_secs(10);

/// A kernel that tells its variables is free again in a moment.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// Starts an execution, and the kernel it needs if there is none: it is the first of its language,
/// or the kernel died, which the guest says in the result.
pub(crate) async fn start_in(
    sandbox: &Sandbox,
    spec: ExecSpec,
    body: &[u8],
) -> Result<Following, EngineError> {
    let begun = Instant::now();
    let mut started_kernel = false;
    loop {
        let refusal = match sandbox.exec(spec.clone(), body).await {
            Err(RuntimeError::Refused(refusal)) => refusal,
            started => return started.map_err(EngineError::Exec),
        };
        match (refusal.code, &spec.what) {
            (RefusalCode::NoKernel, What::Cell { language, .. }) if !started_kernel => {
                let started = sandbox.start_kernel(*language).await;
                started.map_err(|error| not_started(sandbox, *language, error))?;
                started_kernel = true;
            }
            (RefusalCode::Busy, _) if begun.elapsed() < BUSY_PATIENCE => {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            _ => return Err(EngineError::Exec(refusal.into())),
        }
    }
}

fn not_started(sandbox: &Sandbox, language: Language, error: RuntimeError) -> EngineError {
    if error.is_no_interpreter() {
        no_interpreter(sandbox, language)
    } else {
        EngineError::StartKernel(error)
    }
}

pub(crate) fn no_interpreter(sandbox: &Sandbox, language: Language) -> EngineError {
    let image = sandbox.spec().image.clone().unwrap_or_else(|| "host".to_owned());
    let advice = languages::missing(language).unwrap_or("ask for another image");
    EngineError::NoInterpreter { image, language, advice }
}
