//! A server of our own to measure, in a corner of the machine where it meets nobody.

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

use super::wire::{Wire, request};

const SIGTERM: i32 = 15;

/// How long a server may take to come up, or to do what it does in the background then.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it may take to end, with a thousand sessions to stop.
const END_PATIENCE: Duration = Duration::from_secs(120);

/// Between two looks at something that takes its time.
const LOOK: Duration = Duration::from_millis(1);

/// Directories and control groups that nobody else uses; they go with it.
#[derive(Debug)]
pub(super) struct Corner {
    directory: PathBuf,
    cgroup_parent: String,
    /// Settings besides those that keep it apart.
    more: Vec<(&'static str, String)>,
}

impl Corner {
    pub(super) fn new(more: Vec<(&'static str, String)>) -> Result<Corner> {
        let name = format!("belljar-bench-{}", &process::random_name()[..12]);
        let directory = std::env::temp_dir().join(&name);
        fs::create_dir(&directory)
            .with_context(|| format!("failed to make `{}`", directory.display()))?;
        Ok(Corner { directory, cgroup_parent: name, more })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    fn settings(&self, pool: usize) -> Vec<(&'static str, String)> {
        let place = |name: &str| self.directory.join(name).display().to_string();
        let mut settings = vec![
            ("BELLJAR_STATE_DIR", place("state")),
            ("BELLJAR_RUN_DIR", place("run")),
            ("BELLJAR_OUTPUTS_DIR", place("outputs")),
            ("SESSIONS_ROOT", place("sessions")),
            ("BLOBSTORE_DIR", place("blobstore")),
            ("ARTIFACTS_DB", place("artifacts.db")),
            ("BELLJAR_EXPORTS_DIR", place("exports")),
            ("BELLJAR_DATASET_CACHE", place("datasets")),
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

impl Drop for Corner {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
        // Without root there are no control groups of ours.
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

/// A running server; ended, with its sessions, when it goes out of scope.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    pub(super) address: SocketAddr,
    /// Just before it was executed.
    pub(super) started: Instant,
}

impl Server {
    /// Starts one and waits until it listens.
    pub(super) fn start(corner: &Corner, pool: usize) -> Result<Server> {
        let started = Instant::now();
        let mut child = Command::new("/proc/self/exe")
            .args(["serve", "--stop-sessions", "--listen", "127.0.0.1:0"])
            .envs(corner.settings(pool))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to start a server")?;
        let stderr = child.stderr.take().context("its words were to come to us")?;
        let (sender, said) = mpsc::channel();
        // Reads on to the end, so that the server never waits for somebody to listen.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                tracing::debug!("server: {line}");
                let _ = sender.send(line);
            }
        });
        let mut words = Vec::new();
        while let Ok(line) = said.recv_timeout(PATIENCE) {
            if let Some((_, address)) = line.split_once(" listens on http://") {
                let address = address.parse().context("the server listens at an odd place")?;
                return Ok(Server { child, address, started });
            }
            words.push(line);
        }
        let _ = child.kill();
        let _ = child.wait();
        bail!("the server did not start: {}", words.join("; "))
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it takes requests for everything an earlier one left.
    pub(super) async fn ready(&self) -> Result<()> {
        let mut wire = Wire::connect(self.address).await?;
        let request = request("GET", "/readyz", &Value::Null);
        while wire.call(&request).await?.status != 200 {
            self.still_patient("get ready")?;
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits until it has nothing to do but to serve: the zygote is warm and the limits are known.
    pub(super) async fn at_rest(&self, wire: &mut Wire) -> Result<()> {
        let request = request("GET", "/healthz", &Value::Null);
        loop {
            let health = wire.call(&request).await?.json()?;
            let zygote = health["zygote"].as_str().unwrap_or_default();
            if zygote.starts_with("failed") || zygote == "absent" {
                bail!("there is no zygote: {zygote}");
            }
            if zygote == "warm" && health["enforced"].is_object() {
                return Ok(());
            }
            self.still_patient("come to rest")?;
            tokio::time::sleep(LOOK * 10).await;
        }
    }

    /// Waits until this many warm sandboxes are ready.
    pub(super) async fn pool_full(&self, wire: &mut Wire, pool: usize) -> Result<()> {
        let (request, begun) = (request("GET", "/metrics", &Value::Null), Instant::now());
        let full = format!("\nbelljar_pool_ready {pool}\n");
        loop {
            let answer = wire.call(&request).await?;
            if String::from_utf8_lossy(answer.body).contains(&full) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                bail!("the server's pool does not fill");
            }
            tokio::time::sleep(LOOK * 2).await;
        }
    }

    /// Resident memory of the server process itself, in bytes.
    pub(super) fn rss(&self) -> Option<u64> {
        procfs::status_field(self.pid(), "VmRSS").map(|kib| kib * 1024)
    }

    /// The most resident memory it had since [`Server::forget_peak`], in bytes.
    pub(super) fn peak(&self) -> Option<u64> {
        procfs::status_field(self.pid(), "VmHWM").map(|kib| kib * 1024)
    }

    /// Where this cannot be done, the peak is that of its whole life, which is no less.
    pub(super) fn forget_peak(&self) {
        let _ = procfs::forget_peak(self.pid());
    }

    pub(super) fn cpu_time(&self) -> Option<Duration> {
        procfs::cpu_time(self.pid())
    }

    /// As the worst of operators would.
    pub(super) fn kill(mut self) -> Result<()> {
        self.child.kill().context("failed to kill the server")?;
        self.child.wait().context("failed to wait for the server")?;
        Ok(())
    }

    /// Asks it to end with all its sessions, and waits for that.
    pub(super) fn stop(mut self) -> Result<()> {
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
        while begun.elapsed() < END_PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(LOOK);
        }
        self.child.kill()?;
        self.child.wait()?;
        bail!("the server did not end in time")
    }

    fn still_patient(&self, to: &str) -> Result<()> {
        if self.started.elapsed() > PATIENCE {
            bail!("the server did not {to} within {} seconds", PATIENCE.as_secs());
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
