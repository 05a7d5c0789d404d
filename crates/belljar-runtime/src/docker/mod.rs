//! Sandboxes that are containers of a Docker or Podman engine.
//!
//! ```text
//!   DockerRuntime ── bollard ──▶ engine ── runc, runsc, ... ──▶ container
//!        │                          └── die, destroy ──▶ deaths     guest (PID 1, our binary)
//!        └── Link ◀──── a socket in a directory that both see ────────┘  └─ zygote, kernels
//!                 or, attached, through the engine
//! ```
//!
//! The binary is mounted read-only into the container, so any Linux image can be used. The guest is its first process.
//! It seals itself before anything else runs, and connects to the host's socket. [`recipe`] lists what the engine must
//! enforce, [`seal`] what the guest adds.
//!
//! A container with its own Linux kernel (gVisor, Kata) can neither share a socket with the host nor pass descriptors: the
//! host uses its standard streams, and files are sent as bytes.

mod deaths;
mod engine;
mod handle;
mod image;
mod recipe;
mod seal;
mod transport;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use belljar_proto::guest::ZygoteOrder;
use belljar_sys::cgroup::Meters;
use belljar_sys::{privileges, process, procfs};
use bollard::Docker;
use bollard::models::{ContainerCreateBody, ContainerState};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, KillContainerOptionsBuilder,
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
};

use crate::data;
use crate::error::{ContainerEngineError, RuntimeError};
use crate::host_files;
use crate::kernels::{self, Role};
use crate::link::Link;
use crate::lock;
use crate::orphans;
use crate::private;
use crate::runtime::{Runtime, ZygoteState};
use crate::sandbox::{BackendHandle, Handle, Parts, Sandbox};
use crate::spec::{DataMount, SandboxSpec};
use crate::user::USER_ID;
use crate::volume::{OpenVolume, VolumeKind};
use deaths::Deaths;
use handle::ContainerHandle;
use image::ReadyImage;
pub use recipe::Gpus;
use recipe::{Recipe, TransportKind, labels};
pub use seal::{Sealed, seal_guest};
use transport::{GuestListener, Transport};

/// How long a looked-up image is used without another lookup: a different image may get the same name.
const IMAGE_FRESH: Duration = Duration::from_secs(10);

/// Retry budget for removing a container.
const REMOVE_AGAIN: u32 = 1800;
const REMOVE_PAUSE: Duration = Duration::from_secs(2);

/// Container runtimes that share the host's Linux kernel, and so sockets and descriptors.
const SHARED_KERNEL: [&str; 5] = ["runc", "crun", "youki", "nvidia", "io.containerd.runc.v2"];

#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// The address of the engine, as in `DOCKER_HOST`; none: the usual one.
    pub address: Option<String>,
    /// The belljar binary, which must be static.
    pub executable: PathBuf,
    /// Directory with the kernels' scripts.
    pub kernels: PathBuf,
    /// The run directory of this server, which is made private.
    pub run_dir: PathBuf,
    /// Where sockets go, one directory for each sandbox. It is inside `run_dir`, or private already.
    pub socket_dir: PathBuf,
    pub image: String,
    /// Modules that zygotes import, unless the image has its own list.
    pub preload: Vec<String>,
    /// The engine's container runtime, for example `runsc`; none: its default.
    pub runtime: Option<String>,
    pub gpus: Option<Gpus>,
}

#[derive(Debug)]
pub struct DockerRuntime {
    config: DockerConfig,
    docker: Docker,
    address: String,
    engine: String,
    transport: TransportKind,
    deaths: Deaths,
    /// The owner of the containers.
    owner: String,
    /// Distinguishes the containers of this process from those of earlier ones.
    instance: String,
    /// Whether sandboxes get a zygote. It is not worth it for a sandbox of a single call.
    warm: bool,
    images: Mutex<HashMap<String, (Instant, ReadyImage)>>,
    /// Locked while an image is inspected, and prepared if necessary.
    preparing: tokio::sync::Mutex<()>,
    next: AtomicU64,
}

