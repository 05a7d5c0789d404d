//! Settings: flags override the environment, which overrides `.env`, which overrides defaults. Every variable is declared
//! once, in [`variables`], and parsed once: here, in [`server`], [`artifacts`], [`network`] or [`volumes`].

mod artifacts;
mod backend;
mod cluster;
mod dotenv;
mod local;
mod network;
mod objects;
mod openai;
mod parse;
#[cfg(test)]
mod reference;
mod server;
mod unknown;
mod values;
pub mod variables;
mod volumes;

use std::collections::HashMap;
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use belljar_api::BrowserConfig;
use belljar_engine::store::DatabaseUrl;
use belljar_image::Login;
use belljar_runtime::Limits;

pub use artifacts::ArtifactSettings;
pub use backend::{BackendSettings, Choice, DOCKER_IMAGE};
pub use cluster::ClusterSettings;
pub(crate) use dotenv::commented as commented_env_file;
pub use local::LocalServer;
pub use network::NetworkSettings;
pub use openai::{DEFAULT_MODEL, OpenAi};
pub use server::{Listen, ServerSettings, Tls};
use values::Values;
pub use volumes::VolumeSettings;

/// All settings, resolved: paths are absolute, sizes are in bytes.
#[derive(Debug, Clone)]
pub struct Settings {
    pub home: PathBuf,
    pub run_dir: PathBuf,
    /// The server's database and audit log.
    pub state_dir: PathBuf,
    /// The Postgres database; `None` means SQLite files in `state_dir`.
    pub database: Option<DatabaseUrl>,
    /// Artifacts of ephemeral runs.
    pub outputs_dir: PathBuf,
    /// A program on the `PATH`, or its path.
    pub python: PathBuf,
    pub packages: Vec<String>,
    pub preload: Vec<String>,
    /// The largest size of an unpacked image.
    pub image_bytes: u64,
    /// The login at registries, if set.
    pub registry_login: Option<Login>,
    pub limits: Limits,
    pub cgroup_parent: String,
    pub backend: BackendSettings,
    /// Directories that sessions may mount at `/workspace`.
    pub workspaces: Vec<PathBuf>,
    pub strict: bool,
    pub log: LogSettings,
    pub bench_image: Option<String>,
    pub server: ServerSettings,
    /// Nodes and gateways.
    pub cluster: ClusterSettings,
    pub artifacts: ArtifactSettings,
    pub network: NetworkSettings,
    pub volumes: VolumeSettings,
    pub browser: BrowserConfig,
    /// The model for browser tasks on a local server, if the user has a key.
    pub openai: Result<Option<OpenAi>, String>,
    pub client: ClientSettings,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Valid; `None` means the default of the command.
    pub filter: Option<String>,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// Settings of commands that are clients of a server.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// The server, if it is set.
    pub url: Option<ServerUrl>,
    /// The server that the user's Python programs share.
    pub local: LocalServer,
    pub api_key: Option<ApiKey>,
}

impl ClientSettings {
    /// The server of the commands: the one that is set, else the local server of this user if it runs, else the default
    /// address of `belljar serve`.
    #[must_use]
    pub fn server(&self) -> ServerUrl {
        match &self.url {
            Some(url) => url.clone(),
            None if self.local.is_running() => ServerUrl::Local(self.local.socket().to_owned()),
            None => ServerUrl::Http(DEFAULT_URL.to_owned()),
        }
    }
}

/// Where `belljar serve` listens by default.
const DEFAULT_URL: &str = "http://127.0.0.1:8000";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerUrl {
    /// With its scheme, without a slash at the end.
    Http(String),
    Unix(PathBuf),
    /// The socket of the user's own local server: only a process of this user may listen there.
    Local(PathBuf),
}

/// A secret that `Debug` does not show.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// Only for the header of a request.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey([secret])")
    }
}

impl Settings {
    /// Reads the environment and the `.env` of the current directory.
    pub fn load() -> Result<Settings> {
        Settings::load_with(&[])
    }

