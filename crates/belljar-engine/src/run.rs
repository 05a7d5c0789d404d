//! An ephemeral run: one sandbox for one piece of code, gone afterwards.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::{
    DEFAULT_GRACE_MS, DEFAULT_OUTPUT_LIMIT, DEFAULT_TIMEOUT_MS, ExecSpec, Language, Status, What,
};
use belljar_runtime::link::ExecEvent;
use belljar_runtime::native::NativeRuntime;
use belljar_runtime::{Sandbox, SandboxSpec, paths};
use tokio::sync::watch;

use crate::EngineError;
use crate::artifacts::{self, ArtifactLimits};
use crate::result::{self, ExecResult};

/// How much later than its own limits a healthy guest reports the end of an execution, at most.
const GUEST_SLACK: Duration = Duration::from_secs(10);

/// What to run and how.
#[derive(Debug, Clone)]
pub struct Run {
    pub id: String,
    pub code: Code,
    pub spec: SandboxSpec,
    pub timeout_ms: u64,
    pub output_limit: u64,
    /// Artifacts go to a directory below this one, named by the run.
    pub outputs: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    /// `echo`: publish the value of a last expression.
    Python {
        code: Vec<u8>,
        echo: bool,
    },
    Bash {
        code: String,
    },
}

impl Run {
    #[must_use]
    pub fn new(id: String, code: Code, spec: SandboxSpec) -> Run {
        Run {
            id,
            code,
            spec,
            timeout_ms: DEFAULT_TIMEOUT_MS,
            output_limit: DEFAULT_OUTPUT_LIMIT,
            outputs: "outputs".into(),
        }
    }

    /// Runs to the end. A change of `interrupt` to true ends the code early.
    pub async fn execute(
        self,
        runtime: &Arc<NativeRuntime>,
        interrupt: watch::Receiver<bool>,
        watch: impl FnMut(&ExecEvent),
    ) -> Result<ExecResult, EngineError> {
        let sandbox = runtime.create(&self.spec).await.map_err(EngineError::Create)?;
        let outcome = self.execute_in(&sandbox, interrupt, watch).await;
        sandbox.destroy().await;
        outcome
    }

    async fn execute_in(
        self,
        sandbox: &Sandbox,
        interrupt: watch::Receiver<bool>,
        watch: impl FnMut(&ExecEvent),
    ) -> Result<ExecResult, EngineError> {
        let (what, body) = match self.code {
            Code::Python { code, echo } => {
                sandbox.start_kernel(Language::Python).await.map_err(EngineError::StartKernel)?;
                (What::Cell { language: Language::Python, echo }, code)
            }
            Code::Bash { code } => {
                let argv = vec!["/bin/bash".into(), "-c".into(), code];
                (What::Command { argv, cwd: paths::SESSION.into() }, Vec::new())
            }
        };
        let env = match what {
            // The kernel was started with it.
            What::Cell { .. } => Vec::new(),
            What::Command { .. } => sandbox.environment(),
        };
        let spec = ExecSpec {
            exec_id: self.id.clone(),
            what,
            env,
            timeout_ms: self.timeout_ms,
            grace_ms: DEFAULT_GRACE_MS,
            output_limit: self.output_limit,
            stdin: false,
        };
        let mut following = sandbox.exec(spec, &body).await.map_err(EngineError::Exec)?;
        drop(body);
        // The guest keeps the time. Should it not be able to any more, we do.
        let grace = Duration::from_millis(DEFAULT_GRACE_MS) + GUEST_SLACK;
        let limit = Duration::from_millis(self.timeout_ms) + grace;
        let outcome = {
            let collecting =
                result::collect(self.id.clone(), &mut following, self.output_limit, watch);
            tokio::pin!(collecting);
            tokio::select! {
                ended = &mut collecting => Some(ended),
                () = tokio::time::sleep(limit) => None,
                () = asked(interrupt) => {
                    // If the guest cannot be asked any more, the end is near anyway.
                    let asking = async {
                        let _ = sandbox.interrupt(&self.id).await;
                        collecting.await
                    };
                    tokio::time::timeout(grace, asking).await.ok()
                }
            }
        };
        let Some((mut result, lost)) = outcome else {
            return Ok(ExecResult::unanswered(self.id));
        };
        if lost {
            if sandbox.oom_kills() > 0 {
                result.status = Status::Oom;
                result.reason = Some("the sandbox ran out of memory".into());
            }
            return Ok(result);
        }
        let directory = self.outputs.join(&self.id);
        match artifacts::promote(sandbox, &directory, ArtifactLimits::default()).await {
            Ok(promoted) => result.artifacts = promoted,
            // The code has run and its result is worth having, with a word on what is missing.
            Err(error) => result.artifacts.artifacts_refused.push(artifacts::Refused {
                path: paths::RUN_ARTIFACTS.into(),
                reason: in_full(&error),
            }),
        }
        Ok(result)
    }
}

async fn asked(mut interrupt: watch::Receiver<bool>) {
    if interrupt.wait_for(|asked| *asked).await.is_err() {
        // Nobody is left who could ask.
        std::future::pending::<()>().await;
    }
}

/// An error with all its causes, in one line.
pub fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}
