//! Settings of the server.

use std::fmt;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use belljar_engine::admission::Quota;
use belljar_engine::datasets::source::Sources;
use belljar_engine::spec::{Datasets, Storage};
use belljar_engine::{DiskConfig, Dns, RemoteSnapshotConfig, SnapshotConfig, SpillPolicy};
use belljar_runtime::{MIN_VOLUME_SIZE, VolumeKind};

use super::values::Values;
use super::{objects, parse, volumes};

/// The longest path of a socket that the kernel accepts.
const MAX_SOCKET_PATH: usize = 107;

/// Paths are checked only by [`ServerSettings::check`], because other commands do not need them to exist.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    pub listen: Listen,
    pub tls: Option<Tls>,
    /// Lower-case names without ports, besides those of loopback and the listening address.
    pub allowed_hosts: Vec<String>,
    /// `scheme://host[:port]`, in lower case, as browsers send them.
    pub allowed_origins: Vec<String>,
    /// Bytes.
    pub max_body: u64,
    /// Worker threads; `None` means the server's default.
    pub threads: Option<usize>,
    /// Seconds that a client may stall before its connection is closed.
    pub stall_s: u64,
    /// Seconds that a stopping server waits for requests in progress.
    pub drain_s: u64,

    pub storage: Storage,
    pub datasets: Datasets,
    pub sessions_root: PathBuf,
    /// The size limit of a session's files on disk.
    pub session_size: u64,
    /// How these files are stored; `None`: with an enforced size if that is possible.
    pub session_kind: Option<VolumeKind>,
    /// Seconds after which ended sessions are removed with their files; `None`: never.
    pub session_retention_s: Option<u64>,
    /// The directory for `LOCAL_RO`.
    pub datasets_dir: Option<PathBuf>,
    /// An error here is reported only by the server, like a missing file.
    dataset_sources: Result<Arc<Sources>, String>,
    /// The cache of datasets, and its size.
    pub dataset_cache: PathBuf,
    pub dataset_cache_bytes: u64,
    /// The largest dataset.
    pub dataset_bytes: u64,
    pub ttl_s: u64,
    /// At least as long as `ttl_s`.
    pub max_ttl_s: u64,
    pub idle_s: Option<u64>,
    /// When large values of idle sessions are written to disk.
    pub spill: Option<SpillPolicy>,
    /// Snapshots: their directory, size limits and schedule.
    pub snapshots: SnapshotConfig,
    /// Seconds that sandboxes wait for a new server.
    pub alone_for_s: u64,
    /// Warm sandboxes to keep.
    pub pool: usize,
    /// The limits for all sandboxes together.
    pub total: Quota,
    /// The audit log contains the code itself, not only its hash.
    pub audit_code: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Files in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl ServerSettings {
    pub(super) fn read(
        values: &Values<'_>,
        home: &Path,
        state_dir: &Path,
    ) -> Result<ServerSettings> {
        let ttl_s = values.read("BELLJAR_TTL", parse::seconds)?;
        let max_ttl_s = values.read("BELLJAR_MAX_TTL", parse::seconds)?;
        if ttl_s > max_ttl_s {
            bail!("BELLJAR_TTL={ttl_s}: expected at most BELLJAR_MAX_TTL, which is {max_ttl_s}");
        }
        Ok(ServerSettings {
            listen: match values.path("BELLJAR_UNIX")? {
                Some(path) => Listen::Unix(path),
                None => Listen::Tcp(values.read("BELLJAR_LISTEN", parse::address)?),
            },
            tls: match (values.path("BELLJAR_TLS_CERT")?, values.path("BELLJAR_TLS_KEY")?) {
                (Some(cert), Some(key)) => Some(Tls { cert, key }),
                (None, None) => None,
                (Some(_), None) => bail!("BELLJAR_TLS_CERT is set and BELLJAR_TLS_KEY is not"),
                (None, Some(_)) => bail!("BELLJAR_TLS_KEY is set and BELLJAR_TLS_CERT is not"),
            },
            allowed_hosts: values.list("BELLJAR_ALLOWED_HOSTS", parse::host)?,
            allowed_origins: values.list("BELLJAR_ALLOWED_ORIGINS", parse::origin)?,
            max_body: values.read("BELLJAR_MAX_BODY", parse::size_from(1 << 10))?,
            threads: values.read("BELLJAR_THREADS", parse::threads)?,
            stall_s: values.read("BELLJAR_STALL", parse::number(1..=3600))?,
            drain_s: values.read("BELLJAR_DRAIN", parse::number(0..=3600))?,
            storage: values.read("SESSION_STORAGE", parse::storage)?,
            datasets: values.read("DATASET_ACCESS", parse::datasets)?,
            sessions_root: values.path_or("SESSIONS_ROOT", || Ok(home.join("sessions")))?,
            session_size: values.read("BELLJAR_SESSION_SIZE", parse::size_from(MIN_VOLUME_SIZE))?,
            session_kind: values.read("BELLJAR_SESSION_FILES", volumes::kind)?,
            session_retention_s: values.limit("BELLJAR_SESSION_RETENTION", parse::seconds_or_0)?,
            datasets_dir: values.path("DATASETS_HOST_RO")?,
            dataset_cache: values.path_or("BELLJAR_DATASET_CACHE", || Ok(home.join("datasets")))?,
            dataset_cache_bytes: values.read("BELLJAR_DATASET_CACHE_SIZE", parse::size_from(0))?,
            dataset_bytes: values.read("BELLJAR_DATASET_SIZE", parse::size_from(1))?,
            dataset_sources: dataset_sources(values),
            ttl_s,
            max_ttl_s,
            idle_s: values.limit("BELLJAR_IDLE_TIMEOUT", parse::seconds_or_0)?,
            spill: spill(values)?,
            snapshots: SnapshotConfig {
                directory: values
                    .path_or("BELLJAR_SNAPSHOT_DIR", || Ok(state_dir.join("frozen")))?,
                total_bytes: Some(values.read("BELLJAR_SNAPSHOT_SIZE", parse::size_from(0))?),
                tenant_bytes: values.limit("BELLJAR_TENANT_SNAPSHOT_SIZE", parse::size_from(0))?,
                tenant_sleeping: values
                    .limit("BELLJAR_TENANT_SLEEPING", parse::number(0..=u64::MAX))?,
                hibernate_after: values
                    .limit("BELLJAR_HIBERNATE_SEC", parse::seconds_or_0)?
                    .map(Duration::from_secs),
                remote: objects::read(values)?.map(|objects| {
                    // The server sets the class when it knows its runtime.
                    RemoteSnapshotConfig { objects, class: String::new() }
                }),
            },
            alone_for_s: values.read("BELLJAR_ALONE", parse::seconds_or_0)?,
            pool: values.read("BELLJAR_POOL", parse::count(0..=1000))?,
            total: Quota {
                sessions: values.limit("BELLJAR_MAX_SESSIONS", parse::number(0..=u64::MAX))?,
                sleeping: None,
                memory: values.limit("BELLJAR_MAX_MEMORY", parse::size_from(0))?,
                pids: values.limit("BELLJAR_MAX_PIDS", parse::number(0..=u64::MAX))?,
            },
            audit_code: values.read("BELLJAR_AUDIT_CODE", parse::yes_or_no)?,
        })
    }

    /// Checks that files and directories exist, so that a server fails at its start and not at its first request.
    pub fn check(&self) -> Result<()> {
        self.dataset_sources()?;
        match (&self.datasets_dir, self.datasets) {
            (None, Datasets::LocalRo) => {
                bail!("DATASET_ACCESS=LOCAL_RO needs a directory; set DATASETS_HOST_RO")
            }
            // Any session may request LOCAL_RO, so the directory is checked even if it is not the default.
            (Some(path), _) => {
                fs::read_dir(path).with_context(|| {
                    format!("DATASETS_HOST_RO: failed to read the directory `{}`", path.display())
                })?;
            }
            _ => {}
        }
        if let Some(tls) = &self.tls {
            for (name, path) in [("BELLJAR_TLS_CERT", &tls.cert), ("BELLJAR_TLS_KEY", &tls.key)] {
                let context = || format!("{name}: failed to open `{}`", path.display());
                let file = File::open(path).with_context(context)?;
                if !file.metadata().with_context(context)?.is_file() {
                    bail!("{name}: `{}` is not a file", path.display());
                }
            }
        }
        if let Listen::Unix(path) = &self.listen {
            let length = path.as_os_str().len();
            if length > MAX_SOCKET_PATH {
                bail!(
                    "BELLJAR_UNIX: `{}` has {length} bytes; a socket's path may have at most \
                     {MAX_SOCKET_PATH}",
                    path.display()
                );
            }
            if !path.parent().is_some_and(Path::is_dir) {
                bail!("BELLJAR_UNIX: there is no directory for `{}`", path.display());
            }
        }
        Ok(())
    }

    /// How the files of sessions on disk are stored.
    #[must_use]
    pub fn disk(&self, strict: bool) -> DiskConfig {
        DiskConfig {
            kind: self.session_kind,
            size: self.session_size,
            retention_s: self.session_retention_s,
            strict,
        }
    }

    /// The sources from which the server fetches datasets.
    pub fn dataset_sources(&self) -> Result<Arc<Sources>> {
        let sources = self.dataset_sources.as_ref();
        sources.map(Arc::clone).map_err(|why| anyhow!("BELLJAR_DATASET_SOURCES: {why}"))
    }
}

