//! Images in use: each is assembled once in the spawner, and has its own zygote.
//!
//! ```text
//!   first sandbox ─▶ found in the store, locked ─▶ assembled ─▶ zygote made ─▶ kernels begin with it
//!   none for some minutes ─▶ zygote dropped ─▶ unmounted ─▶ unlocked: the store may remove it
//! ```
//!
//! The host image is always in use. A sandbox keeps its own lock on its image, so that the root file system of a sandbox that
//! outlives this process is not removed.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use belljar_image::{HOST, ImageError, InUse, Name};
use belljar_sys::plan::Step;

use super::image::{self, Image, Python};
use super::spawner::{AsyncSpawner, STAGE};
use super::zygote::{Keeper, Zygote};
use super::{NativeRuntime, lock, open_sources};
use crate::RuntimeError;
use crate::kernels::{self, Role};
use crate::runtime::ZygoteState;
use crate::spec::paths;

/// How long an unused image keeps its zygote, which takes memory.
const KEPT_UNUSED: Duration = Duration::from_secs(300);

/// How often unused images are looked for.
const TIDY_PACE: Duration = Duration::from_secs(30);

/// An image that sandboxes are made from.
#[derive(Debug)]
pub(crate) struct StagedImage {
    name: String,
    /// The assembled root, as the spawner sees it.
    root: PathBuf,
    source: ImageSource,
    preload: Vec<String>,
    keeper: OnceLock<Keeper>,
    /// The generation of the spawner that assembled it. It must be assembled again after that spawner has died.
    assembled_by: tokio::sync::Mutex<Option<u64>>,
    used: Mutex<Instant>,
}

#[derive(Debug)]
enum ImageSource {
    /// Assembled when a spawner starts.
    Host(Python),
    Store {
        in_use: InUse,
        kernels: PathBuf,
        python: Option<String>,
        env: Vec<(String, String)>,
    },
}

impl StagedImage {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_host(&self) -> bool {
        matches!(self.source, ImageSource::Host(_))
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn preload(&self) -> &[String] {
        &self.preload
    }

    /// The command line of its Python kernel or zygote.
    pub(crate) fn python_argv(&self, role: Role) -> Result<Vec<String>, RuntimeError> {
        match &self.source {
            ImageSource::Host(Python { executable, environment, .. }) => {
                let fonts =
                    environment.as_ref().map(|_| format!("{}/share/belljar", paths::PYTHON));
                Ok(kernels::python_argv(&executable.display().to_string(), role, fonts))
            }
            ImageSource::Store { python: Some(python), .. } => {
                Ok(kernels::python_argv(python, role, None))
            }
            ImageSource::Store { python: None, .. } => {
                Err(RuntimeError::NoPython(self.name.clone()))
            }
        }
    }

    /// The environment of everything in its sandboxes. `own` overrides the rest.
    pub(crate) fn environment(&self, own: &[(String, String)]) -> Vec<(String, String)> {
        match &self.source {
            ImageSource::Host(python) => {
                let tools = python.environment.as_ref().map(|_| format!("{}/bin", paths::PYTHON));
                let mut places = Vec::new();
                if python.is_relocated() && python.has_shared_library() {
                    // The interpreter looks for it where it was installed, which is another path inside.
                    places.push((
                        "LD_LIBRARY_PATH".to_owned(),
                        format!("{}/lib", paths::PYTHON_BASE),
                    ));
                }
                kernels::environment(tools.as_deref(), places.iter().chain(own))
            }
            ImageSource::Store { env, .. } => {
                let path = env.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value);
                let mut all = kernels::environment(path.map(String::as_str), own);
                kernels::complete(&mut all, env);
                all
            }
        }
    }

    /// A lock for a guest that keeps the root from being removed.
    pub(crate) fn lock(&self) -> Result<Option<OwnedFd>, RuntimeError> {
        match &self.source {
            ImageSource::Host(_) => Ok(None),
            ImageSource::Store { in_use, .. } => {
                let path = in_use.path().to_owned();
                in_use.keep().map(Some).map_err(|cause| RuntimeError::Open { path, cause })
            }
        }
    }

