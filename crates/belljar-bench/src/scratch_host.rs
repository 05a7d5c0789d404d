//! A temporary server to measure, with its own directories and control groups.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use belljar_sys::cgroup::Parent;
use belljar_sys::{privileges, process, procfs};
use serde_json::Value;

use crate::BenchConfig;
use crate::connection::{Connection, request};

const SIGTERM: i32 = 15;

/// How long a server may take to start, and then to finish its background work.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long it may take to stop, with a thousand sessions.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

/// How often a condition is checked while waiting for it.
const POLL: Duration = Duration::from_millis(1);

/// Directories and control groups that only servers of this benchmark use; dropping it removes them.
#[derive(Debug)]
pub(crate) struct ScratchHost {
    directory: PathBuf,
    cgroup_parent: String,
    program: PathBuf,
    /// Additional settings, besides those that isolate it.
    more: Vec<(&'static str, String)>,
}

impl ScratchHost {
    pub(crate) fn new(
        config: &BenchConfig,
        more: Vec<(&'static str, String)>,
    ) -> Result<ScratchHost> {
        let name = format!("belljar-bench-{}", &process::random_name()[..12]);
        let directory = std::env::temp_dir().join(&name);
        fs::create_dir(&directory)
            .with_context(|| format!("failed to make `{}`", directory.display()))?;
        Ok(ScratchHost { directory, cgroup_parent: name, program: config.program.clone(), more })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn settings(&self, pool: usize) -> Vec<(&'static str, String)> {
        let path = |name: &str| self.directory.join(name).display().to_string();
        let mut settings = vec![
            ("BELLJAR_STATE_DIR", path("state")),
            ("BELLJAR_RUN_DIR", path("run")),
            ("BELLJAR_OUTPUTS_DIR", path("outputs")),
            ("SESSIONS_ROOT", path("sessions")),
            ("BLOBSTORE_DIR", path("blobstore")),
            ("ARTIFACTS_DB", path("artifacts.db")),
            ("BELLJAR_EXPORTS_DIR", path("exports")),
            ("BELLJAR_DATASET_CACHE", path("datasets")),
            ("BELLJAR_CGROUP_PARENT", self.cgroup_parent.clone()),
            ("BELLJAR_POOL", pool.to_string()),
            ("BELLJAR_TLS_CERT", String::new()),
            ("BELLJAR_TLS_KEY", String::new()),
            ("BELLJAR_MAX_SESSIONS", "0".into()),
            ("BELLJAR_MAX_MEMORY", "0".into()),
            ("BELLJAR_MAX_PIDS", "0".into()),
            ("BELLJAR_LOG", "warn".into()),
        ];
        settings.extend_from_slice(&self.more);
        settings
    }
}

impl Drop for ScratchHost {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
        // Without root there are no control groups to remove.
        if !privileges::is_root() {
            return;
        }
        if let Ok(parent) = Parent::prepare(&self.cgroup_parent, true) {
            for name in parent.names() {
                let left = parent.adopt(&name);
                left.kill();
                let _ = left.remove();
            }
            let _ = parent.adopt("").remove();
        }
    }
}

/// A running server; dropping it stops it with its sessions.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// The time just before the binary was executed.
    pub(crate) started: Instant,
}

impl Server {
    /// Starts a server and waits until it listens.
    pub(crate) fn start(host: &ScratchHost, pool: usize) -> Result<Server> {
        let started = Instant::now();
        let mut child = Command::new(&host.program)
            .args(["serve", "--stop-sessions", "--listen", "127.0.0.1:0"])
            .envs(host.settings(pool))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to start a server")?;
        let stderr = child.stderr.take().context("the server has no standard error")?;
        let (sender, output) = mpsc::channel();
        // Reads to the end, so that the server never blocks on a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                tracing::debug!("server: {line}");
                let _ = sender.send(line);
            }
        });
        let mut lines = Vec::new();
        while let Ok(line) = output.recv_timeout(START_TIMEOUT) {
            if let Some((_, address)) = line.split_once(" listens on http://") {
                let address = address
                    .parse()
                    .context("the server listens at an address that is not understood")?;
                return Ok(Server { child, address, started });
            }
            lines.push(line);
        }
        let _ = child.kill();
        let _ = child.wait();
        bail!("the server did not start: {}", lines.join("; "))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it serves all sessions of an earlier server.
    pub(crate) async fn ready(&self) -> Result<()> {
        let mut connection = Connection::connect(self.address).await?;
        let request = request("GET", "/readyz", &Value::Null);
        while connection.call(&request).await?.status != 200 {
            self.check_start_timeout("become ready")?;
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Waits until its background work is done: the zygote is warm and the limits are tested.
    pub(crate) async fn settled(&self, connection: &mut Connection) -> Result<()> {
        let request = request("GET", "/healthz", &Value::Null);
        loop {
            let health = connection.call(&request).await?.json()?;
            let zygote = health["zygote"].as_str().unwrap_or_default();
            if zygote.starts_with("failed") || zygote == "absent" {
                bail!("there is no zygote: {zygote}");
            }
            if zygote == "warm" && health["enforced"].is_object() {
                return Ok(());
            }
            self.check_start_timeout("finish its work in the background")?;
            tokio::time::sleep(POLL * 10).await;
        }
    }

    /// Waits until this many warm sandboxes are ready.
    pub(crate) async fn pool_full(&self, connection: &mut Connection, pool: usize) -> Result<()> {
        let (request, begun) = (request("GET", "/metrics", &Value::Null), Instant::now());
        let full = format!("\nbelljar_pool_ready {pool}\n");
        loop {
            let response = connection.call(&request).await?;
            if String::from_utf8_lossy(response.body).contains(&full) {
                return Ok(());
            }
            if begun.elapsed() > START_TIMEOUT {
                bail!("the server's pool does not fill");
            }
            tokio::time::sleep(POLL * 2).await;
        }
    }

    /// Resident memory of the server process itself, in bytes.
    pub(crate) fn rss(&self) -> Option<u64> {
        procfs::status_field(self.pid(), "VmRSS").map(|kib| kib * 1024)
    }

    /// The peak resident memory since [`Server::forget_peak`], in bytes.
    pub(crate) fn peak(&self) -> Option<u64> {
        procfs::status_field(self.pid(), "VmHWM").map(|kib| kib * 1024)
    }

    /// Resets the peak. If the kernel does not allow this, the peak is that of the whole process
    /// lifetime.
    pub(crate) fn forget_peak(&self) {
        let _ = procfs::forget_peak(self.pid());
    }

    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        procfs::cpu_time(self.pid())
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill().context("failed to kill the server")?;
        self.child.wait().context("failed to wait for the server")?;
        Ok(())
    }

    /// Stops it with all its sessions, and waits until it has ended.
    pub(crate) fn stop(mut self) -> Result<()> {
        let status = self.end()?;
        if !status.success() {
            bail!("the server ended with {status}");
        }
        Ok(())
    }

    fn end(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        process::signal(self.pid(), SIGTERM).context("failed to stop the server")?;
        let begun = Instant::now();
        while begun.elapsed() < STOP_TIMEOUT {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(POLL);
        }
        self.child.kill()?;
        self.child.wait()?;
        bail!("the server did not stop in time")
    }

    fn check_start_timeout(&self, to: &str) -> Result<()> {
        if self.started.elapsed() > START_TIMEOUT {
            bail!("the server did not {to} within {} seconds", START_TIMEOUT.as_secs());
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
