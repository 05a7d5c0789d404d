//! An ephemeral run: one sandbox for one piece of code, or for the cells of a notebook, gone afterwards.

mod leftovers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::{
    DEFAULT_GRACE_MS, DEFAULT_OUTPUT_LIMIT, DEFAULT_TIMEOUT_MS, ExecSpec, Language, Outcome,
    Script, Status, What,
};
use belljar_runtime::link::ExecEvent;
use belljar_runtime::{Runtime, Sandbox, SandboxSpec, paths};
use tokio::sync::{mpsc, watch};

use crate::EngineError;
use crate::artifacts::{ArtifactLimits, Artifacts, promote};
use crate::exec::result::{self, ExecResult, UNANSWERED};
use crate::exec::transcript::Transcript;
use crate::exec::{self, GUEST_SLACK, input};
use crate::network::{Network, Policy, attach};

pub use leftovers::{BroughtFile, Leftovers};

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
    /// What Python code finds in `sys.argv` and `__file__`, if it is to run as a script does.
    pub script: Option<Script>,
    /// Files of the host's to copy into the working directory before the code runs.
    pub files: Vec<BroughtFile>,
    /// The code can read standard input, which [`Run::execute`] is given in pieces.
    pub stdin: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    /// `echo`: publish the value of a last expression.
    Python { code: Vec<u8>, echo: bool },
    /// `args`: `$0`, `$1`, ...
    Bash { code: String, args: Vec<String> },
    /// A cell in the kernel of another language.
    Cell { language: Language, code: Vec<u8>, echo: bool },
}

impl Code {
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Code::Python { code, .. } | Code::Cell { code, .. } => code,
            Code::Bash { code, .. } => code.as_bytes(),
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
            script: None,
            files: Vec::new(),
            stdin: false,
        }
    }

    /// Runs to the end, in a sandbox of its own. A change of `interrupt` to true ends the code early. What comes
    /// from `input` is the code's standard input; its end is the end of the input.
    pub async fn execute(
        mut self,
        runtime: &Arc<dyn Runtime>,
        interrupt: watch::Receiver<bool>,
        input: mpsc::Receiver<Vec<u8>>,
        watch: impl FnMut(&ExecEvent),
    ) -> Result<(ExecResult, Leftovers), EngineError> {
        let files = std::mem::take(&mut self.files);
        let directory = self.outputs.join(&self.id);
        let (spec, policy, network) =
            (self.spec.clone(), self.policy.clone(), Arc::clone(&self.network));
        let work = async |sandbox: &Sandbox| {
            let brought = leftovers::bring(sandbox, &files).await?;
            let transcript = Transcript::new(self.output_limit);
            let take = async |sandbox: &Sandbox, _: &Outcome| taken(sandbox, &directory).await;
            let running =
                self.execute_in(sandbox, &transcript, interrupt, Some(input), watch, take);
            let result = running.await?;
            Ok((result, leftovers::look(sandbox, &brought).await))
        };
        within(runtime, &spec, &policy, &network, work).await
    }

    /// Runs cells one after another in the same kernel, in a sandbox of its own, while `goes_on` says so after
    /// each. `watch` is told which cell an event is of. `code` of the run itself is not used.
    pub async fn execute_cells(
        mut self,
        runtime: &Arc<dyn Runtime>,
        interrupt: watch::Receiver<bool>,
        cells: Vec<Code>,
        mut watch: impl FnMut(usize, &ExecEvent),
        mut goes_on: impl FnMut(usize, &ExecResult) -> bool,
    ) -> Result<(Artifacts, Leftovers), EngineError> {
        let files = std::mem::take(&mut self.files);
        let directory = self.outputs.join(&self.id);
        let work = async |sandbox: &Sandbox| {
            let brought = leftovers::bring(sandbox, &files).await?;
            for (number, code) in cells.into_iter().enumerate() {
                let id = format!("{}_{}", self.id, number + 1);
                let cell = Run { id, code, ..self.clone() };
                let transcript = Transcript::new(self.output_limit);
                let none = async |_: &Sandbox, _: &Outcome| Artifacts::default();
                let watch = |event: &ExecEvent| watch(number, event);
                let interrupt = interrupt.clone();
                let result =
                    cell.execute_in(sandbox, &transcript, interrupt, None, watch, none).await?;
                if !goes_on(number, &result) {
                    break;
                }
            }
            let artifacts = taken(sandbox, &directory).await;
            Ok((artifacts, leftovers::look(sandbox, &brought).await))
        };
        within(runtime, &self.spec, &self.policy, &self.network, work).await
    }

    /// Runs to the end in this sandbox; `take` is asked for what the code left there.
    pub(crate) async fn execute_in(
        self,
        sandbox: &Sandbox,
        transcript: &Transcript,
        interrupt: watch::Receiver<bool>,
        input: Option<mpsc::Receiver<Vec<u8>>>,
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
            Code::Bash { code, args } => {
                let mut argv = vec!["/bin/bash".into(), "-c".into(), code];
                argv.extend(args);
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
            stdin: self.stdin,
            script: self.script,
            merge_output: false,
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
                never = input::feed(sandbox, &self.id, input) => match never {},
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

/// Makes a sandbox for as long as `work` takes.
async fn within<T>(
    runtime: &Arc<dyn Runtime>,
    spec: &SandboxSpec,
    policy: &Policy,
    network: &Arc<Network>,
    work: impl AsyncFnOnce(&Sandbox) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    let sandbox = Arc::clone(runtime).create(spec).await.map_err(EngineError::Create)?;
    let traffic = network.traffic(None);
    let outcome = match attach(network, policy, &traffic, sandbox.link()).await {
        Ok(_attached) => work(&sandbox).await,
        Err(error) => Err(error),
    };
    sandbox.destroy().await;
    outcome
}

/// Copies the artifacts to `directory`. If that fails the result is still worth having, with a word on what is
/// missing.
async fn taken(sandbox: &Sandbox, directory: &Path) -> Artifacts {
    let promoted = promote(sandbox, directory, ArtifactLimits::default()).await;
    promoted.unwrap_or_else(|error| Artifacts::none_taken(&error))
}

async fn asked(mut interrupt: watch::Receiver<bool>) {
    if interrupt.wait_for(|asked| *asked).await.is_err() {
        // Nobody is left who could ask.
        std::future::pending::<()>().await;
    }
}
