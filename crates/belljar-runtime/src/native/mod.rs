//! Sandboxes made of namespaces, on this machine, without a container engine.
//!
//! ```text
//!   NativeRuntime ── orders ──▶ spawner ── clone3 ──▶ guest (PID 1 of its sandbox)
//!        ├── zygote: memory for kernels to begin with, made in a sandbox of its own
//!        ├── cgroup, block of ids, socket: made before, removed after
//!        └── Link ◀────────────── UNIX socket ──────────────────────▶ guest
//! ```
//!
//! Run by root, every sandbox gets its own block of user ids and full limits. Run by anybody else
//! the same steps work with one shared id, and limits as far as they were delegated; what is not
//! enforced is found out by [`selftest`] and said.

mod handle;
pub mod image;
pub(crate) mod plan;
pub mod spawner;
mod staged;
#[doc(hidden)]
pub mod walls;
pub mod zygote;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use belljar_sys::cgroup::{self, CgroupError, Parent};
use belljar_sys::ids::{IdBlock, IdBlocks};
use belljar_sys::plan::{Access, FdIndex, Source, Step};
use belljar_sys::{channel, ids, mount, privileges, process, procfs};

use crate::data;
use crate::host_files;
use crate::kernels::Role;
use crate::lock;
use crate::orphans;
use crate::private;
use crate::runtime::{Runtime, ZygoteState};
use crate::sandbox::{Handle, Parts, Sandbox};
use crate::spec::{DataMount, SandboxSpec};
use crate::user::USER_ID;
use crate::volume::{OpenVolume, VolumeKind, VolumeMount};
use crate::{RuntimeError, link::Link};
use async_trait::async_trait;
use handle::NativeHandle;
use image::Image;
use spawner::{AsyncSpawner, SandboxOrder, Spawner};
use staged::{Staged, StagedImages};
use walls::Weakening;

/// Where the runtime keeps things that do not survive a reboot.
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// The belljar binary, to be started again as spawner.
    pub executable: PathBuf,
    pub run_dir: PathBuf,
    /// Name of our cgroup, below the root of every tree.
    pub cgroup_parent: String,
    pub image: Image,
}

/// A runtime whose spawner runs, not yet inside an async runtime.
#[derive(Debug)]
pub struct Prepared {
    config: NativeConfig,
    spawner: Spawner,
    cgroups: Result<Parent, CgroupError>,
    privileged: bool,
    weakening: Weakening,
}

#[derive(Debug)]
pub struct NativeRuntime {
    config: NativeConfig,
    spawner: Mutex<Arc<AsyncSpawner>>,
    /// Held while a spawner that died is being replaced.
    respawning: tokio::sync::Mutex<()>,
    cgroups: Result<Parent, CgroupError>,
    /// Blocks of user ids to hand out; none without root.
    ids: Option<Mutex<IdBlocks>>,
    /// What sandboxes are made from.
    images: StagedImages,
    /// Tells the sandboxes of this process from those of others, also after its end.
    instance: String,
    /// Whose sandboxes these are, where they outlive this process.
    owner: Option<String>,
    next: AtomicU64,
    weakening: Weakening,
}

impl Prepared {
    /// Starts the spawner and lets it assemble the image. To be called while the process has one
    /// thread: nothing is ever forked from a threaded one.
    pub fn start(config: NativeConfig) -> Result<Prepared, RuntimeError> {
        Prepared::start_weakened(config, Weakening::default())
    }

    /// The same for sandboxes that lack a wall; see [`walls`].
    #[doc(hidden)]
    pub fn start_weakened(
        config: NativeConfig,
        weakening: Weakening,
    ) -> Result<Prepared, RuntimeError> {
        let privileged = privileges::is_root() && privileges::may_mount();
        // First: without root our cgroup must be cleared of processes, and the spawner would be one.
        let cgroups = Parent::prepare(&config.cgroup_parent, privileged);
        let spawner = start_spawner(&config, privileged, &weakening)?;
        Ok(Prepared { config, spawner, cgroups, privileged, weakening })
    }

    /// Whether limits can be set on sandboxes; that they hold is for the self-test to find out.
    #[must_use]
    pub fn can_limit(&self) -> bool {
        self.cgroups.is_ok()
    }

