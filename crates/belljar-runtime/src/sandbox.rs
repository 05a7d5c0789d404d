//! A running sandbox.

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

/// How long to wait for the end of a killed sandbox. Linux ends it at once, unless the machine is overloaded.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(10);

/// If a killed sandbox has not ended after this time, its guest is asked to end too.
const SOON: Duration = Duration::from_secs(2);

/// How a kernel was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelStart {
    /// Forked from a warm zygote.
    Forked,
    /// By executing its interpreter.
    Executed,
}

/// What is needed to find a sandbox again after a restart. Stored before the sandbox is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    pub name: String,
    /// The host's pid of the sandbox's PID 1, and its start time: pids are reused.
    pub pid: u32,
    pub started: u64,
    /// Proves to the guest that we are its host.
    pub nonce: String,
    /// Its block of user ids.
    pub block: Option<u32>,
    /// The id of its container, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// The part of a sandbox that differs between backends. Dropping it kills the sandbox and removes everything that
/// belongs to it.
#[async_trait]
pub(crate) trait BackendHandle: fmt::Debug + Send + Sync {
    /// Starts a Python kernel from a warm zygote, and waits until it is ready; `None` without a warm zygote.
    async fn fork_python(
        &self,
        link: &Link,
        env: &[(String, String)],
        cwd: &str,
    ) -> Option<Result<(), RuntimeError>>;

    /// The memory that its Python kernels share with those of other sandboxes, stored below `commons`; none if they share
    /// none.
    async fn common(&self, commons: &Path) -> Option<Arc<Common>> {
        let _ = commons;
        None
    }

    /// Whether code inside could reopen for writing a file that it got for reading: through `/proc/self/fd`, as the same user
    /// as the server, and without Landlock.
    fn may_reopen(&self) -> bool;

    /// Its counters, if they are available.
    fn meters(&self) -> Option<&Meters>;

    /// How many of its processes were killed for memory.
    fn oom_kills(&self) -> u64 {
        self.meters().map_or(0, Meters::oom_kills)
    }

    /// Resolves when the sandbox has ended.
    async fn ended(&self);

    /// Kills it, without waiting for its end.
    fn kill(&self);

    /// Removes what another program, such as a container engine, keeps of it after its end.
    async fn remove(&self) {}
}

/// Killed when dropped. [`Sandbox::destroy`] also waits until everything is gone.
#[derive(Debug)]
pub struct Sandbox {
    handle: Handle,
    spec: SandboxSpec,
    /// The environment of everything inside.
    env: Vec<(String, String)>,
    /// The command line of a Python kernel; empty if the image has no Python.
    python: Vec<String>,
    link: Link,
    /// Languages whose interpreter the image was found to lack.
    lacking: Mutex<HashSet<Language>>,
    backend: Box<dyn BackendHandle>,
}

pub(crate) struct Parts {
    pub(crate) handle: Handle,
    pub(crate) spec: SandboxSpec,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) python: Vec<String>,
    pub(crate) link: Link,
    pub(crate) backend: Box<dyn BackendHandle>,
}

impl Sandbox {
    pub(crate) fn assemble(parts: Parts) -> Sandbox {
        let Parts { handle, spec, env, python, link, backend } = parts;
        Sandbox { handle, spec, env, python, link, lacking: Mutex::default(), backend }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// The host's pid of the sandbox's PID 1.
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

    /// The environment of everything inside, including the session's variables.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        self.env.clone()
    }

    /// Bytes of memory charged to this sandbox.
    #[must_use]
    pub fn memory_used(&self) -> Option<u64> {
        self.backend.meters()?.memory_used()
    }

    /// Like `memory_used`, without the page cache, which Linux frees when memory is needed.
    #[must_use]
    pub fn memory_held(&self) -> Option<u64> {
        self.backend.meters()?.memory_held()
    }

    /// Microseconds of processor time used so far.
    #[must_use]
    pub fn cpu_used_us(&self) -> Option<u64> {
        self.backend.meters()?.cpu_used_us()
    }