impl DockerRuntime {
    /// Connects to the engine. With an owner, sandboxes belong to that owner and outlive this process; without, they belong
    /// to this process and end with it.
    pub async fn launch(
        config: DockerConfig,
        owner: Option<&str>,
    ) -> Result<Arc<DockerRuntime>, RuntimeError> {
        private::make(&config.run_dir)?;
        if !config.socket_dir.starts_with(&config.run_dir) {
            private::require(&config.socket_dir)?;
        }
        let (docker, address, info) = engine::open(config.address.as_deref()).await?;
        let is_remote_kernel = |system: &String| system.contains("Docker Desktop");
        let shares_kernel = config.runtime.as_deref().is_none_or(|r| SHARED_KERNEL.contains(&r))
            && !info.operating_system.as_ref().is_some_and(is_remote_kernel);
        if let (Some(wanted), Some(known)) = (&config.runtime, &info.runtimes)
            && !known.contains_key(wanted)
        {
            return Err(ContainerEngineError::NoRuntime(wanted.clone()).into());
        }
        let version = info.server_version.unwrap_or_default();
        let engine = format!("engine {version} at {address}");
        let random = &process::random_name()[..8];
        let (pid, warm) = (std::process::id(), owner.is_some());
        let owner = owner.map_or_else(
            || format!("{pid}.{}", procfs::start_time(pid).unwrap_or(0)),
            str::to_owned,
        );
        let runtime = Arc::new(DockerRuntime {
            transport: if shares_kernel { TransportKind::Socket } else { TransportKind::Attached },
            deaths: Deaths::listen(docker.clone(), &owner),
            instance: format!("{owner}.{random}"),
            warm,
            images: Mutex::default(),
            preparing: tokio::sync::Mutex::default(),
            next: AtomicU64::new(1),
            owner,
            config,
            docker,
            address,
            engine,
        });
        runtime.remove_all(None, orphans::is_orphaned).await;
        Ok(runtime)
    }

    /// The version and address of the engine.
    #[must_use]
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// The version and address of the engine, and whether it has the image of this configuration. Starts nothing.
    pub async fn look(config: &DockerConfig) -> Result<(String, bool), RuntimeError> {
        let (docker, address, info) = engine::open(config.address.as_deref()).await?;
        let version = info.server_version.unwrap_or_default();
        let looking = docker.inspect_image(&config.image);
        let has_image = engine::answer(&docker, &address, looking).await?.is_ok();
        Ok((format!("engine {version} at {address}"), has_image))
    }

    /// Whether an engine answers that has the image of this configuration.
    pub async fn has_image(config: &DockerConfig) -> bool {
        let Ok((docker, address)) = engine::connect(config.address.as_deref()) else {
            return false;
        };
        let asking = docker.clone();
        let look = async {
            let docker = docker.negotiate_version().await.ok()?;
            docker.inspect_image(&config.image).await.ok()
        };
        matches!(engine::answer(&asking, &address, look).await, Ok(Some(_)))
    }

    async fn make(self: &Arc<Self>, spec: &SandboxSpec) -> Result<Sandbox, RuntimeError> {
        let name = format!("{}.{}", self.instance, self.next.fetch_add(1, Ordering::Relaxed));
        let nonce = process::random_name();
        self.check(spec)?;
        let image = self.image_of(spec).await?;
        let session = session_files(spec, self.user()).await?;
        // They stay mounted until the container has them.
        let opened = host_files::open_volumes(spec).await?;
        let volumes: Vec<PathBuf> = opened.iter().map(|volume| volume.files.clone()).collect();
        let (transport, listener) = match self.transport {
            TransportKind::Socket => {
                Some(Transport::open(self.socket_directory_of(&name))?).unzip()
            }
            TransportKind::Attached => (None, None),
        };
        let recipe = Recipe {
            spec,
            name: &name,
            owner: &self.owner,
            nonce: &nonce,
            image: &image.id,
            user: self.user(),
            transport: self.transport,
            executable: &self.config.executable,
            kernels: &self.config.kernels,
            socket_directory: transport.as_ref().map_or(Path::new(""), Transport::directory),
            session: session.as_ref().map(|session| session.files.as_path()),
            volumes: &volumes,
            runtime: self.config.runtime.as_deref(),
            gpus: self.config.gpus.as_ref(),
        };
        let container = self.make_container(format!("belljar-{name}"), recipe.body()).await?;
        // From here on the container is removed if anything fails.
        let mut container_handle = self.handle_of(&container, &image, spec, transport);
        let (link, pid) = match self.begin(&container_handle, listener, &nonce).await {
            Ok(begun) => begun,
            Err(error) => {
                // If the engine hangs, dropping the handle removes the container later.
                let removing = self.remove(&container);
                let _ = engine::answer(&self.docker, &self.address, removing).await;
                return Err(error);
            }
        };
        drop((opened, session));
        container_handle.meters = Meters::of_process(pid);
        let started = procfs::start_time(pid).unwrap_or(0);
        let container = Some(container);
        let handle = Handle { name, pid, started, nonce, block: None, container };
        Ok(self.assemble(handle, spec.clone(), &image, link, container_handle))
    }