    /// Goes on inside an async runtime. Sandboxes are this process's, and go with it.
    pub fn launch(self) -> Result<Arc<NativeRuntime>, RuntimeError> {
        self.launch_for(None)
    }

    /// The same for an owner that outlives the process: its sandboxes' names begin with it, and
    /// only who has the same name cleans up after it.
    pub fn launch_as(self, owner: &str) -> Result<Arc<NativeRuntime>, RuntimeError> {
        self.launch_for(Some(owner.to_owned()))
    }

    fn launch_for(self, owner: Option<String>) -> Result<Arc<NativeRuntime>, RuntimeError> {
        let Prepared { config, spawner, cgroups, privileged, weakening } = self;
        private::make(&config.run_dir)?;
        let ids = if privileged {
            let blocks = IdBlocks::new(config.run_dir.join("ids")).map_err(RuntimeError::Ids)?;
            Some(Mutex::new(blocks))
        } else {
            None
        };
        let random = &process::random_name()[..8];
        let instance = match &owner {
            Some(owner) => format!("{owner}.{random}"),
            None => {
                let pid = std::process::id();
                format!("{pid}.{}.{random}", procfs::start_time(pid).unwrap_or(0))
            }
        };
        let runtime = NativeRuntime {
            spawner: Mutex::new(Arc::new(spawner.into_async(0)?)),
            respawning: tokio::sync::Mutex::default(),
            cgroups,
            ids,
            images: StagedImages::new(&config.image),
            instance,
            owner,
            next: AtomicU64::new(1),
            config,
            weakening,
        };
        runtime.remove_all(orphans::is_orphaned);
        Ok(Arc::new(runtime))
    }
}

impl NativeRuntime {
    /// Begins to warm a zygote in the background and keeps one from then on.
    pub fn keep_zygote(self: &Arc<Self>) {
        self.images.keep_zygotes(self);
    }

    /// Waits for the zygote to be warm, or to have failed.
    pub async fn zygote_settled(&self) -> ZygoteState {
        match self.default_image() {
            Some(image) => image.zygote_settled().await,
            None => ZygoteState::Failed("its image is not there".into()),
        }
    }

    /// Of the image of whoever asks for none.
    pub fn zygote_state(&self) -> Option<ZygoteState> {
        self.default_image()?.zygote_state()
    }

    /// A sandbox with its guest, and no kernel yet. Should the spawner have died, a new one is made.
    pub async fn create(self: &Arc<Self>, spec: &SandboxSpec) -> Result<Sandbox, RuntimeError> {
        let image = self.image_of(spec.image.as_deref())?;
        self.create_from(&image, spec, "").await
    }

    /// `purpose` is part of its name.
    async fn create_from(
        self: &Arc<Self>,
        image: &Arc<Staged>,
        spec: &SandboxSpec,
        purpose: &str,
    ) -> Result<Sandbox, RuntimeError> {
        let name = || {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            format!("{}.{purpose}{number}", self.instance)
        };
        let spawner = self.spawner();
        match self.create_by(&spawner, image, spec, name()).await {
            Err(RuntimeError::SpawnerGone(cause)) => {
                tracing::warn!("the spawner died ({cause}); starting another");
                let successor = self.replace_spawner(&spawner).await?;
                // By another name: the cgroup of the first attempt may still be being removed.
                self.create_by(&successor, image, spec, name()).await
            }
            created => created,
        }
    }

    /// The successor of a spawner that died, made by whoever notices first.
    async fn replace_spawner(
        self: &Arc<Self>,
        gone: &AsyncSpawner,
    ) -> Result<Arc<AsyncSpawner>, RuntimeError> {
        let _one_at_a_time = self.respawning.lock().await;
        let current = self.spawner();
        if current.generation() != gone.generation() {
            return Ok(current);
        }
        let (config, privileged) = (self.config.clone(), self.ids.is_some());
        let weakening = self.weakening.clone();
        let started =
            tokio::task::spawn_blocking(move || start_spawner(&config, privileged, &weakening));
        let started = started
            .await
            .map_err(|panic| RuntimeError::StartSpawner(io::Error::other(panic)))??;
        let successor = Arc::new(started.into_async(gone.generation() + 1)?);
        *lock(&self.spawner) = Arc::clone(&successor);
        Ok(successor)
    }

