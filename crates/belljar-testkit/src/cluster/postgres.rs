//! A ClusterPostgres server on a machine of the test's network. It can be stopped, killed and started again.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::Mutex;

use super::network::{Machine, Network, run};
use super::process::{Process, SIGQUIT};
use crate::wait::{PATIENCE, eventually};

/// ClusterPostgres refuses to run as root.
const USER: &str = "postgres";

pub struct ClusterPostgres {
    pub machine: Machine,
    directory: TempDir,
    programs: PathBuf,
    process: Mutex<Option<Process>>,
}

impl ClusterPostgres {
    /// Why this machine cannot run it, if so.
    pub fn is_missing() -> Option<&'static str> {
        let has_user = fs::read_to_string("/etc/passwd")
            .is_ok_and(|users| users.lines().any(|line| line.starts_with("postgres:")));
        let missing = programs().is_none() || !has_user;
        missing.then_some("ClusterPostgres is not installed (Debian package `postgresql`)")
    }

    /// Makes a new database and starts its server.
    pub async fn start(network: &Network) -> ClusterPostgres {
        let directory = tempfile::tempdir().expect("a directory");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), open).expect("our directory");
        let programs = programs().expect("ClusterPostgres is installed");
        let machine = network.add_machine("postgres");
        let postgres = ClusterPostgres { machine, directory, programs, process: Mutex::new(None) };
        postgres.initialize();
        postgres.resume().await;
        postgres.psql("postgres", "create database belljar").expect("a database");
        postgres
    }

    pub fn url(&self) -> String {
        format!("postgres://belljar@{}:5432/belljar?sslmode=disable", self.machine.address)
    }

    /// Kills all server processes at once, as after a crash: `pg_ctl stop -m immediate`.
    pub async fn stop_at_once(&self) {
        if let Some(process) = self.process.lock().await.take() {
            process.end_by(SIGQUIT).await;
        }
    }

    /// Kills the main process with SIGKILL. The others notice that and end.
    pub async fn kill(&self) {
        if let Some(process) = self.process.lock().await.take() {
            process.kill();
        }
    }

    /// Starts it, if it does not run, and waits until it answers.
    pub async fn resume(&self) {
        let mut process = self.process.lock().await;
        let deadline = Instant::now() + PATIENCE;
        loop {
            // After a SIGKILL it refuses to start until the last process of its predecessor has ended.
            if process.as_mut().is_none_or(Process::has_ended) {
                *process = Some(self.spawn());
            }
            if self.psql("postgres", "select 1").is_ok() {
                return;
            }
            assert!(Instant::now() < deadline, "ClusterPostgres does not start:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The result of a statement: a line for each row, columns separated by `|`.
    pub fn query(&self, statement: &str) -> String {
        self.psql("belljar", statement).unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// Waits until a query returns this.
    pub async fn returns(&self, statement: &str, expected: &str) {
        eventually(&format!("{statement}: {expected}"), async || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.psql("belljar", statement).is_ok_and(|found| found.trim() == expected)
        })
        .await;
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn psql(&self, database: &str, statement: &str) -> Result<String, String> {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.args(["-X", "-At", "-U", "belljar", "-d", database, "-c", statement]);
        psql.arg("-h").arg(self.machine.address.to_string());
        let output = psql.env("PGCONNECT_TIMEOUT", "5").output().expect("psql starts");
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn initialize(&self) {
        let data = self.data();
        fs::create_dir(&data).expect("a directory");
        run(Command::new("chown").arg(USER).arg(&data));
        let mut initdb = Command::new("setpriv");
        initdb.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"]);
        initdb.arg(self.programs.join("initdb")).arg("-D").arg(&data);
        initdb.args(["-U", "belljar", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        run(initdb.current_dir(&data));
        let rules = data.join("pg_hba.conf");
        let known = fs::read_to_string(&rules).expect("a file");
        fs::write(&rules, known + "host all all 10.0.0.0/8 trust\n").expect("a file");
    }

    fn spawn(&self) -> Process {
        let [nsenter, enter @ ..] = self.machine.enter();
        let mut command = Command::new(nsenter);
        command.args(enter).args([
            "setpriv",
            "--reuid",
            USER,
            "--regid",
            USER,
            "--clear-groups",
            "--",
        ]);
        command.arg(self.programs.join("postgres")).arg("-D").arg(self.data());
        let address = self.machine.address;
        let settings = [
            format!("listen_addresses={address}"),
            format!("unix_socket_directories={}", self.data().display()),
            "max_connections=200".to_owned(),
            // The machine itself does not crash in these tests, so nothing has to reach the disk.
            "fsync=off".to_owned(),
            "shared_buffers=32MB".to_owned(),
        ];
        command.args(settings.iter().flat_map(|setting| ["-c", setting]));
        Process::start("postgres", command, &self.log_path())
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }
}

impl Drop for ClusterPostgres {
    fn drop(&mut self) {
        // SIGQUIT lets the main process end the others.
        if let Some(mut process) = self.process.get_mut().take() {
            process.signal(SIGQUIT);
            let deadline = Instant::now() + Duration::from_secs(5);
            while !process.has_ended() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// The programs of the newest ClusterPostgres that is installed.
fn programs() -> Option<PathBuf> {
    let versions = crate::values::names(Path::new("/usr/lib/postgresql"));
    let newest = versions.iter().max_by_key(|version| version.parse::<u32>().unwrap_or(0))?;
    let programs = Path::new("/usr/lib/postgresql").join(newest).join("bin");
    programs.join("postgres").is_file().then_some(programs)
}