    /// Refuses what a container cannot have.
    fn check(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        if spec.workspace.is_some() {
            let why = "a workspace requires the native backend (BELLJAR_BACKEND=native)";
            return Err(RuntimeError::Workspace(why.to_owned()));
        }
        match &spec.data {
            Some(DataMount { host_path }) if privileges::is_root() => {
                data::check_readable(host_path, self.user())
            }
            _ => Ok(()),
        }
    }

    /// The handle of a new container, which has not begun yet.
    fn handle_of(
        self: &Arc<Self>,
        container: &str,
        image: &ReadyImage,
        spec: &SandboxSpec,
        transport: Option<Transport>,
    ) -> ContainerHandle {
        ContainerHandle {
            runtime: Arc::clone(self),
            death: self.deaths.watch(container),
            container: container.to_owned(),
            meters: None,
            zygote: self.warm.then(|| self.zygote(image, spec)),
            removed: AtomicBool::new(false),
            transport,
        }
    }

    /// Makes a container and returns its id. If the engine hangs, this fails; if the engine makes the container later,
    /// it is removed.
    async fn make_container(
        self: &Arc<Self>,
        name: String,
        body: ContainerCreateBody,
    ) -> Result<String, RuntimeError> {
        let docker = self.docker.clone();
        let called = CreateContainerOptionsBuilder::new().name(&name).build();
        let mut making =
            tokio::spawn(async move { docker.create_container(Some(called), body).await });
        let made = match engine::answer(&self.docker, &self.address, &mut making).await {
            Ok(made) => made,
            Err(hangs) => {
                let runtime = Arc::clone(self);
                tokio::spawn(async move {
                    let id = making.await.ok().and_then(Result::ok).map_or(name, |made| made.id);
                    runtime.remove(&id).await;
                });
                return Err(hangs.into());
            }
        };
        let made = made.map_err(|panic| RuntimeError::Build(panic.to_string()))?;
        Ok(made.map_err(|error| self.explain("make a container", error))?.id)
    }

    /// Starts a container and connects to its guest. Also returns its first process; 0 if that is on another machine.
    async fn begin(
        &self,
        container_handle: &ContainerHandle,
        listener: Option<GuestListener>,
        nonce: &str,
    ) -> Result<(Link, u32), RuntimeError> {
        let (container, docker) = (&container_handle.container, &self.docker);
        let attached = match &listener {
            Some(_) => None,
            None => {
                let attaching = transport::attach(docker, container, nonce);
                let attached = engine::answer(docker, &self.address, attaching).await?;
                Some(attached.map_err(|error| self.explain("attach to the container", error))?)
            }
        };
        let starting = docker.start_container(container, None::<StartContainerOptions>);
        let started = engine::answer(docker, &self.address, starting).await?;
        started.map_err(|error| self.explain("start the container", error))?;
        let pid = engine::answer(docker, &self.address, self.pid_of(container)).await?;
        let connecting = async {
            let stream = match (attached, listener) {
                (Some(stream), _) => stream,
                (None, Some(listener)) => {
                    listener.accept(None, pid.ok_or(ContainerEngineError::Ended)?).await?
                }
                (None, None) => return Err(RuntimeError::Gone),
            };
            Ok((Link::over(stream, nonce).await?, pid.unwrap_or(0)))
        };
        tokio::select! {
            link = connecting => link,
            () = container_handle.ended() => Err(ContainerEngineError::Ended.into()),
        }
    }

    async fn take_over(
        self: &Arc<Self>,
        handle: Handle,
        spec: SandboxSpec,
    ) -> Result<Sandbox, RuntimeError> {
        let container = handle.container.clone().ok_or(RuntimeError::Gone)?;
        let inspected =
            self.docker.inspect_container(&container, None::<InspectContainerOptions>).await;
        let seen = match inspected {
            Ok(seen) => seen,
            Err(error) if engine::is_gone(&error) => return Err(RuntimeError::Gone),
            Err(error) => return Err(self.explain("look at the container", error)),
        };
        let labels = seen.config.and_then(|config| config.labels).unwrap_or_default();
        let is_it = labels.get(labels::NONCE) == Some(&handle.nonce);
        let Some(state) = seen.state.filter(|state| is_it && state.running == Some(true)) else {
            return Err(RuntimeError::Gone);
        };
        let death = self.deaths.watch(&container);
        let image = self.image_of(&spec).await?;
        let kind = labels.get(labels::TRANSPORT);
        let kind = kind.map_or(self.transport, |name| TransportKind::of_name(name));
        let (stream, transport) = match kind {
            TransportKind::Socket => {
                let (transport, listener) =
                    Transport::open(self.socket_directory_of(&handle.name))?;
                let pid = first_process(&state).ok_or(RuntimeError::Gone)?;
                (listener.accept(Some(&handle.nonce), pid).await?, Some(transport))
            }
            TransportKind::Attached => {
                let attached = transport::attach(&self.docker, &container, &handle.nonce).await;
                let explain = |error| self.explain("attach to the container", error);
                (attached.map_err(explain)?, None)
            }
        };
        let link = Link::over(stream, &handle.nonce).await?;
        let container_handle = ContainerHandle {
            runtime: Arc::clone(self),
            death,
            container,
            meters: Meters::of_process(handle.pid),
            zygote: self.warm.then(|| self.zygote(&image, &spec)),
            removed: AtomicBool::new(false),
            transport,
        };
        Ok(self.assemble(handle, spec, &image, link, container_handle))
    }

