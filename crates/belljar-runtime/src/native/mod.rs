//! The native backend: sandboxes made of namespaces on this machine, without a container engine.
//!
//! ```text
//!   NativeRuntime ── orders ──▶ spawner ── clone3 ──▶ guest (PID 1 of its sandbox)
//!        ├── zygote: memory that kernels begin with, made in a separate sandbox
//!        ├── cgroup, block of ids, socket: made before, removed after
//!        └── Link ◀────────────── UNIX socket ──────────────────────▶ guest
//! ```
//!
//! As root, every sandbox gets its own block of user ids and all limits. As another user the same steps work with one shared
//! id, and with the limits that were delegated to that user. [`selftest`](crate::selftest) finds and reports limits that do not hold.

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
use belljar_sys::ids::{Block, IdBlock, IdBlocks, IdRange};
use belljar_sys::plan::{Access, FdIndex, Source, Step};
use belljar_sys::{channel, mount, privileges, process, procfs};

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
use staged::{StagedImage, StagedImages};
use walls::Weakening;

/// How to start the native backend.
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// The belljar binary, which is started again as the spawner.
    pub executable: PathBuf,
    /// For files that do not survive a reboot.
    pub run_dir: PathBuf,
    /// Name of our cgroup, below the root of every hierarchy.
    pub cgroup_parent: String,
    pub image: Image,
}

/// A backend whose spawner runs, not yet inside an async runtime.
#[derive(Debug)]
pub struct Prepared {
    config: NativeConfig,
    spawner: Spawner,
    cgroups: Result<Parent, CgroupError>,
    /// The user ids of sandboxes; none without root.
    ids: Option<IdRange>,
    weakening: Weakening,
}

#[derive(Debug)]
pub struct NativeRuntime {
    config: NativeConfig,
    spawner: Mutex<Arc<AsyncSpawner>>,
    /// Locked while a dead spawner is replaced.
    respawning: tokio::sync::Mutex<()>,
    cgroups: Result<Parent, CgroupError>,
    /// Blocks of user ids for sandboxes; none without root.
    ids: Option<Mutex<IdBlocks>>,
    /// Images in use.
    images: StagedImages,
    /// The prefix of the names of this process's sandboxes. No other process uses it.
    instance: String,
    /// The owner of the sandboxes, if they outlive this process.
    owner: Option<String>,
    next: AtomicU64,
    weakening: Weakening,
}

impl Prepared {
    /// Starts the spawner, which assembles the image. To be called while the process has only one thread: a process with
    /// threads must not fork.
    pub fn start(config: NativeConfig) -> Result<Prepared, RuntimeError> {
        Prepared::start_weakened(config, Weakening::default())
    }

    /// Like `start`, for sandboxes that lack a protection; see [`walls`].
    #[doc(hidden)]
    pub fn start_weakened(
        config: NativeConfig,
        weakening: Weakening,
    ) -> Result<Prepared, RuntimeError> {
        let privileged = privileges::is_root() && privileges::may_mount();
        let ids = privileged.then(IdRange::here).transpose().map_err(RuntimeError::Ids)?;
        // Before the spawner starts: it must not stay in a cgroup that enables controllers for others.
        let cgroups = Parent::prepare(&config.cgroup_parent, privileged);
        let spawner = start_spawner(&config, ids, &weakening)?;
        Ok(Prepared { config, spawner, cgroups, ids, weakening })
    }

    /// Whether limits can be set on sandboxes. The self-test checks that they hold.
    #[must_use]
    pub fn can_limit(&self) -> bool {
        self.cgroups.is_ok()
    }

    /// Continues inside an async runtime. Sandboxes belong to this process and end with it.
    pub fn launch(self) -> Result<Arc<NativeRuntime>, RuntimeError> {
        self.launch_for(None)
    }

    /// Like `launch`, for an owner that outlives the process: the names of its sandboxes begin with it, and only a server with
    /// the same owner removes them.
    pub fn launch_as(self, owner: &str) -> Result<Arc<NativeRuntime>, RuntimeError> {
        self.launch_for(Some(owner.to_owned()))
    }