    async fn create_by(
        self: &Arc<Self>,
        spawner: &AsyncSpawner,
        image: &Arc<Staged>,
        spec: &SandboxSpec,
        name: String,
    ) -> Result<Sandbox, RuntimeError> {
        image.assemble(self, spawner).await?;
        self.anticipate_joining();
        let mut fds: Vec<OwnedFd> = Vec::new();
        let mut add = |fd: OwnedFd| {
            fds.push(fd);
            FdIndex(fds.len() - 1)
        };

        // Guards: whatever was made is unmade if a later step fails.
        let mut cgroup = match &self.cgroups {
            Ok(parent) => Some(parent.create(&name, &self.weakening.limits(limits(spec)))?),
            Err(_) => None,
        };
        let procs = cgroup.as_ref().map_or(Ok(Vec::new()), cgroup::Cgroup::procs)?;
        let cgroups = procs.len();
        procs.into_iter().for_each(|fd| {
            add(fd);
        });
        let oom_events = cgroup.as_ref().and_then(cgroup::Cgroup::oom_events);
        let oom_events = oom_events.map(|file| add(file.into()));
        let block = self.ids.as_ref().map(|ids| lock(ids).take()).transpose();
        let block = block.map_err(RuntimeError::Ids)?;
        let (block, id_lock) = match block {
            Some(IdBlock { block, lock }) => (Some(block), Some(add(lock))),
            None => (None, None),
        };
        let block = BlockGuard { runtime: Arc::clone(self), block };
        let image_lock = image.lock()?.map(&mut add);
        let data = self.data_of(spec, block.block, spawner).await?.map(&mut add);
        let session = self.session_of(spec, block.block, spawner).await?.map(&mut add);
        let mut volumes = None;
        for tree in self.volumes_of(spec, block.block, spawner).await? {
            let index = add(tree);
            volumes.get_or_insert(index);
        }
        let workspace = self.workspace_of(spec, image, block.block, spawner).await?.map(&mut add);
        let socket = SocketGuard(self.socket_of(&name));
        let listener = UnixListener::bind(&socket.0)
            .map_err(|cause| RuntimeError::Prepare { path: socket.0.clone(), cause })?;
        let listener = add(listener.into());
        let nonce = process::random_name();
        let fds_of = plan::SandboxFds { cgroups, data, session, volumes, workspace };

        let order = SandboxOrder {
            plan: self.weakening.plan(plan::sandbox(image.root(), spec, block.block, fds_of)),
            listener,
            oom_events,
            id_lock,
            image_lock,
            nonce: nonce.clone(),
            alone_for_s: spec.alone_for_s,
        };
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let mut spawned = spawner.sandbox(order, &borrowed).await?;
        drop(fds);
        spawned.settled().await?;
        let link = Link::connect(&socket.0, &nonce).await?;
        // Built; no code of its owner has run in it yet.
        if let Some(cgroup) = &mut cgroup {
            cgroup.throttle()?;
        }
        let pid = spawned.pid;
        let started = procfs::start_time(pid).map_err(RuntimeError::Connect)?;
        let handle = Handle { name, pid, started, nonce, block: block.block, container: None };
        let body = NativeHandle {
            process: channel::watched(spawned.keep()).map_err(RuntimeError::Connect)?,
            image: Arc::clone(image),
            cgroup,
            _socket: socket,
            block,
        };
        Ok(assemble(image, handle, spec.clone(), link, body))
    }

    /// The tree to show at `/data`. A directory that is closed to others on this machine is shown
    /// with the ids of its owner translated to those of the sandbox's user.
    async fn data_of(
        &self,
        spec: &SandboxSpec,
        block: Option<u32>,
        spawner: &AsyncSpawner,
    ) -> Result<Option<OwnedFd>, RuntimeError> {
        let Some(DataMount { host_path: path }) = &spec.data else { return Ok(None) };
        let Some(block) = block else {
            data::check_readable_by_us(path)?;
            return Ok(None);
        };
        let tree = open_tree(path)?;
        if let Some(closed) = data::closed_to_others(path)? {
            let plan = plan::translator_of_owner(block, closed.owner);
            let (translator, _lives) = spawner.idle(plan).await?;
            let namespace = procfs::user_namespace(translator.pid).map_err(RuntimeError::Ids)?;
            mount::map_ids(&tree, Access::READ, &namespace)
                .map_err(|cause| closed.not_translated(path, &cause))?;
        }
        Ok(Some(tree))
    }

