//! Runs: one sandbox for one piece of code, or for the cells of a notebook, removed afterwards.

mod leftovers;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_proto::exec::{DEFAULT_OUTPUT_LIMIT, DEFAULT_TIMEOUT_MS, Outcome, Script};
use belljar_runtime::link::ExecEvent;
use belljar_runtime::{Runtime, Sandbox, SandboxSpec};
use tokio::sync::{mpsc, watch};

use crate::EngineError;
use crate::artifacts::{ArtifactLimits, Artifacts, promote};
use crate::clock;
use crate::exec::outcome::end_of_lost;
use crate::exec::perform::{Aftermath, Controls, PerformEnd, Start, perform};
use crate::exec::result::ExecResult;
use crate::exec::{Code, Exec, ExecRequest};
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
    /// Artifacts go to a subdirectory of this one, named after the run.
    pub outputs: PathBuf,
    /// Which hosts its code may reach.
    pub policy: Policy,
    pub network: Arc<Network>,
    /// `sys.argv` and `__file__` for Python code that runs as a script.
    pub script: Option<Script>,
    /// Files of the host to copy into the working directory first.
    pub files: Vec<BroughtFile>,
    /// Whether the code has standard input; [`Run::execute`] gets it in pieces.
    pub stdin: bool,
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

    /// Runs the code to its end in a sandbox of its own. When `interrupt` becomes true, the code is interrupted.
    /// `input` is the standard input of the code; closing the channel closes the input.
    pub async fn execute(
        self,
        runtime: &Arc<dyn Runtime>,
        interrupt: watch::Receiver<bool>,
        input: mpsc::Receiver<Vec<u8>>,
        watch: impl FnMut(&ExecEvent),
    ) -> Result<(ExecResult, Leftovers), EngineError> {
        let directory = self.outputs.join(&self.id);
        let controls =
            Controls { interrupt: Some(interrupt), input: Some(input), ..Controls::default() };
        let work = async |sandbox: &Sandbox| {
            let brought = leftovers::bring(sandbox, &self.files).await?;
            let exec = self.exec(self.id.clone(), &self.code);
            let promoted = Promoted { sandbox, directory: &directory };
            let result =
                execute_in(sandbox, &exec, self.start(), controls, watch, &promoted).await?;
            Ok((result, leftovers::look(sandbox, &brought).await))
        };
        within(runtime, &self.spec, &self.policy, &self.network, work).await
    }

    /// Runs cells one after another in the same kernel, in a sandbox of its own, as long as `goes_on` returns true
    /// after a cell. `watch` gets the number of the cell with each event. The `code` of the run itself is not used.
    pub async fn execute_cells(
        self,
        runtime: &Arc<dyn Runtime>,
        interrupt: watch::Receiver<bool>,
        cells: Vec<Code>,
        mut watch: impl FnMut(usize, &ExecEvent),
        mut goes_on: impl FnMut(usize, &ExecResult) -> bool,
    ) -> Result<(Artifacts, Leftovers), EngineError> {
        let directory = self.outputs.join(&self.id);
        let work = async |sandbox: &Sandbox| {
            let brought = leftovers::bring(sandbox, &self.files).await?;
            for (number, code) in cells.iter().enumerate() {
                let exec = self.exec(format!("{}_{}", self.id, number + 1), code);
                let controls =
                    Controls { interrupt: Some(interrupt.clone()), ..Controls::default() };
                let watch = |event: &ExecEvent| watch(number, event);
                let result =
                    execute_in(sandbox, &exec, self.start(), controls, watch, &NotYet).await?;
                if !goes_on(number, &result) {
                    break;
                }
            }
            let artifacts = promoted(sandbox, &directory).await;
            Ok((artifacts, leftovers::look(sandbox, &brought).await))
        };
        within(runtime, &self.spec, &self.policy, &self.network, work).await
    }

    fn exec(&self, id: String, code: &Code) -> Exec {
        let mut request = ExecRequest::new(code.what.clone());
        request.timeout_ms = self.timeout_ms;
        request.output_limit = self.output_limit;
        request.stdin = self.stdin;
        Exec::new(id, 0, request, Arc::clone(&code.bytes), clock::now_ms())
    }

    fn start(&self) -> Start {
        Start::New { env: self.spec.env.clone(), script: self.script.clone() }
    }
}

/// Executes in the sandbox of a run until the execution ends or the sandbox is lost.
pub(crate) async fn execute_in(
    sandbox: &Sandbox,
    exec: &Exec,
    start: Start,
    controls: Controls,
    watch: impl FnMut(&ExecEvent),
    aftermath: &impl Aftermath,
) -> Result<ExecResult, EngineError> {
    let performed = perform(sandbox, exec, start, controls, watch, aftermath).await?;
    if performed == PerformEnd::SandboxLost {
        let (status, reason) = end_of_lost(sandbox).await;
        exec.end(status, reason);
    }
    Ok(ExecResult::of(exec.id.clone(), &exec.transcript))
}

/// Copies artifacts to a directory of the host.
struct Promoted<'a> {
    sandbox: &'a Sandbox,
    directory: &'a Path,
}

impl Aftermath for Promoted<'_> {
    async fn take_artifacts(&self, _: &mut Outcome) -> Artifacts {
        promoted(self.sandbox, self.directory).await
    }
}

/// Takes no artifacts after a cell: those of all cells are taken together after the last one.
struct NotYet;

impl Aftermath for NotYet {
    async fn take_artifacts(&self, _: &mut Outcome) -> Artifacts {
        Artifacts::default()
    }
}

/// Copies the artifacts to `directory`. If that fails, the result contains the error and is valid otherwise.
async fn promoted(sandbox: &Sandbox, directory: &Path) -> Artifacts {
    let promoted = promote(sandbox, directory, ArtifactLimits::default()).await;
    promoted.unwrap_or_else(|error| Artifacts::none_taken(&error))
}

/// Creates a sandbox, does `work` in it, and removes it.
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
