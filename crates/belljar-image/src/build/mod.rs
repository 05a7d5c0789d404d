//! Images from a spec: a base, packages on it, and what every sandbox needs.
//!
//! ```text
//!   base ─▶ apt ─▶ pip ─▶ npm ─▶ users, places      each in an overlay over those before it;
//!            │       │      │         │             what it wrote becomes a layer
//!            └───────┴──────┴─────────┴─▶ manifest ─▶ root file system, Docker image
//! ```
//!
//! Commands run as root in namespaces of their own, with the host's network and fewer capabilities;
//! what they install is trusted as what `belljar setup` installs is. A step that fails shows what it
//! said, and leaves nothing.

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

/// Where Python's packages go: not into the distribution's own, which does not want them.
const VENV: &str = "/opt/venv";

/// And where browser-use goes, which wants exactly certain versions of a hundred packages.
const BROWSER_USE_VENV: &str = "/opt/browser-use";

/// Left out of layers: caches, logs, and what differs each time.
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

/// How an image is to be built.
#[derive(Debug)]
pub struct BuildOptions {
    /// The program that carries out a step, usually ourselves: it is given [`StepOrder`]s.
    pub helper: PathBuf,
    /// Where relative paths of the spec begin.
    pub directory: PathBuf,
    /// Certificates to be trusted while building, in PEM.
    pub ca_bundle: Option<PathBuf>,
}

/// Builds an image and keeps it. Needs root.
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
        // Python must not compare them with their sources, whose times are not kept and which are read-only.
        // Also those that were compiled during the installation, which contain its time.
        let compile = [
            &python[..],
            "-m",
            "compileall",
            "-q",
            "-f",
            "-j",
            "0",
            "--invalidation-mode",
            "unchecked-hash",
            &library,
        ];
        self.layer(
            &format!("Installing {} packages of Python", packages.len()),
            &[
                &["python3", "-m", "venv", environment],
                &install,
                // Some packages ship files that are not meant to compile.
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

    /// Runs commands one after the other over what there is; what they wrote becomes a layer.
    fn layer(&mut self, what: &str, commands: &[&[&str]]) -> Result<(), ImageError> {
        self.progress.begin(what, None);
        let upper = self.room.next_upper()?;
        self.host.prepare(&upper)?;
        for command in commands {
            self.room.run(self.helper, self.host, command, self.progress)?;
        }
        self.pack(&upper)
    }

    /// What every sandbox needs, written by ourselves.
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

/// The layers of the base, ours on top, and what is to be known about all of it.
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