    /// The tree to show at `/session`, where that outlives the sandbox.
    async fn session_of(
        &self,
        spec: &SandboxSpec,
        block: Option<u32>,
        spawner: &AsyncSpawner,
    ) -> Result<Option<OwnedFd>, RuntimeError> {
        let Some(place) = &spec.session_files else { return Ok(None) };
        let Some(block) = block else {
            place.check_openable()?;
            return Ok(None);
        };
        if place.kind == VolumeKind::Directory {
            let id = ids::host_id(block, USER_ID);
            host_files::give_to(place.plain_files(), (id, id)).await?;
            return Ok(Some(open_tree(&place.plain_files())?));
        }
        let opened = host_files::open_session(place).await?;
        let tree = open_tree(&opened.files)?;
        let (translator, _lives) = spawner.idle(plan::translator(block)).await?;
        let namespace = procfs::user_namespace(translator.pid).map_err(RuntimeError::Ids)?;
        mount::map_ids(&tree, Access::WRITE, &namespace).map_err(|cause| {
            let path = place.directory.clone();
            RuntimeError::Volume { doing: "translate user ids in", path, cause }
        })?;
        // Unmounted by a thread that may wait for the disk.
        tokio::task::spawn_blocking(move || drop(opened));
        Ok(Some(tree))
    }

    /// The trees to show below `/volumes`, as the sandbox with this block of ids owns them. Without
    /// blocks there are none: it finds the directories itself, with the ids of us all.
    async fn volumes_of(
        &self,
        spec: &SandboxSpec,
        block: Option<u32>,
        spawner: &AsyncSpawner,
    ) -> Result<Vec<OwnedFd>, RuntimeError> {
        let Some(block) = block.filter(|_| !spec.volumes.is_empty()) else {
            for volume in &spec.volumes {
                volume.place.check_openable()?;
                // Root that may not mount is the one user of all sandboxes, and not the one on disk.
                if privileges::is_root() {
                    host_files::give_to(volume.place.plain_files(), privileges::own_ids()).await?;
                }
            }
            return Ok(Vec::new());
        };
        let opened = host_files::open_volumes(spec).await?;
        let (translator, _lives) = spawner.idle(plan::translator(block)).await?;
        let namespace = procfs::user_namespace(translator.pid).map_err(RuntimeError::Ids)?;
        let show = |(volume, open): (&VolumeMount, &OpenVolume)| {
            let tree = open_tree(&open.files)?;
            let translated = mount::map_ids(&tree, plan::volume_access(volume), &namespace);
            translated.map_err(|cause| RuntimeError::Volume {
                doing: "translate user ids in",
                path: volume.place.directory.clone(),
                cause,
            })?;
            Ok(tree)
        };
        spec.volumes.iter().zip(&opened).map(show).collect()
    }

    /// The tree to show at `/workspace`, with the ids of its owner translated to those of the sandbox's
    /// user, and of nobody else.
    async fn workspace_of(
        &self,
        spec: &SandboxSpec,
        image: &Staged,
        block: Option<u32>,
        spawner: &AsyncSpawner,
    ) -> Result<Option<OwnedFd>, RuntimeError> {
        let Some(path) = &spec.workspace else { return Ok(None) };
        if !image.is_host() {
            let why = "a workspace takes the image `host`; use files or a volume with others";
            return Err(RuntimeError::Workspace(why.to_owned()));
        }
        // Without blocks everybody is the server's user, who can do no more there than before.
        let Some(block) = block else { return Ok(None) };
        let open = |cause| RuntimeError::Open { path: path.clone(), cause };
        let (tree, owner) = mount::clone_directory(path).map_err(open)?;
        let (translator, _lives) = spawner.idle(plan::translator_of_owner(block, owner)).await?;
        let namespace = procfs::user_namespace(translator.pid).map_err(RuntimeError::Ids)?;
        mount::map_ids(&tree, Access::WRITE, &namespace).map_err(|cause| {
            RuntimeError::Workspace(format!(
                "user ids cannot be translated on the file system of `{}`: {cause}",
                path.display()
            ))
        })?;
        Ok(Some(tree))
    }

