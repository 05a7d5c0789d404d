//! Builds images from a spec: a base, packages, and the files that every sandbox needs.
//!
//! ```text
//!   base ─▶ apt ─▶ pip ─▶ npm ─▶ users, places      each in an overlay over those before it;
//!            │       │      │         │             what it wrote becomes a layer
//!            └───────┴──────┴─────────┴─▶ manifest ─▶ root file system, Docker image
//! ```
//!
//! Commands run as root in their own namespaces, with the host's network and fewer capabilities.
//! What they install is trusted, like what `belljar setup` installs. If a step fails, the error
//! contains its output, and nothing is kept.

mod base;
mod docker;
mod host;
mod places;
mod room;
mod spec;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::oci::{self, Descriptor, ImageConfig, Manifest, RootfsConfig, RunConfig};
use crate::pack::{self, Packed, Rules};
use crate::store::Writer;
use crate::{Image, ImageError, Name, Progress};

pub use docker::{Loaded, load_into_docker};
pub use room::{StepOrder, perform_step};
pub use spec::{DEFAULT_SPEC, Spec};

use host::Host;
use room::Room;

/// The environment of Python packages. Separate, because distributions do not allow pip to install
/// into their own Python.
const VENV: &str = "/opt/venv";

/// The environment of browser-use, which needs exact versions of a hundred packages.
const BROWSER_USE_VENV: &str = "/opt/browser-use";

/// Directories whose content is left out of layers: caches, logs, and files that differ in each
/// build.
const EMPTIED: [&str; 8] = [
    "tmp",
    "run",
    "root/.cache",
    "root/.npm",
    "var/cache/apt",
    "var/cache/debconf",
    "var/lib/apt/lists",
    "var/log",
];
const OMITTED: [&str; 3] = ["etc/resolv.conf", "var/cache/ldconfig/aux-cache", "root/.wget-hsts"];

/// Options of a build.
#[derive(Debug)]
pub struct BuildOptions {
    /// The program that runs a step, usually this binary. It reads a [`StepOrder`].
    pub helper: PathBuf,
    /// The directory that relative paths of the spec start from.
    pub directory: PathBuf,
    /// Certificates to trust during the build, in PEM.
    pub ca_bundle: Option<PathBuf>,
}

/// Builds an image and stores it. Needs root.
pub async fn build(
    writer: &Writer<'_>,
    spec: &Spec,
    name: Name,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<Image, ImageError> {
    if !belljar_sys::privileges::may_mount() || !belljar_sys::privileges::is_root() {
        let message = "only root can build images; others can pull and import them";
        return Err(ImageError::Build(message.into()));
    }
    let host = Host::look(options.ca_bundle.as_deref())?;
    let base = base::find(writer, &spec.base, options, &host, progress).await?;
    let held = writer.store().hold(&base)?;
    let mut building = Building {
        writer,
        host: &host,
        helper: &options.helper,
        progress,
        room: Room::new(writer.scratch()?, held.path())?,
        began: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
        layers: Vec::new(),
    };
    building.apt(&spec.packages())?;
    building.pip(VENV, &spec.pip)?;
    if spec.browser_use {
        building.pip(BROWSER_USE_VENV, &[spec::BROWSER_USE.to_owned()])?;
    }
    building.npm(&spec.npm)?;
    building.places(spec)?;
    let Building { layers, .. } = building;
    let manifest = describe(writer, &base, spec, layers)?;
    drop(held);
    writer.commit(name, &manifest.digest, format!("built on {}", base.name), progress)
}

struct Building<'a> {
    writer: &'a Writer<'a>,
    host: &'a Host,
    helper: &'a Path,
    progress: &'a dyn Progress,
    room: Room,
    /// Files that are newer were created by the build.
    began: u64,
    layers: Vec<Packed>,
}

