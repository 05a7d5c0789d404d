//! An ephemeral run: one sandbox for one piece of code, gone afterwards.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::{
    DEFAULT_GRACE_MS, DEFAULT_OUTPUT_LIMIT, DEFAULT_TIMEOUT_MS, ExecSpec, Language, Outcome,
    Status, What,
};
use belljar_runtime::link::ExecEvent;
use belljar_runtime::{Runtime, Sandbox, SandboxSpec, paths};
use tokio::sync::watch;

use crate::EngineError;
use crate::artifacts::{ArtifactLimits, Artifacts, promote};
use crate::exec::{self, GUEST_SLACK};
use crate::network::{Network, Policy};
use crate::result::{self, ExecResult, UNANSWERED};
use crate::transcript::Transcript;

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
    /// Where its code may go, and how.
    pub policy: Policy,
    pub network: Arc<Network>,
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
    /// A cell in the kernel of another language.
    Cell {
        language: Language,
        code: Vec<u8>,
        echo: bool,
    },
}

impl Code {
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Code::Python { code, .. } | Code::Cell { code, .. } => code,
            Code::Bash { code } => code.as_bytes(),
        }
    }
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
            policy: Policy::default(),
            network: Arc::default(),
        }
    }

    /// Runs to the end, in a sandbox of its own. A change of `interrupt` to true ends the code early.
    pub async fn execute(
        self,
        runtime: &Arc<dyn Runtime>,
        interrupt: watch::Receiver<bool>,
        watch: impl FnMut(&ExecEvent),
    ) -> Result<ExecResult, EngineError> {
        let sandbox = Arc::clone(runtime).create(&self.spec).await.map_err(EngineError::Create)?;
        let transcript = Transcript::new(self.output_limit);
        let directory = self.outputs.join(&self.id);
        let take = async |sandbox: &Sandbox, _: &Outcome| {
            let promoted = promote(sandbox, &directory, ArtifactLimits::default()).await;
            // The code has run and its result is worth having, with a word on what is missing.
            promoted.unwrap_or_else(|error| Artifacts::none_taken(&error))
        };
        let traffic = self.network.traffic(None);
        let outcome = match self.network.attach(&self.policy, &traffic, sandbox.link()).await {
            Ok(_attached) => self.execute_in(&sandbox, &transcript, interrupt, watch, take).await,
            Err(error) => Err(error),
        };
        sandbox.destroy().await;
        outcome
    }

    /// Runs to the end in this sandbox; `take` is asked for what the code left there.
    pub(crate) async fn execute_in(
        self,
        sandbox: &Sandbox,
        transcript: &Transcript,
        interrupt: watch::Receiver<bool>,
        watch: impl FnMut(&ExecEvent),
        take: impl AsyncFnOnce(&Sandbox, &Outcome) -> Artifacts,
    ) -> Result<ExecResult, EngineError> {
        let (what, env, body) = match self.code {
            // A kernel that was waiting does not know the environment of this run.
            Code::Python { code, echo } => {
                (What::Cell { language: Language::Python, echo }, self.spec.env, code)
            }
            Code::Cell { language, code, echo } => {
                (What::Cell { language, echo }, self.spec.env, code)
            }
            Code::Bash { code } => {
                let argv = vec!["/bin/bash".into(), "-c".into(), code];
                let env = sandbox.environment().into_iter().chain(self.spec.env).collect();
                (What::Command { argv, cwd: paths::SESSION.into() }, env, Vec::new())
            }
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
        let mut following = exec::start_in(sandbox, spec, &body).await?;
        drop(body);
        // The guest keeps the time. Should it not be able to any more, we do.
        let grace = Duration::from_millis(DEFAULT_GRACE_MS) + GUEST_SLACK;
        let limit = Duration::from_millis(self.timeout_ms) + grace;
        let ended = {
            let following = result::follow(transcript, &mut following, watch);
            tokio::pin!(following);
            tokio::select! {
                ended = &mut following => Some(ended),
                () = tokio::time::sleep(limit) => None,
                () = asked(interrupt) => {
                    // If the guest cannot be asked any more, the end is near anyway.
                    let asking = async {
                        let _ = sandbox.interrupt(&self.id).await;
                        following.await
                    };
                    tokio::time::timeout(grace, asking).await.ok()
                }
            }
        };
        let outcome = match ended {
            Some(Some(outcome)) => {
                transcript.tell_artifacts(&take(sandbox, &outcome).await);
                outcome
            }
            Some(None) => {
                let (status, reason) = exec::end_of_lost(sandbox).await;
                exec::ended_by_us(status, reason)
            }
            None => exec::ended_by_us(Status::Timeout, UNANSWERED),
        };
        transcript.finish(outcome);
        Ok(ExecResult::of(self.id, transcript))
    }
}

async fn asked(mut interrupt: watch::Receiver<bool>) {
    if interrupt.wait_for(|asked| *asked).await.is_err() {
        // Nobody is left who could ask.
        std::future::pending::<()>().await;
    }
}