    /// Assembles its root in the spawner, if that was not done yet.
    pub(crate) async fn assemble(
        &self,
        runtime: &NativeRuntime,
        spawner: &AsyncSpawner,
    ) -> Result<(), RuntimeError> {
        let ImageSource::Store { in_use, kernels, .. } = &self.source else { return Ok(()) };
        let mut assembled_by = self.assembled_by.lock().await;
        if *assembled_by == Some(spawner.generation()) {
            return Ok(());
        }
        let place = self.root.parent().unwrap_or(&self.root);
        let mut steps = image::steps_of_root(in_use.path(), kernels, place);
        let trees = if runtime.separates_ids() { open_sources(&mut steps)? } else { Vec::new() };
        let fds: Vec<BorrowedFd<'_>> = trees.iter().map(AsFd::as_fd).collect();
        spawner.stage(steps, &fds).await?;
        *assembled_by = Some(spawner.generation());
        Ok(())
    }

    pub(crate) fn warm_zygote(&self) -> Option<Arc<Zygote>> {
        self.keeper.get()?.warm()
    }

    pub(crate) fn zygote_state(&self) -> Option<ZygoteState> {
        self.keeper.get().map(Keeper::state)
    }

    pub(crate) async fn zygote_settled(&self) -> ZygoteState {
        match self.keeper.get() {
            Some(keeper) => keeper.settled().await,
            None => ZygoteState::Failed("no zygote was requested".into()),
        }
    }

    fn keep_zygote(self: &Arc<Self>, runtime: &Arc<NativeRuntime>) {
        if self.python_argv(Role::Preloaded).is_ok() {
            self.keeper.get_or_init(|| Keeper::start(runtime, self));
        }
    }
}

/// All images in use.
#[derive(Debug)]
pub(crate) struct StagedImages {
    host: Arc<StagedImage>,
    /// By identity and not by name: a name may refer to another image later.
    others: Mutex<HashMap<String, Arc<StagedImage>>>,
    config: Image,
    keeps_zygotes: AtomicBool,
    is_tidied: AtomicBool,
    next: AtomicU64,
}

impl StagedImages {
    pub(crate) fn new(config: &Image) -> StagedImages {
        let host = StagedImage {
            name: HOST.into(),
            root: image::staged_root(),
            source: ImageSource::Host(config.python.clone()),
            preload: config.preload.clone(),
            keeper: OnceLock::new(),
            assembled_by: tokio::sync::Mutex::new(None),
            used: Mutex::new(Instant::now()),
        };
        StagedImages {
            host: Arc::new(host),
            others: Mutex::default(),
            config: config.clone(),
            keeps_zygotes: AtomicBool::new(false),
            is_tidied: AtomicBool::new(false),
            next: AtomicU64::new(1),
        }
    }

    pub(crate) fn host(&self) -> Arc<StagedImage> {
        Arc::clone(&self.host)
    }

    /// Makes the zygote of the default image, and from now on those of all images in use.
    pub(crate) fn keep_zygotes(&self, runtime: &Arc<NativeRuntime>) {
        self.keeps_zygotes.store(true, Ordering::Relaxed);
        match self.find(runtime, &self.config.default) {
            Ok(image) => image.keep_zygote(runtime),
            Err(error) => tracing::warn!("no zygote: {error}"),
        }
    }

    /// Stops making zygotes, and ends their sandboxes.
    pub(crate) async fn stop_zygotes(&self) {
        self.keeps_zygotes.store(false, Ordering::Relaxed);
        let others: Vec<Arc<StagedImage>> = lock(&self.others).values().cloned().collect();
        for image in others.iter().chain([&self.host]) {
            if let Some(keeper) = image.keeper.get() {
                keeper.stop().await;
            }
        }
    }

    /// An image that is in use already.
    pub(crate) fn known(&self, name: &str) -> Option<Arc<StagedImage>> {
        if name == HOST {
            return Some(self.host());
        }
        let name: Name = name.parse().ok()?;
        lock(&self.others).values().find(|image| image.name == name.as_str()).cloned()
    }

