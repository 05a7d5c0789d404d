//! `belljar setup`: creates the Python environment of sandboxes, that of browser tasks, and a commented `.env`.
//!
//! A new environment is built beside the current one and replaces it when it is complete, so a setup that fails changes
//! nothing. The manifest is written last, so an interrupted first setup continues: pip keeps what it has installed.

mod staging;

use std::fs;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use belljar_runtime::native::image::INSIDE;
use belljar_runtime::paths;
use belljar_sys::file_lock::FileLock;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

use crate::home::{self, EnvironmentManifest, MANIFEST_FORMAT};
use crate::settings::{self, Settings};

#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// The interpreter of the environment [default: python3 on the PATH]
    #[arg(long, value_name = "PYTHON")]
    pub(crate) python: Option<PathBuf>,
    /// A package to install besides the usual ones; may be repeated
    #[arg(long = "with", value_name = "PACKAGE")]
    pub(crate) with: Vec<String>,
    /// Install rdkit, for chemistry, besides the usual packages
    #[arg(long)]
    pub(crate) chem: bool,
    /// Create an environment with browser-use too, for browser tasks in natural language
    #[arg(long)]
    pub(crate) browser: bool,
    /// Build the environment again even if it is complete
    #[arg(long)]
    pub(crate) force: bool,
}

/// The packages of `--chem`; the default image of `belljar image build` has them.
const CHEMISTRY: &str = "rdkit";

/// The oldest Python that the kernels support.
const OLDEST_PYTHON: (u32, u32) = (3, 10);

pub(crate) fn setup(args: &SetupArgs, settings: &Settings) -> Result<ExitCode> {
    let environment = home::environment_dir(settings);
    fs::create_dir_all(&settings.home)
        .with_context(|| format!("failed to create `{}`", settings.home.display()))?;
    let _lock = lock(&settings.home)?;

    let python = inspect(args.python.as_deref().unwrap_or(&settings.python))?;
    let mut packages = settings.packages.clone();
    packages.extend(args.with.iter().cloned());
    packages.extend(args.chem.then(|| CHEMISTRY.to_owned()));
    packages.sort();
    packages.dedup();
    let wanted = EnvironmentManifest {
        format: MANIFEST_FORMAT,
        python_version: python.version.clone(),
        base_prefix: python.base_prefix.clone(),
        packages,
    };
    if !args.force && home::read_manifest(&environment).as_ref() == Some(&wanted) {
        println!("The Python environment is complete: {}", environment.display());
    } else {
        build(&environment, paths::PYTHON, &python, &wanted, args.force)?;
    }
    if args.browser {
        browser_use(&home::browser_use_dir(settings), &python, args.force)?;
    }
    home::image(settings)?;
    write_env_file()?;
    println!(
        "\nReady. Try:\n  belljar run -c 'import pandas; pandas.__version__'\n  belljar doctor"
    );
    Ok(ExitCode::SUCCESS)
}

/// The version of browser-use that browser tasks are written for.
const BROWSER_USE: &str = "browser-use>=0.13,<0.14";

/// Paths of Chromium in distributions; sandboxes use the same list.
pub(super) const CHROMIUM: [&str; 3] =
    ["/usr/lib/chromium/chromium", "/usr/bin/chromium", "/usr/bin/chromium-browser"];

fn browser_use(environment: &Path, python: &Interpreter, force: bool) -> Result<()> {
    let wanted = EnvironmentManifest {
        format: MANIFEST_FORMAT,
        python_version: python.version.clone(),
        base_prefix: python.base_prefix.clone(),
        packages: vec![BROWSER_USE.into()],
    };
    if !force && home::read_manifest(environment).as_ref() == Some(&wanted) {
        println!("The environment of browser tasks is complete: {}", environment.display());
    } else {
        build(environment, paths::BROWSER_USE, python, &wanted, force)?;
    }
    if !CHROMIUM.iter().any(|path| Path::new(path).exists()) {
        println!("There is no Chromium on this machine. On Debian: apt-get install chromium");
    }
    Ok(())
}

/// Facts about an interpreter, reported by the interpreter itself.
#[derive(Debug, Deserialize)]
struct Interpreter {
    executable: PathBuf,
    base_prefix: PathBuf,
    version: String,
    has_venv: bool,
}

const QUESTIONS: &str = "\
import json, sys, importlib.util as u, os
print(json.dumps({
    'executable': os.path.realpath(sys.executable),
    'base_prefix': os.path.realpath(sys.base_prefix),
    'version': '.'.join(map(str, sys.version_info[:3])),
    'has_venv': all(u.find_spec(m) for m in ('venv', 'ensurepip')),
}))";