/// Reads the dataset sources. Secrets may be in the environment, or in the same `.env` as the setting.
fn dataset_sources(values: &Values<'_>) -> Result<Arc<Sources>, String> {
    let text = values.text("BELLJAR_DATASET_SOURCES");
    if text.trim().is_empty() {
        return Ok(Arc::default());
    }
    let secret = |name: &str| std::env::var(name).ok().or_else(|| (values.lookup)(name));
    // An error in BELLJAR_DNS is reported by the network settings.
    let dns = Dns::parse(&values.text("BELLJAR_DNS")).unwrap_or_default();
    Ok(Arc::new(Sources::parse(&text, secret)?.with_dns(Arc::new(dns))))
}

fn spill(values: &Values<'_>) -> Result<Option<SpillPolicy>> {
    let after = values.limit("IDLE_HIBERNATE_SEC", parse::seconds_or_0)?;
    let frame_bytes = values.read("BELLJAR_SPILL_DF_BYTES", parse::size_from(0))?;
    let array_bytes = values.read("BELLJAR_SPILL_NP_BYTES", parse::size_from(0))?;
    let policy =
        |seconds| SpillPolicy { after: Duration::from_secs(seconds), frame_bytes, array_bytes };
    Ok(after.map(policy))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::tests::with;
    use super::*;

    fn check(pairs: &[(&str, &str)]) -> Result<()> {
        with(pairs).unwrap().server.check()
    }

    #[test]
    fn defaults_are_those_of_the_design() {
        let server = with(&[]).unwrap().server;
        assert_eq!(server.listen.to_string(), "127.0.0.1:8000");
        assert_eq!((server.storage, server.datasets), (Storage::Tmpfs, Datasets::None));
        assert_eq!((server.ttl_s, server.max_ttl_s, server.idle_s), (3600, 30 * 86400, None));
        let total = Quota { sessions: Some(1000), ..Quota::default() };
        assert_eq!((server.total, server.pool, server.threads), (total, 4, None));
        assert_eq!(server.sessions_root, Path::new("/x/sessions"));
        server.check().unwrap();
    }

    #[test]
    fn values_are_taken_as_people_write_them() {
        let server = with(&[
            ("BELLJAR_LISTEN", "LocalHost:0"),
            ("SESSION_STORAGE", "bind"),
            ("DATASET_ACCESS", "api_tmpfs"),
            ("BELLJAR_MAX_SESSIONS", "0"),
            ("BELLJAR_MAX_MEMORY", "1g"),
            ("BELLJAR_IDLE_TIMEOUT", "0"),
            ("BELLJAR_THREADS", "3"),
            ("BELLJAR_ALLOWED_HOSTS", " Box.example.com  10.0.0.7 [fd00::1] "),
            ("BELLJAR_ALLOWED_ORIGINS", "https://App.example.com/ http://localhost:3000"),
        ]);
        let server = server.unwrap().server;
        assert_eq!(server.listen, Listen::Tcp("127.0.0.1:0".parse().unwrap()));
        assert_eq!((server.storage, server.datasets), (Storage::Bind, Datasets::Api));
        assert_eq!(server.total, Quota { memory: Some(1 << 30), ..Quota::default() });
        assert_eq!((server.idle_s, server.threads), (None, Some(3)));
        assert_eq!(server.allowed_hosts, ["box.example.com", "10.0.0.7", "[fd00::1]"]);
        assert_eq!(server.allowed_origins, ["https://app.example.com", "http://localhost:3000"]);
    }

    #[test]
    fn half_a_certificate_and_a_life_beyond_the_longest_are_refused() {
        for pairs in [
            &[("BELLJAR_TLS_CERT", "c")][..],
            &[("BELLJAR_TLS_KEY", "k")],
            &[("BELLJAR_TTL", "11"), ("BELLJAR_MAX_TTL", "10")],
        ] {
            let error = with(pairs).unwrap_err().to_string();
            assert!(error.contains(pairs[0].0), "{error}");
        }
    }

    #[test]
    fn dataset_sources_are_the_servers_concern_and_their_secrets_nobodys() {
        let sources = |headers: &str| {
            format!(r#"{{"s/": {{"url": "https://h/{{name}}", "headers": {{{headers}}}}}}}"#)
        };
        let good = sources(r#""Authorization": "Bearer ${SALES_TOKEN}""#);
        let pairs = [("BELLJAR_DATASET_SOURCES", good.as_str()), ("SALES_TOKEN", "hunter2")];
        let settings = with(&pairs).unwrap();
        assert!(settings.server.dataset_sources().unwrap().knows("s/a"));
        assert!(!format!("{settings:?}").contains("hunter2"));
        assert!(with(&[]).unwrap().server.dataset_sources().unwrap().is_empty());

        for (value, why) in [
            (good.as_str(), "SALES_TOKEN"),
            (&sources(r#""A": 2, "B": "hunter2""#), "header `A`"),
            ("hunter2", "not valid JSON"),
            ("@/nowhere/at/all", "/nowhere/at/all"),
        ] {
            let settings = with(&[("BELLJAR_DATASET_SOURCES", value)]).unwrap();
            assert!(!format!("{settings:?}").contains("hunter2"));
            let error = settings.server.check().unwrap_err().to_string();
            assert!(error.starts_with("BELLJAR_DATASET_SOURCES: "), "{error}");
            assert!(error.contains(why) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn what_is_missing_is_found_by_the_check_and_not_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let (file, nothing) = (path("file"), path("nothing"));
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let long = path(&"x".repeat(120));
        for (pairs, named) in [
            (&[("DATASET_ACCESS", "local_ro")][..], "DATASETS_HOST_RO"),
            (&[("DATASET_ACCESS", "LOCAL_RO"), ("DATASETS_HOST_RO", &nothing)], "DATASETS_HOST_RO"),
            (&[("DATASET_ACCESS", "LOCAL_RO"), ("DATASETS_HOST_RO", &file)], "DATASETS_HOST_RO"),
            (&[("DATASETS_HOST_RO", &nothing)], "DATASETS_HOST_RO"),
            (&[("BELLJAR_TLS_CERT", &file), ("BELLJAR_TLS_KEY", &nothing)], "BELLJAR_TLS_KEY"),
            (&[("BELLJAR_TLS_CERT", "/"), ("BELLJAR_TLS_KEY", &file)], "BELLJAR_TLS_CERT"),
            (&[("BELLJAR_UNIX", &long)], "BELLJAR_UNIX"),
            (&[("BELLJAR_UNIX", "/nowhere/at/all")], "BELLJAR_UNIX"),
        ] {
            let error = format!("{:#}", check(pairs).unwrap_err());
            assert!(error.contains(named), "{error}");
        }
        check(&[("DATASET_ACCESS", "LOCAL_RO"), ("DATASETS_HOST_RO", &path("."))]).unwrap();
        check(&[("BELLJAR_UNIX", &path("socket"))]).unwrap();
    }
}
