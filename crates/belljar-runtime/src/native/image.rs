//! Assembles the root of a sandbox, as steps for the spawner.
//!
//! The `host` image has the host's `/usr`, read-only, a small generated `/etc`, and the Python environment that `belljar setup`
//! made, and nothing else of the host. Any other image is a root file system of the store, read-only, with our own devices
//! and a few files of `/etc`.

use std::fs;
use std::path::{Path, PathBuf};

/// The name of the image that is made from the host.
pub use belljar_image::HOST;
use belljar_image::ImageStore;
use belljar_sys::plan::{Access, Source, Step};
use serde::{Deserialize, Serialize};

use crate::spec::paths;

/// Where the spawner keeps the assembled root.
pub(crate) fn staged_root() -> PathBuf {
    PathBuf::from(super::spawner::STAGE).join("image")
}

/// What the roots of sandboxes are made from: this machine, and the store of other images.
#[derive(Debug, Clone)]
pub struct Image {
    pub python: Python,
    /// An environment of the same interpreter with browser-use, if setup made one.
    pub browser_use: Option<PathBuf>,
    /// Directory with the kernels' scripts, on the host.
    pub kernels: PathBuf,
    /// Modules that the zygote imports, unless the image has its own list.
    pub preload: Vec<String>,
    /// Images other than the machine itself.
    pub store: ImageStore,
    /// The image of sandboxes without an image in their spec; `host` is this machine.
    pub default: String,
}

/// An interpreter and where it finds its packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Python {
    /// The environment that setup made, if it did; mounted at a fixed path inside.
    pub environment: Option<PathBuf>,
    /// The interpreter, as a path inside the sandbox.
    pub executable: PathBuf,
    /// Where the interpreter is installed on the host.
    pub base_prefix: PathBuf,
    pub version: String,
}

/// The directory of an environment with the parts that differ inside a sandbox: scripts and links with the path that the
/// interpreter has there.
pub const INSIDE: &str = "inside";

impl Python {
    /// Whether the interpreter is mounted at a separate path. One below `/usr` is visible anyway; any other may be in a
    /// home directory, whose path must not be visible.
    #[must_use]
    pub fn is_relocated(&self) -> bool {
        !self.base_prefix.starts_with("/usr")
    }

    /// Whether most of the interpreter is in a library beside it.
    pub(crate) fn has_shared_library(&self) -> bool {
        let Ok(entries) = fs::read_dir(self.base_prefix.join("lib")) else { return false };
        entries.filter_map(Result::ok).any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("libpython3") && name.contains(".so")
        })
    }

    /// For a machine without Python: starting it fails.
    #[must_use]
    pub fn nowhere() -> Python {
        Python {
            environment: None,
            executable: "/usr/bin/python3".into(),
            base_prefix: "/usr".into(),
            version: String::new(),
        }
    }

    /// The interpreter that comes with the distribution, without any package.
    #[must_use]
    pub fn of_distribution() -> Option<Python> {
        let python = Python::nowhere();
        python.executable.exists().then_some(python)
    }
}

/// Files and directories below `/etc` that programs need and that hold no secrets.
const ETC_SHOWN: [&str; 9] = [
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/mime.types",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/R",
];

/// Top-level directories that are links into `/usr` on a merged system and real ones elsewhere.
const USR_ALIASES: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const PASSWD: &str = "\
root:x:0:0:root:/nonexistent:/usr/sbin/nologin
belljar:x:1000:1000:belljar:/session:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
";
const GROUP: &str = "root:x:0:\nbelljar:x:1000:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1 localhost belljar\n::1 localhost\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

/// The steps that assemble the image's root at [`staged_root`].
pub(crate) fn steps(image: &Image) -> Vec<Step> {
    let mut assembly = Assembly { root: staged_root(), steps: Vec::new(), made: Vec::new() };
    assembly.steps.push(Step::MakeDir { path: staged_root(), mode: 0o755, owner: None });
    assembly.steps.push(Step::Tmpfs {
        target: staged_root(),
        size: 4 << 20,
        inodes: 1024,
        mode: 0o755,
    });
    assembly.show(Path::new("/usr"), Access::READ_EXEC);
    for name in USR_ALIASES {
        let path = Path::new("/").join(name);
        match fs::read_link(&path) {
            Ok(to) => assembly.link(&path, &to),
            Err(_) if path.is_dir() => assembly.show(&path, Access::READ_EXEC),
            Err(_) => {}
        }
    }
    for (name, contents) in etc_files() {
        assembly.file(&Path::new("/etc").join(name), contents);
    }
    for path in
        ETC_SHOWN.iter().map(Path::new).chain(debian_python_etc().iter().map(PathBuf::as_path))
    {
        if path.exists() {
            assembly.show(path, Access::READ);
        }
    }
    if let Ok(zone) = fs::read_link("/etc/localtime") {
        assembly.link(Path::new("/etc/localtime"), &zone);
    }
    assembly.devices();
    for path in ["/proc", "/tmp", "/run", paths::SESSION, paths::DATA, paths::VOLUMES] {
        assembly.directory(Path::new(path));
    }
    assembly.link(Path::new("/work"), Path::new(paths::SESSION));
    assembly.link(Path::new(paths::WORKSPACE), Path::new(paths::WORKSPACE_MOUNT));
    assembly.link(Path::new(paths::WORKSPACE_MOUNT), Path::new(paths::SESSION));
    assembly.link(Path::new("/var/tmp"), Path::new("/tmp"));
    assembly.show_at(&image.kernels, Path::new(paths::KERNELS), Access::READ_EXEC);
    let environments =
        [(&image.python.environment, paths::PYTHON), (&image.browser_use, paths::BROWSER_USE)];
    for (environment, place) in environments {
        let Some(environment) = environment else { continue };
        let inside = environment.join(INSIDE);
        let parts = [
            (inside.join("bin"), "bin"),
            (inside.join("pyvenv.cfg"), "pyvenv.cfg"),
            (environment.join("lib"), "lib"),
            (environment.join("share"), "share"),
        ];
        for (host, name) in parts {
            assembly.show_at(&host, &Path::new(place).join(name), Access::READ_EXEC);
        }
    }
    if image.python.is_relocated() {
        let base = Path::new(paths::PYTHON_BASE);
        assembly.show_at(&image.python.base_prefix, base, Access::READ_EXEC);
    }
    assembly.steps.push(Step::ReadOnly { target: staged_root() });
    assembly.steps
}

