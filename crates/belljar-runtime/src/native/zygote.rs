//! The host's handle of a zygote: a Python with the image's packages loaded, which forks kernels
//! into sandboxes in milliseconds.
//!
//! A zygote that dies is replaced in the background; until the new one is warm, kernels start the
//! slow way. It is told what to do over a socket of packets and ends when that closes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
pub use belljar_proto::zygote::Warm;
use belljar_proto::zygote::{FromZygote, KERNEL_ENDS, ToZygote, environment};
use belljar_sys::{channel, seccomp};
use tokio::io::unix::AsyncFd;
use tokio::sync::{OnceCell, watch};

use super::NativeRuntime;
use super::plan;
use super::staged::Staged;
use crate::RuntimeError;
use crate::frozen::Common;
use crate::kernels::Role;
use crate::spec::USER_ID;

/// Importing a large preload list on a cold disk takes a while.
const WARM_TIMEOUT: Duration = Duration::from_secs(180);

/// A fork takes milliseconds; a zygote that needs this long is stuck.
const FORK_TIMEOUT: Duration = Duration::from_secs(20);

/// Between attempts to replace a zygote that keeps dying.
const RESTART_PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
];

#[derive(Debug, Clone)]
pub enum ZygoteState {
    Warming,
    Warm(Warm),
    /// It cannot be had; the reason, for people.
    Failed(String),
}

/// A warm zygote, ready to fork.
#[derive(Debug)]
pub(crate) struct Zygote {
    socket: tokio::sync::Mutex<(AsyncFd<OwnedFd>, u64)>,
    /// Its end of life, seen by the keeper.
    process: AsyncFd<OwnedFd>,
    /// Of the spawner that started it, whose sandboxes it can enter.
    generation: u64,
    /// What its kernels have in common, written down when the first of them is.
    common: OnceCell<Option<Arc<Common>>>,
}

/// What a new kernel is connected to.
#[derive(Debug)]
pub(crate) struct KernelFds<'a> {
    pub(crate) pidfd: BorrowedFd<'a>,
    /// Control, stdin, stdout, stderr and perhaps the Landlock ruleset, from the guest.
    pub(crate) ends: &'a [OwnedFd],
    pub(crate) cgroups: &'a [OwnedFd],
}

