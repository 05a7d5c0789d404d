//! The zygote of an image: the memory of a Python with the image's packages loaded. Kernels begin with it.
//!
//! ```text
//!   separate sandbox: python imports, writes its memory into two files ──▶ ended; files sealed
//!                                                                               │
//!   session's sandbox: loader ── maps the files, becomes that Python ◀──────────┘ a kernel, in milliseconds
//! ```
//!
//! The files of an image and the packages that setup installed are not trusted: their code runs only in sandboxes. The
//! sandbox that loads them has no data of sessions, and has ended before the first kernel begins with its memory. All
//! kernels share pages until they write to them; the files are sealed, so no kernel can change what another reads.
//!
//! Without a warm zygote, kernels start the slow way.

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
use super::staged::StagedImage;
use crate::RuntimeError;
use crate::kernels::{self, Role};
use crate::link::Link;
use crate::runtime::ZygoteState;
use crate::sandbox::Sandbox;
use crate::snapshot::{self, COMMON_BYTES, Common, Fixed, Pump, Sink, SnapshotSocket};
use crate::spec::{Limits, SandboxSpec};

/// Importing a large preload list on a cold disk takes a while.
const WARM_TIMEOUT: Duration = Duration::from_secs(180);

/// A loader that fails sends the reason at once, if it can.
const REASON_TIMEOUT: Duration = Duration::from_millis(100);

/// Limits for loading the packages of an image.
const LIMITS: Limits = Limits { memory: 4 << 30, millicpus: 2000, pids: 64, tmpfs: 64 << 20 };

/// An aborted task stops at once, and then ends its sandbox.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const STOP_PACE: Duration = Duration::from_millis(2);

/// Pauses between failed attempts.
const RESTART_PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
];

/// Memory that kernels begin with.
#[derive(Debug)]
pub(crate) struct Zygote {
    memory: Arc<Common>,
    /// Set when a copy is on disk, for snapshots of kernels. It is made with the first snapshot, or with a later one if the
    /// disk was full.
    kept: OnceCell<()>,
}

impl Zygote {
    /// Loads the packages of an image in a sandbox, and keeps its memory.
    async fn make(
        runtime: &Arc<NativeRuntime>,
        image: &Arc<StagedImage>,
    ) -> Result<(Zygote, Warm), RuntimeError> {
        let files = [sealed::create("pages"), sealed::create("index")];
        let [pages, index] = files.map(|file| file.map_err(RuntimeError::Keep));
        let (pages, index) = (pages?, index?);
        let id = Common::new_id();
        let spec = SandboxSpec { limits: LIMITS, ..SandboxSpec::default() };
        let sandbox = runtime.create_from(image, &spec, "zygote-").await?;
        let asked = preload(&sandbox, image, id, [&pages, &index]);
        let answer = tokio::time::timeout(WARM_TIMEOUT, asked)
            .await
            .unwrap_or(Err(RuntimeError::TimedOut(WARM_TIMEOUT.as_secs())));
        // After this no process can write to the files.
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
            // The sandbox was made by another version, or its image has other scripts. The interpreter may exist.
            Err(error) if error.is_no_interpreter() => {
                return Err(RuntimeError::Kernel("there is no loader in this sandbox".into()));
            }
            reply => reply?,
        };
        let socket = match (reply.answer, reply.fds.into_iter().next()) {
            (Answer::SnapshotSocket, Some(socket)) => SnapshotSocket::new(link, socket).await?,
            _ => return Err(RuntimeError::UnexpectedAnswer),
        };
        let open = |file| sealed::open_again(file).map_err(RuntimeError::Keep);
        let (index, pages) = (open(&self.memory.index)?, open(&self.memory.pages)?);
        let files = [index.as_fd(), pages.as_fd()];
        let begin = SnapshotCall::Begin { env: environment(env), cwd: cwd.into() };
        let started = async {
            socket.send_bytes(loader_packet(&[self.memory.id]), &files).await?;
            socket.send(&begin, &[]).await?;
            link.call(Call::AwaitKernel { language }, &[]).await.map(|_| ())
        };
        match started.await {
            Err(error) => Err(reason(&socket).await.unwrap_or(error)),
            started => started,
        }
    }

    /// The common memory of its kernels, for their snapshots. Without it snapshots are larger.
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

/// Makes the interpreter in a sandbox load the preload list of the image and write its memory into the files.
async fn preload(
    sandbox: &Sandbox,
    image: &StagedImage,
    layer: u64,
    [pages, index]: [&File; 2],
) -> Result<Warm, RuntimeError> {
    let (argv, env) = (image.python_argv(Role::Preloaded)?, image.environment(&[]));
    let spawn = Call::SpawnKernel { language: Language::Python, argv, env, cwd: "/".into() };
    sandbox.link().call(spawn, &[]).await?;
    sandbox.link().call(Call::AwaitKernel { language: Language::Python }, &[]).await?;
    let socket = sandbox.snapshot_socket().await?;
    let call = SnapshotCall::Preload { layer, modules: image.preload().to_vec() };
    let again = |file: &File| file.try_clone().map_err(RuntimeError::Keep);
    let meter = Arc::new(Fixed::new(COMMON_BYTES));
    let sink = Sink::new(again(pages)?, again(index)?, meter, true);
    let (mut pump, writer) = Pump::new(sink).map_err(RuntimeError::Keep)?;
    socket.send(&call, &[writer.as_fd()]).await?;
    // Otherwise our copy would keep the pipe open.
    drop(writer);
    let (report, whole) = tokio::join!(socket.receive(WARM_TIMEOUT), pump.run());
    let SnapshotReply { refused, warm, .. } = report?;
    match warm {
        Some(warm) if refused.is_empty() && whole? => Ok(warm),
        _ => Err(RuntimeError::Kernel(snapshot::bounded(refused).join("; "))),
    }
}

/// Why a loader could not become a kernel, if it sent the reason before it ended.
async fn reason(socket: &SnapshotSocket) -> Option<RuntimeError> {
    let report = socket.receive(REASON_TIMEOUT).await.ok()?;
    let refused = snapshot::bounded(report.refused).join("; ");
    Some(RuntimeError::Kernel(format!("the loader failed to restore the zygote: {refused}")))
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
    pub(crate) fn start(runtime: &Arc<NativeRuntime>, image: &Arc<StagedImage>) -> Keeper {
        let (publish, current) = watch::channel((ZygoteState::Warming, None));
        // The task keeps neither of them alive, and ends with both.
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

    /// Stops making the zygote. When this returns, the sandbox for it is gone.
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
            // The task has ended, after it published its last state.
            Err(_) => self.state(),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}