    /// Takes over a sandbox that an earlier server made, if it is still there and is the one we
    /// believe it to be.
    pub async fn adopt(
        self: &Arc<Self>,
        handle: Handle,
        spec: SandboxSpec,
    ) -> Result<Sandbox, RuntimeError> {
        let pidfd = process::pidfd_open(handle.pid).map_err(|_| RuntimeError::Gone)?;
        // Looked at after it was opened: the number cannot have been given to another meanwhile.
        if procfs::start_time(handle.pid).ok() != Some(handle.started) {
            return Err(RuntimeError::Gone);
        }
        let socket = self.socket_of(&handle.name);
        let link = match Link::connect(&socket, &handle.nonce).await {
            // Its process may still be collected, but nobody listens any more.
            Err(RuntimeError::Connect(_)) => return Err(RuntimeError::Gone),
            link => link?,
        };
        // From here on it is ours, to be ended and removed if anything fails.
        if let (Some(ids), Some(block)) = (&self.ids, handle.block) {
            lock(ids).remember(block);
        }
        // Its name may be gone, or lead to another one by now; then the machine's own environment is
        // the best guess, and kernels that cannot begin with what is loaded from it start the slow way.
        let image = self.image_of(spec.image.as_deref());
        let image = image.unwrap_or_else(|_| self.images.host());
        let body = NativeHandle {
            process: channel::watched(pidfd).map_err(RuntimeError::Connect)?,
            cgroup: self.cgroups.as_ref().ok().map(|parent| parent.adopt(&handle.name)),
            image: Arc::clone(&image),
            _socket: SocketGuard(socket),
            block: BlockGuard { runtime: Arc::clone(self), block: handle.block },
        };
        Ok(assemble(&image, handle, spec, link, body))
    }