impl Zygote {
    /// Starts one and waits until it is warm.
    async fn start(
        runtime: &Arc<NativeRuntime>,
        image: &Staged,
    ) -> Result<(Zygote, Warm), RuntimeError> {
        let (ours, theirs) = channel::packet_pair().map_err(RuntimeError::SpawnerGone)?;
        let null = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map_err(RuntimeError::SpawnerGone)?;
        let stderr = std::io::stderr();
        // Standard error is shown when someone debugs the zygote, and not otherwise.
        let errors = if std::env::var_os("BELLJAR_DEBUG_ZYGOTE").is_some() {
            stderr.as_fd()
        } else {
            null.as_fd()
        };
        let fds = [null.as_fd(), null.as_fd(), errors, theirs.as_fd()];
        let argv = image.python_argv(Role::Zygote)?;
        let env = image.environment(&[]);
        let spawner = runtime.spawner();
        let generation = spawner.generation();
        image.assemble(runtime, &spawner).await?;
        let plan = plan::zygote(image.root());
        let mut spawned = spawner.program(plan, argv, env, &fds).await?;
        drop(theirs);
        spawned.settled().await?;
        let pid = spawned.pid;
        let socket = channel::nonblocking(ours).map_err(RuntimeError::SpawnerGone)?;
        let process = channel::watched(spawned.keep()).map_err(RuntimeError::SpawnerGone)?;
        // From here on it is killed if anything fails.
        let (socket, common) = (tokio::sync::Mutex::new((socket, 0)), OnceCell::new());
        let zygote = Zygote { socket, process, generation, common };
        let filter =
            seccomp::Filter::sandbox().map_err(|error| RuntimeError::Kernel(error.to_string()))?;
        let configure = ToZygote::Configure {
            preload: image.preload(),
            seccomp: base64::engine::general_purpose::STANDARD.encode(filter.to_bytes()),
        };
        let getting_warm = async {
            let mut guard = zygote.socket.lock().await;
            send(&mut guard.0, &configure, &[]).await?;
            receive(&guard.0).await
        };
        match tokio::time::timeout(WARM_TIMEOUT, getting_warm).await {
            Ok(Ok(FromZygote::Ready(warm))) => Ok((zygote, Warm { pid, ..warm })),
            Ok(Ok(_)) => Err(RuntimeError::UnexpectedAnswer),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(RuntimeError::TimedOut(WARM_TIMEOUT.as_secs())),
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// What its kernels have in common. Without it their pictures are larger, and as good.
    pub(crate) async fn common(&self, commons: &Path) -> Option<Arc<Common>> {
        let made = self.common.get_or_init(|| async {
            let made = self.picture(commons).await;
            made.inspect_err(|error| tracing::warn!("no common picture of kernels: {error}")).ok()
        });
        made.await.clone()
    }

    async fn picture(&self, commons: &Path) -> Result<Arc<Common>, RuntimeError> {
        let cannot = |cause| RuntimeError::Prepare { path: commons.to_owned(), cause };
        let (layer, path, mut pump, theirs) = Common::begin(commons).map_err(cannot)?;
        let drawing = async {
            let mut guard = self.socket.lock().await;
            send(&mut guard.0, &ToZygote::Picture { layer }, &[theirs.as_fd()]).await?;
            drop(theirs);
            let (answer, whole) = tokio::join!(receive(&guard.0), pump.run());
            match answer? {
                FromZygote::Pictured { .. } if whole? => Ok(()),
                FromZygote::Pictured { .. } => {
                    Err(RuntimeError::Picture("it stopped before the end".into()))
                }
                FromZygote::Error { error } => Err(RuntimeError::Picture(error)),
                _ => Err(RuntimeError::UnexpectedAnswer),
            }
        };
        let drawn = tokio::time::timeout(FORK_TIMEOUT, drawing).await;
        let drawn = drawn.unwrap_or(Err(RuntimeError::TimedOut(FORK_TIMEOUT.as_secs())));
        drawn.inspect_err(|_| Common::give_up(&path))?;
        Common::open(layer, &path).map(Arc::new).map_err(cannot)
    }

    /// Forks a kernel into a sandbox. It reports to the guest by itself when it is ready.
    pub(crate) async fn fork(
        &self,
        kernel: KernelFds<'_>,
        cwd: &str,
        env: &[(String, String)],
    ) -> Result<(), RuntimeError> {
        let mut fds = vec![kernel.pidfd];
        fds.extend(kernel.ends.iter().map(AsFd::as_fd));
        fds.extend(kernel.cgroups.iter().map(AsFd::as_fd));
        let mut described = vec!["pidfd"];
        described.extend(&KERNEL_ENDS[..kernel.ends.len().min(KERNEL_ENDS.len())]);
        described.extend(kernel.cgroups.iter().map(|_| "cgroup"));

        let mut guard = self.socket.lock().await;
        let (socket, next_id) = &mut *guard;
        *next_id += 1;
        let id = *next_id;
        let order = ToZygote::Fork {
            id,
            fds: described,
            uid: USER_ID,
            gid: USER_ID,
            cwd,
            env: environment(env),
        };
        let conversation = async {
            send(socket, &order, &fds).await?;
            loop {
                match receive(socket).await? {
                    FromZygote::Forked { id: answered, ok: true, .. } if answered == id => {
                        return Ok(());
                    }
                    FromZygote::Forked { id: answered, error, .. } if answered == id => {
                        return Err(RuntimeError::Kernel(error));
                    }
                    FromZygote::Error { error } => return Err(RuntimeError::Kernel(error)),
                    // A late answer to someone who stopped waiting.
                    _ => {}
                }
            }
        };
        match tokio::time::timeout(FORK_TIMEOUT, conversation).await {
            Ok(outcome) => outcome,
            Err(_) => {
                // Nobody else should have to find out; its keeper makes a new one.
                let _ = belljar_sys::process::kill_by_pidfd(self.process.get_ref());
                Err(RuntimeError::TimedOut(FORK_TIMEOUT.as_secs()))
            }
        }
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        let _ = belljar_sys::process::kill_by_pidfd(self.process.get_ref());
    }
}

async fn send(
    socket: &mut AsyncFd<OwnedFd>,
    message: &ToZygote<'_>,
    fds: &[BorrowedFd<'_>],
) -> Result<(), RuntimeError> {
    let bytes = serde_json::to_vec(message).expect("wire types serialize to JSON");
    channel::send_packet_async(socket, &bytes, fds)
        .await
        .map_err(|error| RuntimeError::Kernel(format!("lost the zygote: {error}")))
}

async fn receive(socket: &AsyncFd<OwnedFd>) -> Result<FromZygote, RuntimeError> {
    match channel::recv_packet_async(socket).await {
        Ok(Some((bytes, _))) => serde_json::from_slice(&bytes)
            .map_err(|error| RuntimeError::Kernel(format!("the zygote talks nonsense: {error}"))),
        Ok(None) => Err(RuntimeError::Kernel("the zygote died".into())),
        Err(error) => Err(RuntimeError::Kernel(format!("lost the zygote: {error}"))),
    }
}

/// Keeps a warm zygote at hand.
#[derive(Debug)]
pub(crate) struct Keeper {
    current: watch::Receiver<(ZygoteState, Option<Arc<Zygote>>)>,
    task: tokio::task::JoinHandle<()>,
}

impl Keeper {
    pub(crate) fn start(runtime: &Arc<NativeRuntime>, image: &Arc<Staged>) -> Keeper {
        let (publish, current) = watch::channel((ZygoteState::Warming, None));
        // Weak: the keeper must not keep alive what owns it.
        let (runtime, image) = (Arc::downgrade(runtime), Arc::downgrade(image));
        let task = tokio::spawn(async move {
            let mut failures = 0;
            loop {
                let (Some(strong), Some(image)) = (runtime.upgrade(), image.upgrade()) else {
                    return;
                };
                let spawner = strong.spawner();
                let started = Zygote::start(&strong, &image).await;
                if let Err(RuntimeError::SpawnerGone(_)) = &started {
                    // If that fails too, whoever wants a sandbox is told.
                    let _ = strong.replace_spawner(&spawner).await;
                }
                let name = image.name().to_owned();
                drop((strong, spawner, image));
                match started {
                    Ok((zygote, warm)) => {
                        failures = 0;
                        tracing::info!(
                            zygote.rss_kib = warm.rss_kib,
                            "zygote of {name} is warm: Python {} with {} modules",
                            warm.python,
                            warm.modules.len()
                        );
                        let zygote = Arc::new(zygote);
                        publish.send_replace((ZygoteState::Warm(warm), Some(Arc::clone(&zygote))));
                        // Readable when it has ended.
                        let _ = zygote.process.readable().await;
                        tracing::warn!("the zygote died; kernels start slowly until it is back");
                        publish.send_replace((ZygoteState::Warming, None));
                    }
                    Err(error) => {
                        tracing::warn!("failed to start a zygote of {name}: {error}");
                        publish.send_replace((ZygoteState::Failed(error.to_string()), None));
                    }
                }
                let pause = RESTART_PAUSES[usize::min(failures, RESTART_PAUSES.len() - 1)];
                failures += 1;
                tokio::time::sleep(pause).await;
            }
        });
        Keeper { current, task }
    }

    pub(crate) fn warm(&self) -> Option<Arc<Zygote>> {
        self.current.borrow().1.clone()
    }

    /// Ends the zygote; the next one is started by whoever is the spawner then.
    pub(crate) fn replace(&self) {
        if let Some(zygote) = self.warm() {
            let _ = belljar_sys::process::kill_by_pidfd(zygote.process.get_ref());
        }
    }

    pub(crate) fn state(&self) -> ZygoteState {
        self.current.borrow().0.clone()
    }

    /// Waits until the zygote is warm or has failed.
    pub(crate) async fn settled(&self) -> ZygoteState {
        let mut current = self.current.clone();
        match current.wait_for(|(state, _)| !matches!(state, ZygoteState::Warming)).await {
            Ok(settled) => settled.0.clone(),
            Err(_) => ZygoteState::Failed("its keeper ended".into()),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}
