//! Files that `belljar setup` created and other commands use: environments, images and the database.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use belljar_image::{ImageStore, UnpackLimits};
use belljar_runtime::native::image::{Image, Python};
use belljar_runtime::native::{NativeConfig, Prepared};
use belljar_runtime::{kernels, paths};
use serde::{Deserialize, Serialize};

use crate::settings::Settings;

/// The manifest of an environment. It is written last, so if it exists, the environment is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentManifest {
    /// The version of the format of this file.
    pub format: u32,
    pub python_version: String,
    pub base_prefix: PathBuf,
    pub packages: Vec<String>,
}

/// Image names of other sandbox products that have only one image; users may have these names in their `.env`.
const ALSO_HOST: [&str; 6] = [
    "sandbox",
    "sandbox:latest",
    "py-sandbox:latest",
    "python-agent-sandbox:latest",
    "python-chart-sandbox:latest",
    "local/sandbox-py311-rdkit:latest",
];

pub const MANIFEST_FORMAT: u32 = 2;

pub fn environment_dir(settings: &Settings) -> PathBuf {
    settings.home.join("python")
}

/// The interpreter of the sandboxes' environment, as the host starts it; without one, `python3` on the PATH.
pub fn environment_python(settings: &Settings) -> PathBuf {
    let python = environment_dir(settings).join("bin/python");
    if python.exists() { python } else { "python3".into() }
}

/// The environment of browser tasks: a separate one, because browser-use needs exact versions of a hundred packages.
pub fn browser_use_dir(settings: &Settings) -> PathBuf {
    settings.home.join("browser-use")
}

pub fn manifest_path(environment: &Path) -> PathBuf {
    environment.join("belljar.json")
}

pub fn read_manifest(environment: &Path) -> Option<EnvironmentManifest> {
    let text = fs::read_to_string(manifest_path(environment)).ok()?;
    let manifest: EnvironmentManifest = serde_json::from_str(&text).ok()?;
    (manifest.format == MANIFEST_FORMAT && manifest.base_prefix.is_dir()).then_some(manifest)
}

/// The image `host`: with the environment that setup made, or else the distribution's own Python.
pub fn image(settings: &Settings) -> Result<Image> {
    let environment = environment_dir(settings);
    let (python, host_python) = match read_manifest(&environment) {
        Some(manifest) => {
            let host_python = environment.join("bin/python");
            let python = Python {
                executable: Path::new(paths::PYTHON).join("bin/python"),
                base_prefix: manifest.base_prefix,
                version: manifest.python_version,
                environment: Some(environment),
            };
            (python, host_python)
        }
        None => {
            let python = match Python::of_distribution() {
                // Not needed if sandboxes use another image.
                None if native_image(settings) != belljar_image::HOST => Python::nowhere(),
                python => python
                    .context("there is no Python for sandboxes yet; run `belljar setup` first")?,
            };
            let host_python = python.executable.clone();
            (python, host_python)
        }
    };
    let kernels = kernels(settings, Some(&host_python))?;
    let browser_use = browser_use_dir(settings);
    // The environment of browser tasks uses the same interpreter, so the prefixes must be equal.
    let fits = |manifest: &EnvironmentManifest| manifest.base_prefix == python.base_prefix;
    let browser_use = read_manifest(&browser_use).filter(fits).map(|_| browser_use);
    Ok(Image {
        python,
        browser_use,
        kernels,
        preload: settings.preload.clone(),
        store: images(settings),
        default: native_image(settings),
    })
}

/// The directory of the kernels' scripts, compiled if there is a Python.
pub fn kernels(settings: &Settings, python: Option<&Path>) -> Result<PathBuf> {
    kernels::materialize(&settings.home, |directory| {
        // If this fails, kernels only start more slowly.
        let _ = Command::new(python.unwrap_or(Path::new("python3")))
            // Without `site`, which would run code of packages here.
            .args(["-I", "-S", "-m", "compileall", "-q"])
            .arg(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    })
    .with_context(|| format!("failed to write below `{}`", settings.home.display()))
}

/// The default image of native sandboxes.
#[must_use]
pub fn native_image(settings: &Settings) -> String {
    let named = settings.backend.image.as_deref().unwrap_or(belljar_image::HOST);
    let is_known = || named.parse().is_ok_and(|name| images(settings).find(&name).is_ok());
    let is_host = ALSO_HOST.contains(&named) && !is_known();
    if is_host { belljar_image::HOST.to_owned() } else { named.to_owned() }
}

/// The store of images other than `host`.
#[must_use]
pub fn images(settings: &Settings) -> ImageStore {
    let limits = UnpackLimits { bytes: settings.image_bytes, ..UnpackLimits::default() };
    ImageStore::new(settings.home.join("images"), limits)
}

/// The server's database.
#[must_use]
pub fn database(settings: &Settings) -> PathBuf {
    settings.state_dir.join("belljar.db")
}

/// The certificate authority that the sandboxes of this machine's server trust.
#[must_use]
pub fn network_authority(settings: &Settings) -> PathBuf {
    settings.state_dir.join("network-authority.pem")
}

/// The key that signs the links of this machine's server.
#[must_use]
pub fn link_key(settings: &Settings) -> PathBuf {
    settings.state_dir.join("links.key")
}

/// Starts the spawner. Must be called before any thread is started.
pub fn prepare_runtime(settings: &Settings) -> Result<Prepared> {
    let default = native_image(settings);
    if default != belljar_image::HOST {
        let found =
            default.parse().map_err(Into::into).and_then(|name| images(settings).find(&name));
        found.with_context(|| format!("SANDBOX_IMAGE={default}"))?;
    }
    let config = NativeConfig {
        executable: "/proc/self/exe".into(),
        run_dir: settings.run_dir.clone(),
        cgroup_parent: settings.cgroup_parent.clone(),
        image: image(settings)?,
    };
    Ok(Prepared::start(config)?)
}
