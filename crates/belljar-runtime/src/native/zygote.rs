//! The zygote of an image: the memory of a Python with the image's packages loaded, which kernels begin with.
//!
//! ```text
//!   sandbox of its own: python imports, writes its memory into two files ──▶ ended; files sealed
//!                                                                               │
//!   session's sandbox: loader ── maps the files, becomes that Python ◀──────────┘ a kernel, in milliseconds
//! ```
//!
//! What is in an image is not trusted, and neither are the packages that setup installed: their code runs in sandboxes and
//! nowhere else. The sandbox in which it is loaded holds no session's data, and it is gone before the first kernel begins
//! with what it wrote. Pages are shared by all kernels until one writes to them; the files are sealed, so none can change
//! what another reads.
//!
//! Until the zygote is warm, and where it cannot be had, kernels start the slow way.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::PROTOCOL_WITH_LOADING;
use belljar_proto::exec::Language;
use belljar_proto::guest::{Answer, Call};
use belljar_proto::snapshot::{SnapshotCall, SnapshotReply, loader_packet};
use belljar_proto::zygote::{Warm, environment};
use belljar_sys::sealed;
use tokio::sync::{OnceCell, watch};

use super::NativeRuntime;
use super::staged::Staged;
use crate::RuntimeError;
use crate::kernels::{self, Role};
use crate::link::Link;
use crate::runtime::ZygoteState;
use crate::sandbox::Sandbox;
use crate::snapshot::{self, COMMON_BYTES, Common, Fixed, Line, Pump, Sink};
use crate::spec::{Limits, SandboxSpec};

/// Importing a large preload list on a cold disk takes a while.
const WARM_TIMEOUT: Duration = Duration::from_secs(180);

/// A loader that failed says why at once, if it says anything.
const REASON_TIMEOUT: Duration = Duration::from_millis(100);

/// What loading the packages of an image may take of the machine.
const LIMITS: Limits = Limits { memory: 4 << 30, millicpus: 2000, pids: 64, tmpfs: 64 << 20 };

/// A task that was told to stop does so at once, and then ends its sandbox.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const STOP_PACE: Duration = Duration::from_millis(2);

/// Between attempts to make one that keeps failing.
const RESTART_PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
];

/// Memory for kernels to begin with.
#[derive(Debug)]
pub(crate) struct Zygote {
    memory: Arc<Common>,
    /// Set when a copy is where pictures of kernels look for what they have in common. It is made when the first picture is
    /// taken, or a later one if the disk was full.
    kept: OnceCell<()>,
}

impl Zygote {
    /// Loads the packages of an image in a sandbox, and keeps what came of it.
    async fn make(
        runtime: &Arc<NativeRuntime>,
        image: &Arc<Staged>,
    ) -> Result<(Zygote, Warm), RuntimeError> {
        let files = [sealed::create("pages"), sealed::create("index")];
        let [pages, index] = files.map(|file| file.map_err(RuntimeError::Keep));
        let (pages, index) = (pages?, index?);
        let id = Common::new_id();
        let spec = SandboxSpec { limits: LIMITS, ..SandboxSpec::default() };
        let sandbox = runtime.create_from(image, &spec, "zygote-").await?;
        let asked = ask(&sandbox, image, id, [&pages, &index]);
        let answer = tokio::time::timeout(WARM_TIMEOUT, asked)
            .await
            .unwrap_or(Err(RuntimeError::TimedOut(WARM_TIMEOUT.as_secs())));
        // Whatever it said: nothing of it is left to write to the files.
        sandbox.destroy().await;
        let mut warm = answer?;
        warm.rss_kib = 0;
        for file in [&pages, &index] {
            sealed::seal(file).map_err(RuntimeError::Keep)?;
            let metadata = file.metadata().map_err(RuntimeError::Keep)?;
            // Blocks have 512 bytes.
            warm.rss_kib += metadata.blocks() / 2;
        }
        let memory = Arc::new(Common { id, index, pages });
        Ok((Zygote { memory, kept: OnceCell::new() }, warm))
    }

    /// Starts a kernel that begins with this memory in a sandbox, and waits until it is ready.
    pub(crate) async fn start_kernel(
        &self,
        link: &Link,
        env: &[(String, String)],
        cwd: &str,
    ) -> Result<(), RuntimeError> {
        let language = Language::Python;
        let call = Call::LoadKernel { language, argv: vec![kernels::loader()] };
        let reply = match link.call(call, &[]).await {
            // An earlier version's sandbox, or one of an image with other scripts: not for want of an interpreter.
            Err(error) if error.is_no_interpreter() => {
                return Err(RuntimeError::Kernel("there is no loader in this sandbox".into()));
            }
            reply => reply?,
        };
        let line = match (reply.answer, reply.fds.into_iter().next()) {
            (Answer::SnapshotSocket, Some(line)) => Line::new(link, line).await?,
            _ => return Err(RuntimeError::UnexpectedAnswer),
        };
        let open = |file| sealed::open_again(file).map_err(RuntimeError::Keep);
        let (index, pages) = (open(&self.memory.index)?, open(&self.memory.pages)?);
        let files = [index.as_fd(), pages.as_fd()];
        let begin = SnapshotCall::Begin { env: environment(env), cwd: cwd.into() };
        let started = async {
            line.send_bytes(loader_packet(&[self.memory.id]), &files).await?;
            line.send(&begin, &[]).await?;
            link.call(Call::AwaitKernel { language }, &[]).await.map(|_| ())
        };
        match started.await {
            Err(error) => Err(reason(&line).await.unwrap_or(error)),
            started => started,
        }
    }

