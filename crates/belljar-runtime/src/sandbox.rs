//! A live sandbox, as its owner holds it.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use belljar_proto::exec::{ExecSpec, Language, What};
use belljar_proto::frame::FrameError;
use belljar_proto::guest::{Call, KernelVariables, Refusal, RefusalCode, SpillAsk, SpillReport};
use belljar_proto::{PROTOCOL_WITH_LANGUAGES, PROTOCOL_WITH_SPILL};
use belljar_sys::cgroup::Meters;
use serde::{Deserialize, Serialize};

use crate::RuntimeError;
use crate::languages;
use crate::link::{Following, Link};
use crate::snapshot::Common;
use crate::spec::SandboxSpec;

/// The kernel ends a killed sandbox at once; an overloaded machine gets this long.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(10);

/// After this it is not waited for in silence.
const SOON: Duration = Duration::from_secs(2);

/// How a kernel came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelStart {
    /// Forked from a warm zygote.
    Forked,
    /// By executing the interpreter.
    Executed,
}

/// What one must know of a sandbox to find it again: written down before it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    pub name: String,
    /// PID 1 of the sandbox, as the host counts, and when it started: numbers are reused.
    pub pid: u32,
    pub started: u64,
    /// Shows the guest that we are its host.
    pub nonce: String,
    /// Its block of user ids.
    pub block: Option<u32>,
    /// Its container, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// What a sandbox is made of, seen from outside: where one backend differs from another. It is
/// killed when dropped, and then nothing of it is left.
#[async_trait]
pub(crate) trait BackendHandle: fmt::Debug + Send + Sync {
    /// Forks a Python kernel from a warm interpreter, and waits until it is ready; `None` where
    /// nothing is warm.
    async fn fork_python(
        &self,
        link: &Link,
        env: &[(String, String)],
        cwd: &str,
    ) -> Option<Result<(), RuntimeError>>;

    /// What its Python kernels have in common with those of other sandboxes, kept below `commons`; none, where
    /// they have nothing.
    async fn common(&self, commons: &Path) -> Option<Arc<Common>> {
        let _ = commons;
        None
    }

    /// Whether code inside could open a file of ours for writing that it was given for reading: through
    /// `/proc/self/fd`, being the same user as we are, and with nothing to forbid it.
    fn may_reopen(&self) -> bool;

    /// What it has used so far, where the machine tells.
    fn meters(&self) -> Option<&Meters>;

    /// How many of its processes were killed for memory.
    fn oom_kills(&self) -> u64 {
        self.meters().map_or(0, Meters::oom_kills)
    }

    /// Resolves when the sandbox has ended, for whatever reason.
    async fn ended(&self);

    /// Begins its end, without waiting for it.
    fn kill(&self);

    /// Removes what its owner has to have removed by others, after its end.
    async fn remove(&self) {}
}

/// Killed when dropped; [`Sandbox::destroy`] also waits until everything is gone.
#[derive(Debug)]
pub struct Sandbox {
    handle: Handle,
    spec: SandboxSpec,
    /// The environment of everything inside.
    env: Vec<(String, String)>,
    /// How a Python kernel is executed.
    python: Vec<String>,
    link: Link,
    /// Languages that the image turned out not to have.
    lacking: Mutex<HashSet<Language>>,
    body: Box<dyn BackendHandle>,
}

pub(crate) struct Parts {
    pub(crate) handle: Handle,
    pub(crate) spec: SandboxSpec,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) python: Vec<String>,
    pub(crate) link: Link,
    pub(crate) body: Box<dyn BackendHandle>,
}

impl Sandbox {
    pub(crate) fn assemble(parts: Parts) -> Sandbox {
        let Parts { handle, spec, env, python, link, body } = parts;
        Sandbox { handle, spec, env, python, link, lacking: Mutex::default(), body }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// PID 1 of the sandbox, as the host counts.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.handle.pid
    }

    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    #[must_use]
    pub fn spec(&self) -> &SandboxSpec {
        &self.spec
    }