    /// Refuses the name of an image that does not exist.
    pub(crate) fn check(&self, name: &str) -> Result<(), RuntimeError> {
        if name == HOST { Ok(()) } else { self.look_up(name).map(|_| ()) }
    }

    fn look_up(&self, name: &str) -> Result<(Name, belljar_image::Image), RuntimeError> {
        let name: Name = name.parse().map_err(|error| no_image(&ImageError::Name(error)))?;
        let found = self.config.store.find(&name).map_err(|error| no_image(&error))?;
        Ok((name, found))
    }

    /// The image with this name now.
    pub(crate) fn find(
        &self,
        runtime: &Arc<NativeRuntime>,
        name: &str,
    ) -> Result<Arc<StagedImage>, RuntimeError> {
        if name == HOST {
            return Ok(self.host());
        }
        let (name, found) = self.look_up(name)?;
        let key = found.identity();
        let mut others = lock(&self.others);
        if let Some(known) = others.get(&key) {
            *lock(&known.used) = Instant::now();
            return Ok(Arc::clone(known));
        }
        let in_use = self.config.store.hold(&found).map_err(|error| no_image(&error))?;
        let place = format!("image-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let image = Arc::new(StagedImage {
            name: name.to_string(),
            root: Path::new(STAGE).join(place).join("root"),
            preload: found.preload.clone().unwrap_or_else(|| self.config.preload.clone()),
            source: ImageSource::Store {
                in_use,
                kernels: self.config.kernels.clone(),
                python: found.python.clone(),
                env: found.env.clone(),
            },
            keeper: OnceLock::new(),
            assembled_by: tokio::sync::Mutex::new(None),
            used: Mutex::new(Instant::now()),
        });
        others.insert(key, Arc::clone(&image));
        drop(others);
        if self.keeps_zygotes.load(Ordering::Relaxed) {
            image.keep_zygote(runtime);
            self.tidy_from_now_on(runtime);
        }
        Ok(image)
    }

    fn tidy_from_now_on(&self, runtime: &Arc<NativeRuntime>) {
        if self.is_tidied.swap(true, Ordering::Relaxed) {
            return;
        }
        let runtime = Arc::downgrade(runtime);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(TIDY_PACE).await;
                let Some(runtime) = runtime.upgrade() else { return };
                runtime.images.tidy(&runtime, KEPT_UNUSED).await;
            }
        });
    }

    /// Drops images that were not used for this long. Sandboxes of them keep their own locks, and start kernels the slow way.
    async fn tidy(&self, runtime: &NativeRuntime, unused_for: Duration) {
        let current = self.known(&self.config.default);
        let unused: Vec<Arc<StagedImage>> = {
            let mut others = lock(&self.others);
            let is_unused = |image: &Arc<StagedImage>| {
                lock(&image.used).elapsed() >= unused_for
                    // The map's own reference, and for a moment perhaps that of its keeper.
                    && Arc::strong_count(image) <= 2
                    && current.as_ref().is_none_or(|current| !Arc::ptr_eq(current, image))
            };
            let keys: Vec<String> = others
                .iter()
                .filter(|(_, image)| is_unused(image))
                .map(|(key, _)| key.clone())
                .collect();
            keys.iter().filter_map(|key| others.remove(key)).collect()
        };
        for image in unused {
            tracing::info!("image {} was not used for a while; its zygote ends", image.name);
            let spawner = runtime.spawner();
            if *image.assembled_by.lock().await == Some(spawner.generation()) {
                let steps = vec![Step::Detach { target: image.root.clone() }];
                if let Err(error) = spawner.stage(steps, &[]).await {
                    tracing::warn!("failed to unmount image {}: {error}", image.name);
                }
            }
        }
    }
}

fn no_image(error: &ImageError) -> RuntimeError {
    RuntimeError::NoImage(in_full(error))
}

/// An error with its cause, in one line.
fn in_full(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", in_full(cause)),
        None => error.to_string(),
    }
}
