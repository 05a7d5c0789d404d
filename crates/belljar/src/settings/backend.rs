//! Settings of the backend and the images of sandboxes.

use std::path::{Path, PathBuf};

use anyhow::Result;
use belljar_runtime::docker::Gpus;

use super::values::Values;

/// The default image with Docker.
pub const DOCKER_IMAGE: &str = "belljar/sandbox:latest";

#[derive(Debug, Clone)]
pub struct BackendSettings {
    pub choice: Choice,
    /// `None`: the default of the backend.
    pub image: Option<String>,
    /// Patterns of other images that sessions may request.
    pub images: Vec<String>,
    pub docker_host: Option<String>,
    pub docker_runtime: Option<String>,
    pub socket_dir: PathBuf,
    pub gpus: Option<Gpus>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Native if it can enforce limits, else Docker if an engine answers.
    Auto,
    Native,
    Docker,
}

impl BackendSettings {
    pub(super) fn read(values: &Values<'_>, run_dir: &Path) -> Result<BackendSettings> {
        let word = |text: &str| (!text.contains(char::is_whitespace)).then(|| text.to_owned());
        Ok(BackendSettings {
            choice: values.read("BELLJAR_BACKEND", |text| match text {
                "auto" => Some(Choice::Auto),
                "native" => Some(Choice::Native),
                "docker" => Some(Choice::Docker),
                _ => None,
            })?,
            image: values
                .optional("SANDBOX_IMAGE", word)?
                .or(values.optional("SANDBOX_IMAGE_NAME", word)?),
            images: values.list("BELLJAR_IMAGES", word)?,
            docker_host: values.optional("DOCKER_HOST", engine)?,
            docker_runtime: values.optional("BELLJAR_DOCKER_RUNTIME", word)?,
            socket_dir: values.path_or("BELLJAR_SOCKET_DIR", || Ok(run_dir.join("doors")))?,
            gpus: values.optional("BELLJAR_GPUS", Gpus::parse)?,
        })
    }
}

fn engine(text: &str) -> Option<String> {
    let known = ["unix://", "tcp://", "http://"];
    known.iter().any(|scheme| text.starts_with(scheme)).then(|| text.to_owned())
}