    /// The same, with values from the command line, by the names of their variables. An empty value overrides one in the
    /// environment.
    pub fn load_with(flags: &[(&'static str, String)]) -> Result<Settings> {
        let file = match fs::read_to_string(".env") {
            Ok(text) => dotenv::parse(&text).context("failed to read .env")?,
            // A directory of this name is a Python virtual environment.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::IsADirectory
                ) =>
            {
                HashMap::new()
            }
            Err(error) => return Err(error).context("failed to read .env"),
        };
        let environment = ours(env::vars_os())?;
        unknown::refuse(environment.keys(), "the environment")?;
        unknown::refuse(file.keys(), ".env")?;
        Settings::from_lookup(&|name| {
            let flag = flags.iter().find(|(flag, _)| *flag == name).map(|(_, value)| value);
            flag.or_else(|| environment.get(name)).or_else(|| file.get(name)).cloned()
        })
    }

    fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Settings> {
        let values = Values { lookup };
        let word = |text: &str| Some(text.to_owned());
        let home = values.path_or("BELLJAR_HOME", default_home)?;
        let state_dir = values.path_or("BELLJAR_STATE_DIR", || Ok(home.join("state")))?;
        let run_dir = values.path_or("BELLJAR_RUN_DIR", default_run_dir)?;
        let server = ServerSettings::read(&values, &home, &state_dir)?;
        Ok(Settings {
            artifacts: ArtifactSettings::read(&values, &home, &state_dir)?,
            cluster: ClusterSettings::read(&values)?,
            network: NetworkSettings::read(&values)?,
            volumes: VolumeSettings::read(&values, &home)?,
            browser: BrowserConfig {
                idle_s: values.read("BELLJAR_BROWSER_IDLE", parse::seconds)?,
                model: values.optional("BELLJAR_BROWSER_MODEL", word)?,
                model_url: values.optional("BELLJAR_BROWSER_MODEL_URL", parse::public_url)?,
            },
            openai: OpenAi::read(&values),
            workspaces: values.paths("BELLJAR_WORKSPACES")?,
            backend: BackendSettings::read(&values, &run_dir)?,
            run_dir,
            state_dir,
            database: database(&values)?,
            outputs_dir: values.path("BELLJAR_OUTPUTS_DIR")?.expect("its default is not empty"),
            python: values.text("BELLJAR_PYTHON").into(),
            packages: values.list("BELLJAR_PACKAGES", word)?,
            preload: values.list("BELLJAR_PRELOAD", word)?,
            registry_login: registry_login(&values)?,
            image_bytes: values.read("BELLJAR_IMAGE_LIMIT", parse::size_from(1 << 20))?,
            limits: limits(&values)?,
            cgroup_parent: values.text("BELLJAR_CGROUP_PARENT"),
            strict: values.read("BELLJAR_STRICT", parse::yes_or_no)?,
            log: LogSettings {
                filter: values.optional("BELLJAR_LOG", parse::log_filter)?,
                format: values.read("BELLJAR_LOG_FORMAT", parse::log_format)?,
            },
            bench_image: values.optional("BELLJAR_BENCH_IMAGE", word)?,
            client: client(&values)?,
            server,
            home,
        })
    }
}

/// The error does not contain the value, which has a password.
fn database(values: &Values<'_>) -> Result<Option<DatabaseUrl>> {
    let text = values.text("BELLJAR_DATABASE_URL");
    if text.trim().is_empty() {
        return Ok(None);
    }
    DatabaseUrl::parse(text.trim()).map(Some).context("BELLJAR_DATABASE_URL is not valid")
}

fn client(values: &Values<'_>) -> Result<ClientSettings> {
    let local = LocalServer::read(values)?;
    let url = match values.text("BELLJAR_URL").trim() {
        "local" => Some(ServerUrl::Local(local.socket().to_owned())),
        _ => values.optional("BELLJAR_URL", parse::url)?,
    };
    Ok(ClientSettings { url, local, api_key: values.optional("BELLJAR_API_KEY", parse::api_key)? })
}

/// The limits of a sandbox. A size of files in RAM that is set raises the memory, or is an error.
fn limits(values: &Values<'_>) -> Result<Limits> {
    let mut memory = values.read("BELLJAR_MEMORY", parse::size_from(Limits::MIN_MEMORY))?;
    let tmpfs = values.optional("TMPFS_SIZE_MB", parse::number(1..=1 << 24))?.map(|mb| mb << 20);
    if let Some(tmpfs) = tmpfs {
        if !values.is_set("BELLJAR_MEMORY") {
            memory = memory.max(Limits::memory_for_tmpfs(tmpfs));
        }
        if let Some(why) = Limits::why_no_tmpfs(tmpfs, memory) {
            bail!(
                "TMPFS_SIZE_MB={}: {why} by BELLJAR_MEMORY; raise that, or leave one of the two out",
                tmpfs >> 20
            );
        }
    }
    Ok(Limits {
        memory,
        millicpus: values.read("BELLJAR_CPUS", parse::cpus)?,
        pids: values.read("BELLJAR_PIDS", parse::number(4..=100_000))?,
        tmpfs: tmpfs.unwrap_or(Limits::default().tmpfs),
    })
}

fn registry_login(values: &Values<'_>) -> Result<Option<Login>> {
    let word = |text: &str| Some(text.to_owned());
    let user = values.optional("BELLJAR_REGISTRY_USER", word)?;
    let password = values.optional("BELLJAR_REGISTRY_PASSWORD", word)?;
    match (user, password) {
        (Some(user), Some(password)) => Ok(Some(Login { user, password })),
        (None, None) => Ok(None),
        (Some(_), None) => {
            bail!("BELLJAR_REGISTRY_USER is set and BELLJAR_REGISTRY_PASSWORD is not")
        }
        (None, Some(_)) => {
            bail!("BELLJAR_REGISTRY_PASSWORD is set and BELLJAR_REGISTRY_USER is not")
        }
    }
}

/// The variables of the environment that are ours.
fn ours(
    environment: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
) -> Result<HashMap<String, String>> {
    let mut found = HashMap::new();
    for (name, value) in environment {
        // A name that is not UTF-8 is not one of ours.
        let Ok(name) = name.into_string() else { continue };
        if name.starts_with(unknown::PREFIX) || variables::declared(&name).is_some() {
            let value = value.into_string();
            let Ok(value) = value else { bail!("the value of {name} is not text in UTF-8") };
            found.insert(name, value);
        }
    }
    Ok(found)
}

fn default_home() -> Result<PathBuf> {
    if belljar_sys::privileges::is_root() {
        return Ok("/var/lib/belljar".into());
    }
    let path = match (env::var_os("XDG_DATA_HOME"), env::var_os("HOME")) {
        (Some(data), _) if !data.is_empty() => Path::new(&data).join("belljar"),
        (_, Some(home)) if !home.is_empty() => Path::new(&home).join(".local/share/belljar"),
        _ => bail!("HOME is not set; set BELLJAR_HOME to a directory of yours"),
    };
    std::path::absolute(&path).with_context(|| format!("failed to resolve `{}`", path.display()))
}

fn default_run_dir() -> Result<PathBuf> {
    if belljar_sys::privileges::is_root() {
        return Ok("/run/belljar".into());
    }
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => Ok(Path::new(&dir).join("belljar")),
        _ => {
            let (uid, _) = belljar_sys::privileges::own_ids();
            Ok(env::temp_dir().join(format!("belljar-{uid}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use variables::GROUPS;

    /// Settings with these values, as if nothing else were set.
    pub(super) fn with(pairs: &[(&str, &str)]) -> Result<Settings> {
        let places = [("BELLJAR_HOME", "/x"), ("BELLJAR_RUN_DIR", "/y")];
        let values: HashMap<_, _> = places.iter().chain(pairs).copied().collect();
        Settings::from_lookup(&|name| values.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn defaults_are_those_of_the_design() {
        let settings = with(&[]).unwrap();
        assert_eq!(settings.limits, Limits::default());
        assert!(!settings.strict);
        assert!(settings.preload.contains(&"pandas".to_owned()));
        assert_eq!(settings.state_dir, Path::new("/x/state"));
        assert_eq!(settings.outputs_dir, env::current_dir().unwrap().join("outputs"));
        assert_eq!(settings.log, LogSettings { filter: None, format: LogFormat::Text });
        assert_eq!(settings.client.url, None);
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_name_and_what_is_accepted() {
        for (name, value) in [
            ("BELLJAR_MEMORY", "lots"),
            ("BELLJAR_MEMORY", "1M"),
            ("BELLJAR_CPUS", "0"),
            ("BELLJAR_PIDS", "-1"),
            ("TMPFS_SIZE_MB", "0"),
            ("BELLJAR_STRICT", "perhaps"),
            ("SESSION_STORAGE", "disk"),
            ("DATASET_ACCESS", "all"),
            ("SANDBOX_IMAGE", "two words"),
            ("BELLJAR_IMAGE_LIMIT", "1K"),
            ("BELLJAR_BACKEND", "podman"),
            ("BELLJAR_GPUS", "some"),
            ("DOCKER_HOST", "/var/run/docker.sock"),
            ("BELLJAR_LISTEN", "example.com"),
            ("BELLJAR_POOL", "1001"),
            ("BELLJAR_MAX_SESSIONS", "many"),
            ("BELLJAR_MAX_MEMORY", "-1"),
            ("BELLJAR_MAX_PIDS", "1.5"),
            ("BELLJAR_TTL", "0"),
            ("BELLJAR_MAX_TTL", "99999999999"),
            ("BELLJAR_IDLE_TIMEOUT", "soon"),
            ("BELLJAR_ALONE", "1h"),
            ("BELLJAR_STALL", "0"),
            ("BELLJAR_DRAIN", "3601"),
            ("BELLJAR_THREADS", "0"),
            ("BELLJAR_AUDIT_CODE", "2"),
            ("BELLJAR_LOG", "belljar=loud"),
            ("BELLJAR_LOG_FORMAT", "xml"),
            ("BELLJAR_ALLOWED_HOSTS", "http://a"),
            ("BELLJAR_ALLOWED_ORIGINS", "*"),
            ("BELLJAR_MAX_BODY", "10"),
            ("BELLJAR_ARTIFACT_SIZE", "big"),
            ("BELLJAR_LINK_TTL", "0"),
            ("BELLJAR_PUBLIC_URL", "sandbox.example.com"),
            ("BELLJAR_URL", "box"),
        ] {
            let error = with(&[(name, value)]).unwrap_err().to_string();
            let accepts = variables::declared(name).unwrap().accepts;
            assert_eq!(error, format!("{name}={value}: expected {accepts}"));
        }
    }

    #[test]
    fn a_size_of_files_in_ram_that_is_set_is_had_or_refused() {
        let sizes = |pairs: &[(&str, &str)]| {
            with(pairs).map(|settings| {
                let limits = settings.limits;
                (limits.effective_tmpfs() >> 20, limits.memory >> 20)
            })
        };
        assert_eq!(sizes(&[]).unwrap(), (384, 512));
        assert_eq!(sizes(&[("BELLJAR_MEMORY", "4G")]).unwrap(), (1024, 4096));
        assert_eq!(sizes(&[("TMPFS_SIZE_MB", "1024")]).unwrap(), (1024, 1366));
        assert_eq!(sizes(&[("TMPFS_SIZE_MB", "64")]).unwrap(), (64, 512));
        let both = [("TMPFS_SIZE_MB", "1024"), ("BELLJAR_MEMORY", "2G")];
        assert_eq!(sizes(&both).unwrap(), (1024, 2048));
        let small = [("TMPFS_SIZE_MB", "1024"), ("BELLJAR_MEMORY", "1G")];
        let error = sizes(&small).unwrap_err().to_string();
        for part in ["TMPFS_SIZE_MB=1024", "1366 MiB", "the limit is 1024 MiB", "BELLJAR_MEMORY"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let error = with(&[("BELLJAR_API_KEY", "bjk_ not one")]).unwrap_err().to_string();
        assert!(error.contains("BELLJAR_API_KEY") && !error.contains("not one"), "{error}");
        let settings = with(&[("BELLJAR_API_KEY", "bjk_1234")]).unwrap();
        assert!(!format!("{settings:?}").contains("bjk_1234"));
        assert_eq!(settings.client.api_key.unwrap().reveal(), "bjk_1234");
    }

    #[test]
    fn every_declared_variable_is_read_once_declared_once_and_has_a_valid_default() {
        let read = RefCell::new(BTreeSet::new());
        for (unix, blobs) in [("", ""), ("/socket", "s3://bucket")] {
            Settings::from_lookup(&|name| {
                read.borrow_mut().insert(name.to_owned());
                match name {
                    "BELLJAR_UNIX" => Some(unix.to_owned()),
                    // Without it, the variables of S3 belong to other programs and are not read.
                    "BELLJAR_BLOBS_URL" => Some(blobs.to_owned()),
                    _ => None,
                }
            })
            .unwrap();
        }
        let declared: Vec<_> = GROUPS.iter().flat_map(|group| group.variables).collect();
        let names: BTreeSet<String> = declared.iter().map(|it| it.name.to_owned()).collect();
        assert_eq!(names.len(), declared.len(), "a variable is declared twice");
        assert_eq!(read.into_inner(), names);
        for variable in declared {
            let says_what_empty_means = !variable.when_empty.is_empty();
            assert_eq!(variable.default.is_empty(), says_what_empty_means, "{}", variable.name);
        }
    }

    #[test]
    fn values_that_are_no_text_are_refused_where_they_are_ours() {
        let not_text = || OsString::from_vec(vec![0xff]);
        let error = ours([("TMPFS_SIZE_MB".into(), not_text())].into_iter()).unwrap_err();
        assert!(error.to_string().contains("TMPFS_SIZE_MB"), "{error}");
        assert!(ours([("LS_COLORS".into(), not_text())].into_iter()).unwrap().is_empty());
    }
}