    /// The environment of everything inside, the session's own variables included.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        self.env.clone()
    }

    /// Bytes of memory charged to this sandbox.
    #[must_use]
    pub fn memory_used(&self) -> Option<u64> {
        self.body.meters()?.memory_used()
    }

    /// The same without copies of files on disk, which go whenever somebody needs the room.
    #[must_use]
    pub fn memory_held(&self) -> Option<u64> {
        self.body.meters()?.memory_held()
    }

    /// Microseconds of processor time used so far.
    #[must_use]
    pub fn cpu_used_us(&self) -> Option<u64> {
        self.body.meters()?.cpu_used_us()
    }

    /// How many processes of this sandbox were killed for memory.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        self.body.oom_kills()
    }

    /// How often the processor limit held its processes back; none where that cannot be known.
    #[must_use]
    pub fn throttled(&self) -> Option<u64> {
        self.body.meters().map(Meters::throttled)
    }

    /// A fresh kernel, replacing any other of its language. Python is forked if a zygote is warm,
    /// and everything else is executed.
    pub async fn start_kernel(&self, language: Language) -> Result<KernelStart, RuntimeError> {
        let language = language.kernel();
        let started = self.start_some_kernel(language).await;
        if let Err(error) = &started
            && error.is_no_interpreter()
        {
            self.lacking().insert(language);
        }
        started
    }

    /// Whether a kernel of this language was tried to be started, and the image has none.
    #[must_use]
    pub fn lacks(&self, language: Language) -> bool {
        self.lacking().contains(&language.kernel())
    }

    fn lacking(&self) -> std::sync::MutexGuard<'_, HashSet<Language>> {
        self.lacking.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn start_some_kernel(&self, language: Language) -> Result<KernelStart, RuntimeError> {
        if language == Language::Python {
            // An image need not have an interpreter.
            if self.python.is_empty() {
                let image = self.spec.image.clone().unwrap_or_else(|| "of this sandbox".into());
                return Err(RuntimeError::NoPython(image));
            }
            match self.body.fork_python(&self.link, &self.env, self.spec.working_directory()).await
            {
                Some(Ok(())) => return Ok(KernelStart::Forked),
                Some(Err(error)) if error.is_no_interpreter() => return Err(error),
                Some(Err(error)) => {
                    tracing::warn!("failed to fork a kernel, starting one slowly: {error}");
                }
                None => {}
            }
        }
        self.execute_kernel(language).await?;
        Ok(KernelStart::Executed)
    }

    async fn execute_kernel(&self, language: Language) -> Result<(), RuntimeError> {
        let argv = self.interpreter(language)?;
        let call = Call::SpawnKernel {
            language,
            argv,
            env: self.environment(),
            cwd: self.spec.working_directory().into(),
        };
        self.link.call(call, &[]).await.map_err(|error| match error {
            RuntimeError::Refused(mut refusal) if refusal.code == RefusalCode::NoInterpreter => {
                if let Some(what_to_do) = languages::missing(language) {
                    refusal.message = format!("{}; {what_to_do}", refusal.message);
                }
                RuntimeError::Refused(refusal)
            }
            other => other,
        })?;
        self.link.call(Call::AwaitKernel { language }, &[]).await.map(|_| ())
    }

    /// How the kernel of a language is executed.
    fn interpreter(&self, language: Language) -> Result<Vec<String>, RuntimeError> {
        if language == Language::Python {
            return Ok(self.python.clone());
        }
        let python = self.python.first().map_or("", String::as_str);
        languages::argv(language, python).ok_or_else(|| {
            let message = format!("there is no language `{language}`");
            Refusal { code: RefusalCode::Invalid, message }.into()
        })
    }

    /// Refuses what an earlier guest does not even understand: it would end the conversation.
    fn understands(&self, language: Language) -> Result<(), RuntimeError> {
        let old = [Language::Python, Language::Bash].contains(&language);
        if old || self.link.protocol() >= PROTOCOL_WITH_LANGUAGES {
            return Ok(());
        }
        let message = format!("this sandbox is of an earlier version, which has no {language}");
        Err(Refusal { code: RefusalCode::Invalid, message }.into())
    }

    /// Starts an execution; `body` is code for a cell and standard input for a command.
    pub async fn exec(&self, spec: ExecSpec, body: &[u8]) -> Result<Following, RuntimeError> {
        if let What::Cell { language, .. } = spec.what {
            self.understands(language)?;
        }
        self.link.exec(spec, body).await
    }

    pub async fn interrupt(&self, exec_id: &str) -> Result<(), RuntimeError> {
        let call = Call::Interrupt { exec_id: exec_id.to_owned() };
        self.link.call(call, &[]).await.map(|_| ())
    }

    /// More standard input for an execution that was started with `stdin`.
    pub async fn stdin(
        &self,
        exec_id: &str,
        bytes: &[u8],
        close: bool,
    ) -> Result<(), RuntimeError> {
        let call = Call::Stdin { exec_id: exec_id.to_owned(), close };
        self.link.call(call, bytes).await.map(|_| ())
    }

    /// The variables of a kernel, as it tells them itself.
    pub async fn kernel_state(&self, language: Language) -> Result<KernelVariables, RuntimeError> {
        self.understands(language)?;
        let reply = self.link.call(Call::KernelState { language }, &[]).await?;
        let understood = serde_json::from_slice(&reply.body);
        understood.map_err(|error| RuntimeError::Nonsense(FrameError::Head(error)))
    }

    /// Has an idle kernel move its large values to disk; `None` if the guest is too old for that.
    pub async fn spill(
        &self,
        language: Language,
        ask: SpillAsk,
    ) -> Result<Option<SpillReport>, RuntimeError> {
        if self.link.protocol() < PROTOCOL_WITH_SPILL {
            return Ok(None);
        }
        let reply = self.link.call(Call::Spill { language, ask }, &[]).await?;
        let understood = serde_json::from_slice(&reply.body).map(Some);
        understood.map_err(|error| RuntimeError::Nonsense(FrameError::Head(error)))
    }

    /// What its Python kernels have in common with those of other sandboxes.
    pub(crate) async fn common(&self, commons: &Path) -> Option<Arc<Common>> {
        self.body.common(commons).await
    }

    pub(crate) fn may_reopen(&self) -> bool {
        self.body.may_reopen()
    }

    /// How long the sandbox goes on from now on while nobody is connected to it.
    pub async fn outlive_host(&self, alone_for_s: u64) -> Result<(), RuntimeError> {
        self.link.call(Call::OutliveHost { alone_for_s }, &[]).await.map(|_| ())
    }

    /// Resolves when the sandbox has ended, for whatever reason.
    pub async fn ended(&self) {
        self.body.ended().await;
    }

    /// Begins its end, without waiting for it.
    pub fn kill(&self) {
        self.body.kill();
    }

    /// Leaves the sandbox to a successor of this process, which is about to end.
    pub fn leave(self) {
        // What we hold of it must not be cleaned up; the kernel closes our descriptors.
        std::mem::forget(self);
    }

    /// Ends the sandbox and removes every trace of it.
    pub async fn destroy(self) {
        self.body.kill();
        if tokio::time::timeout(SOON, self.body.ended()).await.is_err() {
            // Where others are to end it and do not, its guest does.
            let ending = async {
                if !matches!(self.link.call(Call::Shutdown, &[]).await, Err(RuntimeError::Gone)) {
                    self.body.ended().await;
                }
            };
            let _ = tokio::time::timeout(DESTROY_TIMEOUT, ending).await;
        }
        self.body.remove().await;
        // Removing may have to wait a moment for the kernel; not on an async thread.
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}