    fn launch_for(self, owner: Option<String>) -> Result<Arc<NativeRuntime>, RuntimeError> {
        let Prepared { config, spawner, cgroups, ids, weakening } = self;
        private::make(&config.run_dir)?;
        let blocks = |range| IdBlocks::new(config.run_dir.join("ids"), range).map(Mutex::new);
        let ids = ids.map(blocks).transpose().map_err(RuntimeError::Ids)?;
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
    /// Begins to make a zygote in the background, and keeps one from then on.
    pub fn keep_zygote(self: &Arc<Self>) {
        self.images.keep_zygotes(self);
    }

    /// Waits for the zygote to be warm, or to have failed.
    pub async fn zygote_settled(&self) -> ZygoteState {
        match self.default_image() {
            Some(image) => image.zygote_settled().await,
            None => ZygoteState::Failed("its image does not exist".into()),
        }
    }

    /// The zygote of the default image.
    pub fn zygote_state(&self) -> Option<ZygoteState> {
        self.default_image()?.zygote_state()
    }

    /// Makes a sandbox with its guest, and no kernel yet. If the spawner has died, starts another.
    pub async fn create(self: &Arc<Self>, spec: &SandboxSpec) -> Result<Sandbox, RuntimeError> {
        let image = self.image_of(spec.image.as_deref())?;
        self.create_from(&image, spec, "").await
    }

    /// `purpose` is part of its name.
    async fn create_from(
        self: &Arc<Self>,
        image: &Arc<StagedImage>,
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
                // With another name: the cgroup of the first attempt may not be removed yet.
                self.create_by(&successor, image, spec, name()).await
            }
            created => created,
        }
    }

    /// Replaces a dead spawner. Of several callers, the first does it.
    async fn replace_spawner(
        self: &Arc<Self>,
        gone: &AsyncSpawner,
    ) -> Result<Arc<AsyncSpawner>, RuntimeError> {
        let _one_at_a_time = self.respawning.lock().await;
        let current = self.spawner();
        if current.generation() != gone.generation() {
            return Ok(current);
        }
        let (config, ids) = (self.config.clone(), self.id_range());
        let weakening = self.weakening.clone();
        let started = tokio::task::spawn_blocking(move || start_spawner(&config, ids, &weakening));
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
        image: &Arc<StagedImage>,
        spec: &SandboxSpec,
        name: String,
    ) -> Result<Sandbox, RuntimeError> {
        image.assemble(self, spawner).await?;
        self.anticipate_joining();
        let mut parts = self.prepare_parts(spawner, image, spec, &name).await?;
        let nonce = process::random_name();
        let plan = plan::sandbox(image.root(), spec, parts.block.block, parts.plan_fds);
        let order = SandboxOrder {
            plan: self.weakening.plan(plan),
            listener: parts.listener,
            oom_events: parts.oom_events,
            id_lock: parts.id_lock,
            image_lock: parts.image_lock,
            nonce: nonce.clone(),
            alone_for_s: spec.alone_for_s,
        };
        let mut spawned = spawner.sandbox(order, &parts.fds.borrowed()).await?;
        drop(std::mem::take(&mut parts.fds));
        spawned.settled().await?;
        let link = Link::connect(&parts.socket.0, &nonce).await?;
        // The sandbox is built, and no user code has run in it yet.
        if let Some(cgroup) = &mut parts.cgroup {
            cgroup.throttle()?;
        }
        let pid = spawned.pid;
        let started = procfs::start_time(pid).map_err(RuntimeError::Connect)?;
        let block = parts.block.block.map(|block| block.number);
        let handle = Handle { name, pid, started, nonce, block, container: None };
        let native_handle = NativeHandle {
            process: channel::watched(spawned.keep()).map_err(RuntimeError::Connect)?,
            image: Arc::clone(image),
            cgroup: parts.cgroup,
            _socket: parts.socket,
            block: parts.block,
        };
        Ok(assemble(image, handle, spec.clone(), link, native_handle))
    }

    /// Makes everything that the spawner needs for a sandbox. If a later step fails, dropping it removes what was made.
    async fn prepare_parts(
        self: &Arc<Self>,
        spawner: &AsyncSpawner,
        image: &StagedImage,
        spec: &SandboxSpec,
        name: &str,
    ) -> Result<SandboxParts, RuntimeError> {
        let mut fds = FdList::default();
        let cgroup = match &self.cgroups {
            Ok(parent) => Some(parent.create(name, &self.weakening.limits(limits(spec)))?),
            Err(_) => None,
        };
        let procs = cgroup.as_ref().map_or(Ok(Vec::new()), cgroup::Cgroup::procs)?;
        let cgroups = procs.len();
        for fd in procs {
            fds.add(fd);
        }
        let oom_events = cgroup.as_ref().and_then(cgroup::Cgroup::oom_events);
        let oom_events = oom_events.map(|file| fds.add(file.into()));
        let ids = self.ids.as_ref().map(|ids| lock(ids).take()).transpose();
        let (block, id_lock) = match ids.map_err(RuntimeError::Ids)? {
            Some(IdBlock { block, lock }) => (Some(block), Some(fds.add(lock))),
            None => (None, None),
        };
        let block = BlockGuard { runtime: Arc::clone(self), block };
        let image_lock = image.lock()?.map(|fd| fds.add(fd));
        let data = self.data_of(spec, block.block, spawner).await?.map(|fd| fds.add(fd));
        let session = self.session_of(spec, block.block, spawner).await?.map(|fd| fds.add(fd));
        let mut volumes = None;
        for tree in self.volumes_of(spec, block.block, spawner).await? {
            let index = fds.add(tree);
            volumes.get_or_insert(index);
        }
        let workspace = self.workspace_of(spec, image, block.block, spawner).await?;
        let workspace = workspace.map(|fd| fds.add(fd));
        let socket = SocketGuard(self.socket_of(name));
        let listener = UnixListener::bind(&socket.0)
            .map_err(|cause| RuntimeError::Prepare { path: socket.0.clone(), cause })?;
        let listener = fds.add(listener.into());
        let plan_fds = plan::SandboxFds { cgroups, data, session, volumes, workspace };
        Ok(SandboxParts {
            socket,
            block,
            cgroup,
            fds,
            plan_fds,
            listener,
            oom_events,
            id_lock,
            image_lock,
        })
    }

    /// The tree to mount at `/data`. If others cannot read the directory, the ids of its owner are translated to those of the
    /// sandbox's user.
    async fn data_of(
        &self,
        spec: &SandboxSpec,
        block: Option<Block>,
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

    /// The tree to mount at `/session`, if that outlives the sandbox.
    async fn session_of(
        &self,
        spec: &SandboxSpec,
        block: Option<Block>,
        spawner: &AsyncSpawner,
    ) -> Result<Option<OwnedFd>, RuntimeError> {
        let Some(place) = &spec.session_files else { return Ok(None) };
        let Some(block) = block else {
            place.check_openable()?;
            return Ok(None);
        };
        if place.kind == VolumeKind::Directory {
            let id = block.host_id(USER_ID);
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
        // Unmounting may wait for the disk.
        tokio::task::spawn_blocking(move || drop(opened));
        Ok(Some(tree))
    }

    /// The trees to mount below `/volumes`, with ids translated to the sandbox's block. Without blocks there are none: the
    /// sandbox opens the directories by their paths, with the id that all share.
    async fn volumes_of(
        &self,
        spec: &SandboxSpec,
        block: Option<Block>,
        spawner: &AsyncSpawner,
    ) -> Result<Vec<OwnedFd>, RuntimeError> {
        let Some(block) = block.filter(|_| !spec.volumes.is_empty()) else {
            for volume in &spec.volumes {
                volume.place.check_openable()?;
                // Root without the right to mount is the user of all sandboxes, which must own the files.
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

    /// The tree to mount at `/workspace`. Only the ids of its owner are translated to those of the sandbox's user.
    async fn workspace_of(
        &self,
        spec: &SandboxSpec,
        image: &StagedImage,
        block: Option<Block>,
        spawner: &AsyncSpawner,
    ) -> Result<Option<OwnedFd>, RuntimeError> {
        let Some(path) = &spec.workspace else { return Ok(None) };
        if !image.is_host() {
            let why =
                "a workspace requires the image `host`; with other images, use files or a volume";
            return Err(RuntimeError::Workspace(why.to_owned()));
        }
        // Without blocks, sandboxes run as the server's user, and get no more rights there than it has.
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

    /// Takes over a sandbox that an earlier server made, if it still exists and is the same one.
    pub async fn adopt(
        self: &Arc<Self>,
        handle: Handle,
        spec: SandboxSpec,
    ) -> Result<Sandbox, RuntimeError> {
        let pidfd = process::pidfd_open(handle.pid).map_err(|_| RuntimeError::Gone)?;
        // Checked after the pidfd was opened: from then on the pid cannot be reused.
        if procfs::start_time(handle.pid).ok() != Some(handle.started) {
            return Err(RuntimeError::Gone);
        }
        let socket = self.socket_of(&handle.name);
        let link = match Link::connect(&socket, &handle.nonce).await {
            // Its process may still exist for a moment, but does not listen any more.
            Err(RuntimeError::Connect(_)) => return Err(RuntimeError::Gone),
            link => link?,
        };
        // From here on we own it: it is ended and removed if anything fails.
        let block = match (&self.ids, handle.block) {
            (Some(ids), Some(block)) => Some(lock(ids).remember(block)),
            _ => None,
        };
        // The image may have been removed, or its name may refer to another one. Then the host image is the best guess, and
        // kernels that cannot begin with its zygote start the slow way.
        let image = self.image_of(spec.image.as_deref());
        let image = image.unwrap_or_else(|_| self.images.host());
        let native_handle = NativeHandle {
            process: channel::watched(pidfd).map_err(RuntimeError::Connect)?,
            cgroup: self.cgroups.as_ref().ok().map(|parent| parent.adopt(&handle.name)),
            image: Arc::clone(&image),
            _socket: SocketGuard(socket),
            block: BlockGuard { runtime: Arc::clone(self), block },
        };
        Ok(assemble(&image, handle, spec, link, native_handle))
    }

    /// The image with this name; without a name, the default.
    fn image_of(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<StagedImage>, RuntimeError> {
        self.images.find(self, name.unwrap_or(&self.config.image.default))
    }

    fn default_image(&self) -> Option<Arc<StagedImage>> {
        self.images.known(&self.config.image.default)
    }

    /// Ends and removes this owner's earlier sandboxes, except those in `keep`.
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

    /// A process is about to join a cgroup: lets Linux begin early with the wait that this needs.
    fn anticipate_joining(&self) {
        if let Ok(parent) = &self.cgroups {
            let (parent, pid) = (parent.clone(), self.spawner_pid());
            tokio::task::spawn_blocking(move || parent.anticipate_joining(pid));
        }
    }

    /// Whether each sandbox has its own block of user ids.
    #[must_use]
    pub fn separates_ids(&self) -> bool {
        self.ids.is_some()
    }

    /// The user ids of sandboxes; none if all have the server's.
    #[must_use]
    pub fn id_range(&self) -> Option<IdRange> {
        self.ids.as_ref().map(|ids| lock(ids).range())
    }

    /// Our cgroup, or why there is none.
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

    /// Ends the sandboxes with these names and removes their cgroups and sockets, which a dead server left behind.
    fn freeze(&self, frozen: bool) -> Result<(), RuntimeError> {
        let Ok(parent) = &self.cgroups else { return Err(CgroupError::Absent.into()) };
        let freezer = parent.freezer()?;
        let switched = if frozen { freezer.freeze() } else { freezer.thaw() };
        switched.map_err(RuntimeError::FreezeAll)
    }

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

    async fn freeze_all(self: Arc<Self>, frozen: bool) -> Result<(), RuntimeError> {
        let freezing = tokio::task::spawn_blocking(move || self.freeze(frozen));
        freezing.await.unwrap_or_else(|panic| Err(RuntimeError::FreezeAll(io::Error::other(panic))))
    }

    async fn close(&self) {
        self.images.stop_zygotes().await;
    }
}

fn assemble(
    image: &StagedImage,
    handle: Handle,
    spec: SandboxSpec,
    link: Link,
    native_handle: NativeHandle,
) -> Sandbox {
    Sandbox::assemble(Parts {
        handle,
        env: image.environment(&spec.env),
        python: image.python_argv(Role::Kernel).unwrap_or_default(),
        spec,
        link,
        backend: Box::new(native_handle),
    })
}

/// What the server makes before the spawner makes the sandbox.
struct SandboxParts {
    socket: SocketGuard,
    block: BlockGuard,
    cgroup: Option<cgroup::Cgroup>,
    fds: FdList,
    /// Where in `fds` the parts are.
    plan_fds: plan::SandboxFds,
    listener: FdIndex,
    oom_events: Option<FdIndex>,
    id_lock: Option<FdIndex>,
    image_lock: Option<FdIndex>,
}

/// Descriptors for the spawner, which the plan names by their index.
#[derive(Default)]
struct FdList(Vec<OwnedFd>);

impl FdList {
    fn add(&mut self, fd: OwnedFd) -> FdIndex {
        self.0.push(fd);
        FdIndex(self.0.len() - 1)
    }

    fn borrowed(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).collect()
    }
}

/// Gives a sandbox's block of ids back when dropped.
#[derive(Debug)]
pub(crate) struct BlockGuard {
    runtime: Arc<NativeRuntime>,
    block: Option<Block>,
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

/// Starts a spawner and assembles the image in it. Blocks.
fn start_spawner(
    config: &NativeConfig,
    ids: Option<IdRange>,
    weakening: &Weakening,
) -> Result<Spawner, RuntimeError> {
    let privileged = ids.is_some();
    let outer = weakening.outer_ids(plan::outer_id_map(ids));
    let spawner = Spawner::start(&config.executable, outer, privileged)?;
    let mut steps = weakening.image(image::steps(&config.image));
    let trees = if privileged { open_sources(&mut steps)? } else { Vec::new() };
    let fds: Vec<BorrowedFd<'_>> = trees.iter().map(AsFd::as_fd).collect();
    spawner.stage(steps, &fds)?;
    Ok(spawner)
}

/// Replaces the paths of bind mounts by trees that the server opens: the spawner has fewer rights, and could not pass through
/// a private home directory, for example.
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