    fn assemble(
        &self,
        handle: Handle,
        spec: SandboxSpec,
        image: &ReadyImage,
        link: Link,
        container_handle: ContainerHandle,
    ) -> Sandbox {
        let env = environment(image, &spec);
        let python = kernels::python_argv(PYTHON, Role::Kernel, None);
        let backend = Box::new(container_handle);
        Sandbox::assemble(Parts { handle, spec, env, python, link, backend })
    }

    /// How to start the zygote of this image.
    fn zygote(&self, image: &ReadyImage, spec: &SandboxSpec) -> ZygoteOrder {
        ZygoteOrder {
            argv: kernels::python_argv(PYTHON, Role::Zygote, None),
            env: environment(image, &SandboxSpec { env: Vec::new(), ..spec.clone() }),
            preload: image.preload.clone().unwrap_or_else(|| self.config.preload.clone()),
        }
    }

    async fn image_of(&self, spec: &SandboxSpec) -> Result<ReadyImage, RuntimeError> {
        let name = spec.image.as_ref().unwrap_or(&self.config.image);
        let known = lock(&self.images).get(name).cloned();
        if let Some((seen, image)) = known
            && seen.elapsed() < IMAGE_FRESH
        {
            return Ok(image);
        }
        // One at a time: the first use of an image prepares it.
        let _preparing = self.preparing.lock().await;
        let looking = image::ready(&self.docker, &self.address, name);
        let image = engine::answer(&self.docker, &self.address, looking).await??;
        lock(&self.images).insert(name.clone(), (Instant::now(), image.clone()));
        Ok(image)
    }

    /// The user of a sandbox's processes. It must own the files of sessions on disk, which the server must be able to read:
    /// without root both must be the same user.
    fn user(&self) -> (u32, u32) {
        if privileges::is_root() { (USER_ID, USER_ID) } else { privileges::own_ids() }
    }

    fn socket_directory_of(&self, name: &str) -> PathBuf {
        self.config.socket_dir.join(name)
    }

    async fn pid_of(&self, container: &str) -> Option<u32> {
        let options = None::<InspectContainerOptions>;
        let seen = self.docker.inspect_container(container, options).await.ok()?;
        first_process(&seen.state?)
    }

    async fn kill(&self, container: &str) {
        let at_once = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
        if let Err(error) = self.docker.kill_container(container, Some(at_once)).await
            && !engine::is_gone(&error)
        {
            tracing::warn!("failed to kill a container: {error}");
        }
    }

    /// Removes a container, or retries later if the engine is not reachable.
    async fn remove(self: &Arc<Self>, container: &str) {
        self.deaths.forget(container);
        let Err(error) = self.try_remove(container).await else { return };
        tracing::warn!("failed to remove a container, trying again: {error}");
        let (runtime, container) = (Arc::clone(self), container.to_owned());
        tokio::spawn(async move {
            for _ in 0..REMOVE_AGAIN {
                tokio::time::sleep(REMOVE_PAUSE).await;
                if runtime.try_remove(&container).await.is_ok() {
                    return;
                }
            }
            tracing::error!("gave up on removing the container {container}");
        });
    }