/// The steps that assemble the root of a sandbox from one of the store at `place`, a directory of the spawner's stage. The
/// mount points exist: they were made when the image was unpacked.
pub(crate) fn steps_of_root(rootfs: &Path, kernels: &Path, place: &Path) -> Vec<Step> {
    let root = place.join("root");
    let etc = place.join("etc");
    let directory = |path: &Path| Step::MakeDir { path: path.into(), mode: 0o755, owner: None };
    let mut steps = vec![directory(place), directory(&root), directory(&etc)];
    let source = Source::Path(rootfs.to_owned());
    steps.push(Step::Bind { source, target: root.clone(), access: Access::READ_EXEC });
    for (name, contents) in etc_files() {
        let own = etc.join(name);
        steps.push(Step::MakeFile { path: own.clone(), contents: contents.to_owned() });
        let target = root.join("etc").join(name);
        steps.push(Step::Bind { source: Source::Path(own), target, access: Access::READ });
    }
    steps.push(Step::Tmpfs { target: root.join("dev"), size: 1 << 20, inodes: 64, mode: 0o755 });
    // These directories exist.
    let made = vec!["/dev".into(), "/opt".into(), "/opt/belljar".into(), paths::KERNELS.into()];
    let mut assembly = Assembly { root: root.clone(), steps, made };
    assembly.devices();
    assembly.show_at(kernels, Path::new(paths::KERNELS), Access::READ_EXEC);
    assembly.steps.push(Step::ReadOnly { target: root });
    assembly.steps
}

fn etc_files() -> [(&'static str, &'static str); 4] {
    [("passwd", PASSWD), ("group", GROUP), ("hosts", HOSTS), ("nsswitch.conf", NSSWITCH)]
}

/// Debian keeps the site customisation of its Python below `/etc`.
fn debian_python_etc() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/etc") else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .and_then(|name| name.to_str()?.strip_prefix("python3"))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
        .collect();
    found.sort();
    found
}

/// Collects steps and makes parent directories on the way, once each.
struct Assembly {
    root: PathBuf,
    steps: Vec<Step>,
    made: Vec<PathBuf>,
}

impl Assembly {
    /// Where `path` is in the staged root.
    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn directory(&mut self, path: &Path) {
        if path == Path::new("/") || self.made.iter().any(|made| made == path) {
            return;
        }
        self.parents(path);
        let step = Step::MakeDir { path: self.inside(path), mode: 0o755, owner: None };
        self.steps.push(step);
        self.made.push(path.to_owned());
    }

    /// A `/dev` with what programs expect, and nothing else of the host.
    fn devices(&mut self) {
        for device in DEVICES.map(|name| Path::new("/dev").join(name)) {
            if device.exists() {
                self.show(&device, Access::DEVICE);
            }
        }
        for (name, to) in [
            ("ptmx", "pts/ptmx"),
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ] {
            self.link(&Path::new("/dev").join(name), Path::new(to));
        }
        for path in ["/dev/pts", "/dev/shm"] {
            self.directory(Path::new(path));
        }
    }

    fn parents(&mut self, path: &Path) {
        if let Some(parent) = path.parent() {
            self.directory(parent);
        }
    }

    fn file(&mut self, path: &Path, contents: &str) {
        self.parents(path);
        self.steps.push(Step::MakeFile { path: self.inside(path), contents: contents.to_owned() });
    }

    fn link(&mut self, path: &Path, to: &Path) {
        self.parents(path);
        self.steps.push(Step::Symlink { path: self.inside(path), to: to.to_owned() });
    }

    /// Mounts a path of the host at the same path inside.
    fn show(&mut self, path: &Path, access: Access) {
        self.show_at(path, path, access);
    }

    fn show_at(&mut self, host: &Path, inside: &Path, access: Access) {
        if host.is_dir() {
            self.directory(inside);
        } else {
            self.file(inside, "");
        }
        let source = Source::Path(host.to_owned());
        self.steps.push(Step::Bind { source, target: self.inside(inside), access });
    }
}