    /// How many processes of this sandbox were killed for memory.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        self.backend.oom_kills()
    }

    /// How often the processor limit throttled its processes; none if that is not known.
    #[must_use]
    pub fn throttled(&self) -> Option<u64> {
        self.backend.meters().map(Meters::throttled)
    }

    /// Starts a fresh kernel, which replaces any other of its language. Python starts from a warm zygote if there is one;
    /// other interpreters are executed.
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

    /// Whether starting a kernel of this language failed because the image lacks its interpreter.
    #[must_use]
    pub fn lacks(&self, language: Language) -> bool {
        self.lacking().contains(&language.kernel())
    }

    fn lacking(&self) -> std::sync::MutexGuard<'_, HashSet<Language>> {
        self.lacking.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn start_some_kernel(&self, language: Language) -> Result<KernelStart, RuntimeError> {
        if language == Language::Python {
            // An image need not have Python.
            if self.python.is_empty() {
                let image = self.spec.image.clone().unwrap_or_else(|| "of this sandbox".into());
                return Err(RuntimeError::NoPython(image));
            }
            match self
                .backend
                .fork_python(&self.link, &self.env, self.spec.working_directory())
                .await
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

    /// The command line of a language's kernel.
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

    /// Refuses languages that an earlier guest does not know: it would close the connection.
    fn understands(&self, language: Language) -> Result<(), RuntimeError> {
        let old = [Language::Python, Language::Bash].contains(&language);
        if old || self.link.protocol() >= PROTOCOL_WITH_LANGUAGES {
            return Ok(());
        }
        let message = format!(
            "the sandbox was started by an older version of Belljar, which has no {language}"
        );
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

    /// The variables of a kernel, as it reports them.
    pub async fn kernel_state(&self, language: Language) -> Result<KernelVariables, RuntimeError> {
        self.understands(language)?;
        let reply = self.link.call(Call::KernelState { language }, &[]).await?;
        let parsed = serde_json::from_slice(&reply.body);
        parsed.map_err(|error| RuntimeError::Nonsense(FrameError::Head(error)))
    }

    /// Asks an idle kernel to move its large values to disk; `None` if the guest is too old for that.
    pub async fn spill(
        &self,
        language: Language,
        ask: SpillAsk,
    ) -> Result<Option<SpillReport>, RuntimeError> {
        if self.link.protocol() < PROTOCOL_WITH_SPILL {
            return Ok(None);
        }
        let reply = self.link.call(Call::Spill { language, ask }, &[]).await?;
        let parsed = serde_json::from_slice(&reply.body).map(Some);
        parsed.map_err(|error| RuntimeError::Nonsense(FrameError::Head(error)))
    }

    /// The memory that its Python kernels share with those of other sandboxes.
    pub(crate) async fn common(&self, commons: &Path) -> Option<Arc<Common>> {
        self.backend.common(commons).await
    }

    pub(crate) fn may_reopen(&self) -> bool {
        self.backend.may_reopen()
    }

    /// Sets how long the sandbox lives without a connected server.
    pub async fn outlive_host(&self, alone_for_s: u64) -> Result<(), RuntimeError> {
        self.link.call(Call::OutliveHost { alone_for_s }, &[]).await.map(|_| ())
    }

    /// Resolves when the sandbox has ended.
    pub async fn ended(&self) {
        self.backend.ended().await;
    }

    /// Kills it, without waiting for its end.
    pub fn kill(&self) {
        self.backend.kill();
    }

    /// Leaves the sandbox to a later server; this process is about to end.
    pub fn leave(self) {
        // The clean-up must not run; Linux closes our descriptors.
        std::mem::forget(self);
    }

    /// Ends the sandbox and removes everything that belongs to it.
    pub async fn destroy(self) {
        self.backend.kill();
        if tokio::time::timeout(SOON, self.backend.ended()).await.is_err() {
            // If the container engine does not end it, its guest can.
            let ending = async {
                if !matches!(self.link.call(Call::Shutdown, &[]).await, Err(RuntimeError::Gone)) {
                    self.backend.ended().await;
                }
            };
            let _ = tokio::time::timeout(DESTROY_TIMEOUT, ending).await;
        }
        self.backend.remove().await;
        // Removing may have to wait a moment for Linux, so not on an async thread.
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}