    /// What a sandbox that asks for this is made from.
    fn image_of(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<Staged>, RuntimeError> {
        self.images.find(self, name.unwrap_or(&self.config.image.default))
    }

    fn default_image(&self) -> Option<Arc<Staged>> {
        self.images.known(&self.config.image.default)
    }

    /// Ends and removes what is left of this owner's earlier sandboxes, but for those in `keep`.
    fn remove_forgotten(&self, keep: &HashSet<String>) {
        let Some(owner) = &self.owner else { return };
        let ours = |name: &str| {
            let rest = name.strip_prefix(owner.as_str());
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        self.remove_all(|name| {
            ours(name) && !name.starts_with(&self.instance) && !keep.contains(name)
        });
    }

    fn socket_of(&self, name: &str) -> PathBuf {
        self.config.run_dir.join(format!("{name}.sock"))
    }

    /// Somebody is about to join a cgroup: lets the kernel begin to wait for it now.
    fn anticipate_joining(&self) {
        if let Ok(parent) = &self.cgroups {
            let (parent, pid) = (parent.clone(), self.spawner_pid());
            tokio::task::spawn_blocking(move || parent.anticipate_joining(pid));
        }
    }

    /// Whether sandboxes have blocks of user ids of their own.
    #[must_use]
    pub fn separates_ids(&self) -> bool {
        self.ids.is_some()
    }

    /// Why there are no cgroups for our sandboxes, where there are none.
    pub fn cgroups(&self) -> Result<&Parent, &CgroupError> {
        self.cgroups.as_ref()
    }

    /// The process id of the spawner.
    #[must_use]
    pub fn spawner_pid(&self) -> u32 {
        self.spawner().pid()
    }

    #[must_use]
    pub fn image(&self) -> &Image {
        &self.config.image
    }

    pub(crate) fn spawner(&self) -> Arc<AsyncSpawner> {
        Arc::clone(&lock(&self.spawner))
    }

    /// Ends the sandboxes with these names and removes their cgroups and sockets: what somebody left
    /// behind who died without cleaning up.
    fn remove_all(&self, doomed: impl Fn(&str) -> bool) {
        if let Ok(parent) = &self.cgroups {
            for name in parent.names().iter().filter(|name| doomed(name)) {
                let leftover = parent.adopt(name);
                leftover.kill();
                let _ = leftover.remove();
            }
        }
        let Ok(entries) = fs::read_dir(&self.config.run_dir) else {
            return;
        };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".sock"));
            if name.is_some_and(&doomed) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

#[async_trait]
impl Runtime for NativeRuntime {
    fn backend(&self) -> String {
        "native".to_owned()
    }

    fn sets_limits(&self) -> bool {
        self.cgroups.is_ok()
    }

    fn check_image(&self, name: &str) -> Result<(), RuntimeError> {
        self.images.check(name)
    }

    async fn create(self: Arc<Self>, spec: &SandboxSpec) -> Result<Sandbox, RuntimeError> {
        NativeRuntime::create(&self, spec).await
    }

    async fn adopt(
        self: Arc<Self>,
        handle: Handle,
        spec: SandboxSpec,
    ) -> Result<Sandbox, RuntimeError> {
        NativeRuntime::adopt(&self, handle, spec).await
    }

    async fn discard(self: Arc<Self>, handle: &Handle) {
        let name = handle.name.clone();
        let _ = tokio::task::spawn_blocking(move || self.remove_all(|other| other == name)).await;
    }

    async fn reap(self: Arc<Self>, keep: HashSet<String>) {
        let _ = tokio::task::spawn_blocking(move || self.remove_forgotten(&keep)).await;
    }

    fn zygote_state(&self) -> Option<ZygoteState> {
        NativeRuntime::zygote_state(self)
    }

    async fn warmed_up(&self) {
        self.zygote_settled().await;
    }

    async fn close(&self) {
        self.images.stop_zygotes().await;
    }
}

fn assemble(
    image: &Staged,
    handle: Handle,
    spec: SandboxSpec,
    link: Link,
    body: NativeHandle,
) -> Sandbox {
    Sandbox::assemble(Parts {
        handle,
        env: image.environment(&spec.env),
        python: image.python_argv(Role::Kernel).unwrap_or_default(),
        spec,
        link,
        body: Box::new(body),
    })
}

/// Gives a sandbox's block of ids back when dropped.
#[derive(Debug)]
pub(crate) struct BlockGuard {
    runtime: Arc<NativeRuntime>,
    block: Option<u32>,
}

impl Drop for BlockGuard {
    fn drop(&mut self) {
        if let (Some(ids), Some(block)) = (&self.runtime.ids, self.block) {
            lock(ids).give_back(block);
        }
    }
}

/// Removes a socket from the file system when dropped.
#[derive(Debug)]
pub(crate) struct SocketGuard(PathBuf);

impl Drop for SocketGuard {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn limits(spec: &SandboxSpec) -> cgroup::Limits {
    cgroup::Limits {
        memory: spec.limits.memory,
        millicpus: spec.limits.millicpus,
        pids: spec.limits.pids,
    }
}

/// A spawner with the image assembled. Blocks.
fn start_spawner(
    config: &NativeConfig,
    privileged: bool,
    weakening: &Weakening,
) -> Result<Spawner, RuntimeError> {
    let outer = weakening.outer_ids(plan::outer_id_map(privileged));
    let spawner = Spawner::start(&config.executable, outer, privileged)?;
    let mut steps = weakening.image(image::steps(&config.image));
    let trees = if privileged { open_sources(&mut steps)? } else { Vec::new() };
    let fds: Vec<BorrowedFd<'_>> = trees.iter().map(AsFd::as_fd).collect();
    spawner.stage(steps, &fds)?;
    Ok(spawner)
}

/// Replaces the paths of bind mounts by trees opened here: the spawner has no rights of ours and
/// could not pass through, say, somebody's home directory.
fn open_sources(steps: &mut [Step]) -> Result<Vec<OwnedFd>, RuntimeError> {
    let mut trees = Vec::new();
    for step in steps {
        if let Step::Bind { source, .. } = step
            && let Source::Path(path) = &*source
            && !path.starts_with(spawner::STAGE)
        {
            trees.push(open_tree(path)?);
            *source = Source::Tree(FdIndex(trees.len() - 1));
        }
    }
    Ok(trees)
}

fn open_tree(path: &Path) -> Result<OwnedFd, RuntimeError> {
    mount::clone_tree(path).map_err(|cause| RuntimeError::Open { path: path.into(), cause })
}