    async fn try_remove(&self, container: &str) -> Result<(), bollard::errors::Error> {
        let all = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        match self.docker.remove_container(container, Some(all)).await {
            Err(error) if !engine::is_gone(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Pauses or resumes all containers of this owner.
    async fn pause_all(&self, frozen: bool) -> Result<(), RuntimeError> {
        let filters = HashMap::from([("label", vec![format!("{}={}", labels::OWNER, self.owner)])]);
        let options = ListContainersOptionsBuilder::new().filters(&filters).build();
        let listing = self.docker.list_containers(Some(options));
        let found = engine::answer(&self.docker, &self.address, listing).await?;
        let found = found.map_err(|error| self.explain("list the containers", error))?;
        let mut failure = None;
        for id in found.into_iter().filter_map(|seen| seen.id) {
            let paused = match frozen {
                true => self.docker.pause_container(&id).await,
                false => self.docker.unpause_container(&id).await,
            };
            match paused {
                Err(error) if !engine::is_gone(&error) && !is_conflict(&error) => {
                    failure = Some(self.explain("pause or resume a container", error));
                }
                _ => {}
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Removes our containers, by owner and name, with their socket directories.
    async fn remove_all(self: &Arc<Self>, owner: Option<&str>, doomed: impl Fn(&str) -> bool) {
        let label = match owner {
            Some(owner) => format!("{}={owner}", labels::OWNER),
            None => labels::OWNER.to_owned(),
        };
        let filters = HashMap::from([("label", vec![label])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let listing = self.docker.list_containers(Some(options));
        let found = match engine::answer(&self.docker, &self.address, listing).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::warn!("failed to look for containers of an earlier server: {error}");
                return;
            }
            Err(error) => {
                tracing::warn!("failed to look for containers of an earlier server: {error}");
                return;
            }
        };
        for seen in found {
            let labels = seen.labels.unwrap_or_default();
            if let (Some(id), Some(name)) = (seen.id, labels.get(labels::NAME))
                && doomed(name)
            {
                self.remove(&id).await;
                let _ = fs::remove_dir_all(self.socket_directory_of(name));
            }
        }
    }

    fn explain(&self, doing: &'static str, error: bollard::errors::Error) -> RuntimeError {
        engine::explain(&self.address, doing, error).into()
    }
}

#[async_trait]
impl Runtime for DockerRuntime {
    fn backend(&self) -> String {
        let runtime = self.config.runtime.as_ref();
        runtime.map_or_else(|| "docker".to_owned(), |name| format!("docker/{name}"))
    }

    async fn create(self: Arc<Self>, spec: &SandboxSpec) -> Result<Sandbox, RuntimeError> {
        self.make(spec).await
    }

    async fn adopt(
        self: Arc<Self>,
        handle: Handle,
        spec: SandboxSpec,
    ) -> Result<Sandbox, RuntimeError> {
        self.take_over(handle, spec).await
    }

    async fn discard(self: Arc<Self>, handle: &Handle) {
        if let Some(container) = &handle.container {
            self.remove(container).await;
        }
        let _ = fs::remove_dir_all(self.socket_directory_of(&handle.name));
    }

    async fn reap(self: Arc<Self>, keep: HashSet<String>) {
        let is_ours = |name: &str| name.starts_with(&format!("{}.", self.instance));
        self.remove_all(Some(&self.owner), |name| !is_ours(name) && !keep.contains(name)).await;
    }

    async fn freeze_all(self: Arc<Self>, frozen: bool) -> Result<(), RuntimeError> {
        self.pause_all(frozen).await
    }

    fn zygote_state(&self) -> Option<ZygoteState> {
        // Every sandbox has its own zygote.
        None
    }

    async fn warmed_up(&self) {}
}

/// Opens the files of a session that outlive the container. They stay mounted while the result lives.
async fn session_files(
    spec: &SandboxSpec,
    user: (u32, u32),
) -> Result<Option<OpenVolume>, RuntimeError> {
    let Some(place) = &spec.session_files else { return Ok(None) };
    match place.kind {
        VolumeKind::Directory if privileges::is_root() => {
            host_files::give_to(place.plain_files(), user).await?;
        }
        VolumeKind::Directory => {}
        VolumeKind::Image => place.check_openable()?,
    }
    host_files::open_session(place).await.map(Some)
}

/// Whether the container is paused, or not paused, already.
fn is_conflict(error: &bollard::errors::Error) -> bool {
    use bollard::errors::Error::DockerResponseServerError;
    matches!(error, DockerResponseServerError { status_code: 409, .. })
}

/// The pid of a container's first process on this machine.
fn first_process(state: &ContainerState) -> Option<u32> {
    u32::try_from(state.pid?).ok().filter(|pid| *pid > 0)
}

/// Looked up on the `PATH` of the image.
const PYTHON: &str = "python3";

/// The environment: of the image, of every sandbox, and of the spec. Later ones override earlier ones.
fn environment(image: &ReadyImage, spec: &SandboxSpec) -> Vec<(String, String)> {
    let path = image.env.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_str());
    let mut env = kernels::environment(path, &spec.env);
    kernels::complete(&mut env, &image.env);
    env
}