impl Building<'_> {
    fn apt(&mut self, packages: &[&str]) -> Result<(), ImageError> {
        if packages.is_empty() {
            return Ok(());
        }
        let mut install = vec!["apt-get", "install", "-y", "--no-install-recommends"];
        install.extend(packages);
        self.layer(
            &format!("Installing {} packages of the distribution", packages.len()),
            &[&["apt-get", "update"], &install, &["apt-get", "clean"]],
        )
    }

    fn pip(&mut self, environment: &str, packages: &[String]) -> Result<(), ImageError> {
        if packages.is_empty() {
            return Ok(());
        }
        let pip = format!("{environment}/bin/pip");
        let mut install = vec![&pip[..], "install", "--no-input", "--no-compile", "--no-cache-dir"];
        install.extend(["--disable-pip-version-check", "--progress-bar", "off"]);
        install.extend(packages.iter().map(String::as_str));
        let (python, library) = (format!("{environment}/bin/python"), format!("{environment}/lib"));
        // Python must not compare compiled files with their sources: the times of the sources are
        // not kept, and the files are read-only. `-f` also replaces files that were compiled during
        // the installation, because these contain its time. It is one process on purpose: the bytes
        // of a compiled file depend on the files that its process compiled before, so with several
        // workers two builds differ.
        let compile = [
            &python[..],
            "-m",
            "compileall",
            "-q",
            "-f",
            "--invalidation-mode",
            "unchecked-hash",
            &library,
        ];
        self.layer(
            &format!("Installing {} packages of Python", packages.len()),
            &[
                &["python3", "-m", "venv", environment],
                &install,
                // Some packages contain files that cannot be compiled.
                &["/bin/sh", "-c", "\"$@\" || true", "compile"]
                    .iter()
                    .chain(&compile)
                    .copied()
                    .collect::<Vec<_>>(),
            ],
        )
    }

    fn npm(&mut self, packages: &[String]) -> Result<(), ImageError> {
        if packages.is_empty() {
            return Ok(());
        }
        let mut install = vec!["npm", "install", "--global", "--no-audit", "--no-fund"];
        install.extend(packages.iter().map(String::as_str));
        self.layer(&format!("Installing {} packages of Node.js", packages.len()), &[&install])
    }

    /// Runs commands in order on top of the layers so far; what they write becomes a new layer.
    fn layer(&mut self, what: &str, commands: &[&[&str]]) -> Result<(), ImageError> {
        self.progress.begin(what, None);
        let upper = self.room.next_upper()?;
        self.host.prepare(&upper)?;
        for command in commands {
            self.room.run(self.helper, self.host, command, self.progress)?;
        }
        self.pack(&upper)
    }

    /// Adds a layer with the files that every sandbox needs.
    fn places(&mut self, spec: &Spec) -> Result<(), ImageError> {
        self.progress.begin("Preparing users and places", None);
        let view = self.room.view();
        let upper = self.room.next_upper()?;
        places::write(&view, &upper, &spec.user)?;
        self.pack(&upper)
    }

    fn pack(&mut self, upper: &Path) -> Result<(), ImageError> {
        let rules = Rules {
            build_began: Some(self.began),
            is_overlay: true,
            emptied: &EMPTIED,
            omitted: &OMITTED,
        };
        self.layers.push(pack::directory(self.writer, upper, &rules)?);
        Ok(())
    }
}

/// Writes the manifest and the configuration: the layers of the base with ours on top, variables
/// and labels.
fn describe(
    writer: &Writer<'_>,
    base: &Image,
    spec: &Spec,
    layers: Vec<Packed>,
) -> Result<Descriptor, ImageError> {
    let mut env = base.env.clone();
    let path = env.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.clone());
    let path = path.unwrap_or_else(|| room::PATH.into());
    let path = if spec.pip.is_empty() { path } else { format!("{VENV}/bin:{path}") };
    let own = [("PATH".to_owned(), path)].into_iter().chain(spec.env.clone());
    for (key, value) in own {
        env.retain(|(known, _)| *known != key);
        env.push((key, value));
    }
    let mut labels = [(oci::LABEL_IMAGE.to_owned(), "1".to_owned())].to_vec();
    labels.extend(
        spec.preload.as_ref().map(|modules| (oci::LABEL_PRELOAD.to_owned(), modules.join(","))),
    );
    let contents = base.layers.iter().map(|layer| layer.content);
    let contents = contents.chain(layers.iter().map(|layer| layer.digest));
    let config = ImageConfig {
        architecture: oci::this_architecture().into(),
        os: "linux".into(),
        config: RunConfig {
            user: "1000:1000".into(),
            env: Some(env.iter().map(|(key, value)| format!("{key}={value}")).collect()),
            cmd: Some(vec!["/bin/bash".into()]),
            working_dir: "/session".into(),
            labels: Some(labels.into_iter().collect()),
        },
        rootfs: RootfsConfig { kind: "layers".into(), diff_ids: contents.collect() },
        ..ImageConfig::default()
    };
    let text = serde_json::to_vec(&config).expect("documents serialize to JSON");
    let config = writer.add_document(oci::CONFIG, &text)?;
    let own =
        layers.into_iter().map(|Packed { digest, size }| Descriptor::new(oci::LAYER, digest, size));
    let manifest = Manifest {
        schema_version: 2,
        media_type: oci::MANIFEST.into(),
        config,
        layers: base.layers.iter().map(|layer| layer.blob.clone()).chain(own).collect(),
    };
    let text = serde_json::to_vec(&manifest).expect("documents serialize to JSON");
    writer.add_document(oci::MANIFEST, &text)
}