    /// What its kernels have in common, for their pictures. Without it these are larger, and as good.
    pub(crate) async fn common(&self, commons: &Path) -> Option<Arc<Common>> {
        let kept = self.kept.get_or_try_init(|| async {
            let (memory, commons) = (Arc::clone(&self.memory), commons.to_owned());
            let copied = tokio::task::spawn_blocking(move || memory.keep(&commons)).await;
            let copied = copied.unwrap_or_else(|panic| Err(io::Error::other(panic)));
            copied.inspect_err(|error| {
                tracing::warn!("failed to store the memory that kernels begin with: {error}");
            })
        });
        kept.await.ok().map(|()| Arc::clone(&self.memory))
    }
}

/// Has the interpreter in a sandbox load what the image says, and write itself into the files.
async fn ask(
    sandbox: &Sandbox,
    image: &Staged,
    layer: u64,
    [pages, index]: [&File; 2],
) -> Result<Warm, RuntimeError> {
    let (argv, env) = (image.python_argv(Role::Preloaded)?, image.environment(&[]));
    let spawn = Call::SpawnKernel { language: Language::Python, argv, env, cwd: "/".into() };
    sandbox.link().call(spawn, &[]).await?;
    sandbox.link().call(Call::AwaitKernel { language: Language::Python }, &[]).await?;
    let line = sandbox.line().await?;
    let preload = SnapshotCall::Preload { layer, modules: image.preload().to_vec() };
    let again = |file: &File| file.try_clone().map_err(RuntimeError::Keep);
    let meter = Arc::new(Fixed::new(COMMON_BYTES));
    let sink = Sink::new(again(pages)?, again(index)?, meter, true);
    let (mut pump, theirs) = Pump::new(sink).map_err(RuntimeError::Keep)?;
    line.send(&preload, &[theirs.as_fd()]).await?;
    // Ours must not be the one that keeps the pipe open.
    drop(theirs);
    let (report, whole) = tokio::join!(line.receive(WARM_TIMEOUT), pump.run());
    let SnapshotReply { refused, warm, .. } = report?;
    match warm {
        Some(warm) if refused.is_empty() && whole? => Ok(warm),
        _ => Err(RuntimeError::Kernel(snapshot::words(refused).join("; "))),
    }
}

/// Why a loader could not become a kernel, if it said so before it ended.
async fn reason(line: &Line) -> Option<RuntimeError> {
    let report = line.receive(REASON_TIMEOUT).await.ok()?;
    let refused = snapshot::words(report.refused).join("; ");
    Some(RuntimeError::Kernel(format!("cannot begin with prepared memory: {refused}")))
}

/// Whether a guest knows how to start kernels from a zygote.
pub(crate) fn is_understood_by(link: &Link) -> bool {
    link.protocol() >= PROTOCOL_WITH_LOADING
}

/// Makes the zygote of an image in the background, and again if that fails.
#[derive(Debug)]
pub(crate) struct Keeper {
    current: watch::Receiver<(ZygoteState, Option<Arc<Zygote>>)>,
    task: tokio::task::JoinHandle<()>,
}

impl Keeper {
    pub(crate) fn start(runtime: &Arc<NativeRuntime>, image: &Arc<Staged>) -> Keeper {
        let (publish, current) = watch::channel((ZygoteState::Warming, None));
        // Neither the runtime nor the image waits for us, and we end with both.
        let (runtime, image) = (Arc::downgrade(runtime), Arc::downgrade(image));
        let task = tokio::spawn(async move {
            let mut failures = 0;
            loop {
                let (Some(runtime), Some(image)) = (runtime.upgrade(), image.upgrade()) else {
                    return;
                };
                let name = image.name();
                match Zygote::make(&runtime, &image).await {
                    Ok((zygote, warm)) => {
                        for (module, reason) in &warm.failed {
                            tracing::warn!(
                                "the zygote of {name} could not import {module}: {reason}"
                            );
                        }
                        tracing::info!(
                            "the zygote of {name} is warm: Python {} with {} modules",
                            warm.python,
                            warm.modules.len()
                        );
                        publish.send_replace((ZygoteState::Warm(warm), Some(Arc::new(zygote))));
                        return;
                    }
                    Err(error) => {
                        tracing::warn!("failed to make the zygote of {name}: {error}");
                        publish.send_replace((ZygoteState::Failed(error.to_string()), None));
                    }
                }
                drop((runtime, image));
                let pause = RESTART_PAUSES[usize::min(failures, RESTART_PAUSES.len() - 1)];
                failures += 1;
                tokio::time::sleep(pause).await;
            }
        });
        Keeper { current, task }
    }

    /// Stops making it; the sandbox in which that happens is gone afterwards.
    pub(crate) async fn stop(&self) {
        self.task.abort();
        let stopped = async {
            while !self.task.is_finished() {
                tokio::time::sleep(STOP_PACE).await;
            }
        };
        let _ = tokio::time::timeout(STOP_TIMEOUT, stopped).await;
    }

    pub(crate) fn warm(&self) -> Option<Arc<Zygote>> {
        self.current.borrow().1.clone()
    }

    pub(crate) fn state(&self) -> ZygoteState {
        self.current.borrow().0.clone()
    }

    /// Waits until the zygote is warm or has failed.
    pub(crate) async fn settled(&self) -> ZygoteState {
        let mut current = self.current.clone();
        match current.wait_for(|(state, _)| !matches!(state, ZygoteState::Warming)).await {
            Ok(settled) => settled.0.clone(),
            // The one who made it has nothing more to do.
            Err(_) => self.state(),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}
