//! Chooses and starts the backend that makes sandboxes.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use belljar_runtime::docker::{DockerConfig, DockerRuntime};
use belljar_runtime::native;
use belljar_runtime::{Runtime, RuntimeError};

use crate::home;
use crate::settings::{Choice, DOCKER_IMAGE, Settings};

/// A chosen backend, before the async runtime starts.
#[derive(Debug)]
pub enum Prepared {
    Native(Box<native::Prepared>),
    Docker(Box<DockerConfig>),
}

impl Prepared {
    /// Chooses a backend and starts the parts that must start before any thread.
    pub fn start(settings: &Settings) -> Result<Prepared> {
        match settings.backend.choice {
            Choice::Native => native(settings),
            Choice::Docker => Ok(Prepared::Docker(Box::new(docker_config(settings)?))),
            Choice::Auto => match native(settings) {
                Ok(Prepared::Native(prepared)) if prepared.can_limit() => {
                    Ok(Prepared::Native(prepared))
                }
                native => match docker_config(settings) {
                    Ok(docker) if answers(&docker) => Ok(Prepared::Docker(Box::new(docker))),
                    _ => native,
                },
            },
        }
    }

    /// The default image of this backend.
    #[must_use]
    pub fn default_image(&self, settings: &Settings) -> String {
        match self {
            Prepared::Native(_) => home::native_image(settings),
            Prepared::Docker(_) => {
                settings.backend.image.clone().unwrap_or_else(|| DOCKER_IMAGE.to_owned())
            }
        }
    }

    /// Starts the backend inside the async runtime. With an owner, sandboxes outlive this process, and an interpreter is
    /// kept warm for them.
    pub async fn launch(self, owner: Option<&str>) -> Result<Arc<dyn Runtime>, RuntimeError> {
        Ok(match (self, owner) {
            (Prepared::Native(prepared), Some(owner)) => {
                let runtime = prepared.launch_as(owner)?;
                runtime.keep_zygote();
                runtime
            }
            (Prepared::Native(prepared), None) => prepared.launch()?,
            (Prepared::Docker(config), owner) => DockerRuntime::launch(*config, owner).await?,
        })
    }
}

fn native(settings: &Settings) -> Result<Prepared> {
    Ok(Prepared::Native(Box::new(home::prepare_runtime(settings)?)))
}

pub fn docker_config(settings: &Settings) -> Result<DockerConfig> {
    // The engine mounts the executable by its path.
    let executable =
        fs::read_link("/proc/self/exe").context("failed to find the belljar binary")?;
    if !executable.is_file() {
        bail!("the belljar binary `{}` was replaced; start again", executable.display());
    }
    let backend = &settings.backend;
    Ok(DockerConfig {
        address: backend.docker_host.clone(),
        executable,
        kernels: home::kernels(settings, None)?,
        run_dir: settings.run_dir.clone(),
        socket_dir: backend.socket_dir.clone(),
        image: backend.image.clone().unwrap_or_else(|| DOCKER_IMAGE.to_owned()),
        preload: settings.preload.clone(),
        runtime: backend.docker_runtime.clone(),
        gpus: backend.gpus.clone(),
    })
}

/// Whether an engine with the image answers. Uses an event loop of its own on this thread, because no other thread may
/// exist yet.
fn answers(config: &DockerConfig) -> bool {
    let asking = DockerRuntime::has_image(config);
    let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build();
    event_loop.is_ok_and(|event_loop| event_loop.block_on(asking))
}