fn inspect(python: &Path) -> Result<Interpreter> {
    let advice = "install Python 3.10 or newer, or name one with --python";
    let output = Command::new(python)
        .args(["-I", "-c", QUESTIONS])
        .output()
        .with_context(|| format!("failed to start `{}`; {advice}", python.display()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` does not work ({}); {advice}", python.display(), why.trim());
    }
    let found: Interpreter = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("`{}` is not a Python; {advice}", python.display()))?;
    let mut numbers = found.version.split('.').filter_map(|n| n.parse().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < OLDEST_PYTHON {
        bail!("`{}` is Python {}; {advice}", python.display(), found.version);
    }
    if !found.has_venv {
        bail!(
            "`{}` comes without venv and ensurepip; on Debian: apt-get install python3-venv",
            python.display()
        );
    }
    Ok(found)
}

/// Builds an environment, which sandboxes see at `place`, and replaces the current one with it.
fn build(
    environment: &Path,
    place: &str,
    python: &Interpreter,
    wanted: &EnvironmentManifest,
    force: bool,
) -> Result<()> {
    staging::sweep(environment);
    let staged = staging::place(environment);
    let current = home::read_manifest(environment);
    // If packages are only added, a copy is faster than installing all of them again.
    let grows = current.as_ref().is_some_and(|current| {
        belongs_to(environment, python)
            && current.packages.iter().all(|package| wanted.packages.contains(package))
    });
    let made = if grows && !force {
        let _ = fs::remove_dir_all(&staged);
        step("Copying the environment that is there", |_| staging::copy(environment, &staged))
    } else if force || current.is_some() || !belongs_to(&staged, python) {
        let _ = fs::remove_dir_all(&staged);
        step(&format!("Making a Python {} environment", python.version), |_| {
            let mut venv = Command::new(&python.executable);
            run(venv.args(["-I", "-m", "venv"]).arg(&staged), |_| {})
        })
    } else {
        Ok(())
    };
    let installed = made.and_then(|()| install(&staged, environment, place, python, wanted));
    if let Err(error) = installed {
        if current.is_none() {
            return Err(error);
        }
        let _ = fs::remove_dir_all(&staged);
        let kept = format!("the environment in `{}` was not changed", environment.display());
        return Err(error.context(kept));
    }
    if staging::put_in_place(&staged, environment)? {
        println!("Running servers use the old environment until they are restarted.");
    }
    println!("The Python environment is complete: {}", environment.display());
    Ok(())
}

/// Installs the packages into `staged`, which will replace `environment`, and prepares it for sandboxes.
fn install(
    staged: &Path,
    environment: &Path,
    place: &str,
    python: &Interpreter,
    wanted: &EnvironmentManifest,
) -> Result<()> {
    let env_python = staged.join("bin/python");
    step(&format!("Installing {}", wanted.packages.join(", ")), |bar| {
        let mut pip = Command::new(&env_python);
        pip.args(["-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"])
            .args(["--progress-bar", "off"])
            .args(&wanted.packages);
        run(&mut pip, |line| bar.set_message(line.to_owned()))
    })?;
    step("Compiling, and preparing fonts", |_| {
        // Sandboxes cannot write here, so everything is compiled and cached now.
        let mut compile = Command::new(&env_python);
        // Without `site`, which would run code of packages (`.pth`, `sitecustomize`) with our privileges.
        compile.args(["-I", "-S", "-m", "compileall", "-q", "-j", "0"]).arg(staged.join("lib"));
        // Ignored: some packages contain files that cannot be compiled.
        let _ = run(&mut compile, |_| {});
        prepare_fonts(staged, &env_python);
        staging::rename_inside(staged, environment)
            .with_context(|| format!("failed to prepare `{}`", staged.display()))?;
        make_inside(staged, environment, place, python)
    })?;
    let text = serde_json::to_string_pretty(wanted)?;
    let path = home::manifest_path(staged);
    fs::write(&path, text).with_context(|| format!("failed to write `{}`", path.display()))
}

/// Whether an interrupted setup with the same interpreter can be continued.
fn belongs_to(environment: &Path, python: &Interpreter) -> bool {
    let config = fs::read_to_string(environment.join("pyvenv.cfg")).unwrap_or_default();
    let version = config.lines().find_map(|line| {
        line.strip_prefix("version")?.trim_start().strip_prefix('=').map(str::trim)
    });
    let executable = fs::canonicalize(environment.join("bin/python")).ok();
    version == Some(&python.version) && executable.as_ref() == Some(&python.executable)
}

/// Prepares the font cache: matplotlib reads every font of the machine once, and sandboxes get a copy of its cache.
fn prepare_fonts(environment: &Path, python: &Path) {
    let cache = environment.join("share/belljar");
    let _ = fs::create_dir_all(&cache);
    // Without matplotlib there is nothing to prepare. No other package is imported, see above.
    let code =
        "import glob, sys; sys.path += glob.glob(sys.argv[1]); import matplotlib.font_manager";
    let packages = environment.join("lib/python3*/site-packages");
    let _ = Command::new(python)
        .args(["-I", "-S", "-c", code])
        .arg(packages)
        .env("MPLCONFIGDIR", &cache)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Writes the parts of the environment that differ inside a sandbox: the configuration, and `bin`, whose links and
/// scripts contain the path of the interpreter in the sandbox.
fn make_inside(staged: &Path, environment: &Path, place: &str, python: &Interpreter) -> Result<()> {
    let inside = staged.join(INSIDE);
    let _ = fs::remove_dir_all(&inside);
    fs::create_dir_all(inside.join("bin"))?;
    let relative = python.executable.strip_prefix(&python.base_prefix);
    let base = if python.base_prefix.starts_with("/usr") {
        python.executable.clone()
    } else {
        Path::new(paths::PYTHON_BASE)
            .join(relative.context("the interpreter is not in its prefix")?)
    };
    let home = base.parent().unwrap_or(Path::new("/")).display();
    let version = &python.version;
    let config =
        format!("home = {home}\ninclude-system-site-packages = false\nversion = {version}\n");
    fs::write(inside.join("pyvenv.cfg"), config)?;

    let bin = staged.join("bin");
    let here = format!("#!{}/", environment.join("bin").display());
    let there = format!("#!{place}/bin/");
    for entry in fs::read_dir(&bin)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        let target = inside.join("bin").join(name);
        if name.to_string_lossy().starts_with("python") {
            std::os::unix::fs::symlink(&base, target)?;
        } else if path.is_file() {
            let contents = fs::read(&path)?;
            let contents = match contents.strip_prefix(here.as_bytes()) {
                Some(rest) => [there.as_bytes(), rest].concat(),
                None => contents,
            };
            fs::write(&target, contents)?;
            fs::set_permissions(&target, fs::metadata(&path)?.permissions())?;
        }
    }
    Ok(())
}

/// Runs a step with a spinner, and reports how it ended.
fn step(name: &str, work: impl FnOnce(&ProgressBar) -> Result<()>) -> Result<()> {
    let bar = if io::stderr().is_terminal() {
        ProgressBar::new_spinner()
    } else {
        eprintln!("{name} ...");
        ProgressBar::hidden()
    };
    bar.set_style(
        ProgressStyle::with_template("{spinner} {prefix} ({elapsed}) {wide_msg:.dim}")
            .expect("the template is valid"),
    );
    bar.set_prefix(name.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    let started = std::time::Instant::now();
    work(&bar)?;
    bar.finish_and_clear();
    eprintln!("{name}: done in {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// Runs a program and shows its output line by line. Our error contains its error output.
fn run(command: &mut Command, mut show: impl FnMut(&str)) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start `{program}`"))?;
    let errors = child.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = pipe.read_to_end(&mut text);
            text
        })
    });
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            show(line?.trim());
        }
    }
    let status = child.wait()?;
    let errors = errors.and_then(|reader| reader.join().ok()).unwrap_or_default();
    if !status.success() {
        let errors = String::from_utf8_lossy(&errors);
        bail!("`{program}` failed ({status}):\n{}", errors.trim_end());
    }
    Ok(())
}

fn write_env_file() -> Result<()> {
    match fs::File::create_new(".env") {
        Ok(mut file) => {
            file.write_all(settings::commented_env_file().as_bytes())
                .context("failed to write .env")?;
            println!("Wrote .env with every setting, commented out.");
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error).context("failed to write .env"),
    }
}

/// Only one setup at a time may install packages.
fn lock(home: &Path) -> Result<FileLock> {
    let path = home.join("setup.lock");
    FileLock::open(&path, || eprintln!("Another setup is running; waiting for it."))
        .with_context(|| format!("failed to lock `{}`", path.display()))
}
