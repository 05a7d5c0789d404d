//! Postgres on a machine of the test's network. It can be stopped, killed and started again, and with a standby it can
//! fail over.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::Mutex;

use super::network::{Machine, Network, run};
use super::process::{Process, SIGQUIT};
use crate::wait::PATIENCE;

/// Postgres refuses to run as root.
const USER: &str = "postgres";

/// The ports of the two servers. Only one of them runs unless there is a standby.
const PORTS: [u16; 2] = [5432, 5433];

pub struct ClusterPostgres {
    pub machine: Machine,
    directory: TempDir,
    programs: PathBuf,
    servers: Mutex<Servers>,
}

#[derive(Default)]
struct Servers {
    /// Which one accepts writes.
    primary: usize,
    processes: [Option<Process>; 2],
}

impl ClusterPostgres {
    /// Why this machine cannot run it, if so.
    pub fn is_missing() -> Option<&'static str> {
        let has_user = fs::read_to_string("/etc/passwd")
            .is_ok_and(|users| users.lines().any(|line| line.starts_with("postgres:")));
        let missing = programs().is_none() || !has_user;
        missing.then_some("Postgres is not installed (Debian package `postgresql`)")
    }

    /// Makes a new database and starts its server.
    pub async fn start(network: &Network) -> ClusterPostgres {
        let directory = tempfile::tempdir().expect("a directory");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), open).expect("our directory");
        let programs = programs().expect("Postgres is installed");
        let machine = network.add_machine("postgres");
        let postgres = ClusterPostgres { machine, directory, programs, servers: Mutex::default() };
        postgres.initialize();
        postgres.resume().await;
        postgres.psql("postgres", "create database belljar").expect("a database");
        postgres
    }

    /// Names both servers: clients connect to the one that accepts writes.
    pub fn url(&self) -> String {
        let [one, other] = PORTS.map(|port| format!("{}:{port}", self.machine.address));
        format!(
            "postgres://belljar@{one},{other}/belljar?sslmode=disable&target_session_attrs=read-write"
        )
    }

    /// Adds a standby that has every commit before it is acknowledged.
    pub async fn add_standby(&self) {
        let mut servers = self.servers.lock().await;
        let (primary, standby) = (servers.primary, 1 - servers.primary);
        let data = self.data(standby);
        let _ = fs::remove_dir_all(&data);
        self.make_data_directory(standby);
        let mut copy = self.program("pg_basebackup");
        copy.arg("-D").arg(&data).args(["-U", "belljar", "-R", "-c", "fast", "--no-sync"]);
        copy.args(["-p", &PORTS[primary].to_string(), "-h"]).arg(self.machine.address.to_string());
        run(copy.current_dir(&data));
        servers.processes[standby] = Some(self.spawn(standby));
        drop(servers);
        // Commits wait for it only when it follows, or they would wait for the whole copy.
        let follows = "select count(*) from pg_stat_replication where state = 'streaming'";
        self.returns(follows, "1").await;
        self.query("alter system set synchronous_standby_names = '*'");
        self.query("select pg_reload_conf()");
        self.returns(&format!("{follows} and sync_state = 'sync'"), "1").await;
    }

    /// The primary ends, and `after` that the standby takes its place. A new standby is made from it.
    pub async fn fail_over(&self, after: Duration) {
        self.stop_at_once().await;
        tokio::time::sleep(after).await;
        {
            let mut servers = self.servers.lock().await;
            servers.primary = 1 - servers.primary;
            let server = self.connection(&PORTS[servers.primary..=servers.primary], "any");
            let promoted = self.psql_to(&server, "postgres", "select pg_promote()");
            assert_eq!(promoted.as_deref().map(str::trim), Ok("t"), "{}", self.log());
        }
        self.add_standby().await;
    }

    /// Kills all processes of the primary at once, as after a crash: `pg_ctl stop -m immediate`.
    pub async fn stop_at_once(&self) {
        if let Some(process) = self.servers.lock().await.take_primary() {
            process.end_by(SIGQUIT).await;
        }
    }

    /// Kills the main process of the primary with SIGKILL. The others notice that and end.
    pub async fn kill(&self) {
        if let Some(process) = self.servers.lock().await.take_primary() {
            process.kill();
        }
    }

    /// Starts the primary, if it does not run, and waits until it answers.
    pub async fn resume(&self) {
        let mut servers = self.servers.lock().await;
        let primary = servers.primary;
        let deadline = Instant::now() + PATIENCE;
        loop {
            // After a SIGKILL it refuses to start until the last process of its predecessor has ended.
            if servers.processes[primary].as_mut().is_none_or(Process::has_ended) {
                servers.processes[primary] = Some(self.spawn(primary));
            }
            if self.psql("postgres", "select 1").is_ok() {
                return;
            }
            assert!(Instant::now() < deadline, "Postgres does not start:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The result of a statement: a line for each row, columns separated by `|`.
    pub fn query(&self, statement: &str) -> String {
        self.psql("belljar", statement).unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// Waits until a query returns this.
    pub async fn returns(&self, statement: &str, expected: &str) {
        // Not `eventually`, whose future cannot be sent to another thread.
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.psql("belljar", statement);
            if found.as_deref().is_ok_and(|found| found.trim() == expected) {
                return;
            }
            assert!(Instant::now() < deadline, "{statement}: {found:?} instead of {expected}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn log(&self) -> String {
        let log = |server| fs::read_to_string(self.log_path(server)).unwrap_or_default();
        [0, 1].map(log).concat()
    }

    fn psql(&self, database: &str, statement: &str) -> Result<String, String> {
        self.psql_to(&self.connection(&PORTS, "read-write"), database, statement)
    }

    fn connection(&self, ports: &[u16], kind: &str) -> String {
        let list = |values: Vec<String>| values.join(",");
        let hosts = list(ports.iter().map(|_| self.machine.address.to_string()).collect());
        let ports = list(ports.iter().map(u16::to_string).collect());
        format!("host={hosts} port={ports} target_session_attrs={kind}")
    }

    fn psql_to(&self, server: &str, database: &str, statement: &str) -> Result<String, String> {
        let mut psql = Command::new(self.programs.join("psql"));
        let server = format!("{server} dbname={database} user=belljar");
        psql.args(["-X", "-At", "-d", &server, "-c", statement]);
        let output = psql.env("PGCONNECT_TIMEOUT", "5").output().expect("psql starts");
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn make_data_directory(&self, server: usize) {
        let data = self.data(server);
        fs::create_dir(&data).expect("a directory");
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).expect("our directory");
        run(Command::new("chown").arg(USER).arg(&data));
    }

    fn initialize(&self) {
        self.make_data_directory(0);
        let data = self.data(0);
        let mut initdb = self.program("initdb");
        initdb.arg("-D").arg(&data);
        initdb.args(["-U", "belljar", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        run(initdb.current_dir(&data));
        let rules = data.join("pg_hba.conf");
        let known = fs::read_to_string(&rules).expect("a file");
        let more = ["all", "replication"].map(|what| format!("host {what} all 10.0.0.0/8 trust\n"));
        fs::write(&rules, known + &more.concat()).expect("a file");
    }

    /// A program of Postgres, as its user.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(AS_USER).arg(self.programs.join(name));
        command
    }

    fn spawn(&self, server: usize) -> Process {
        let [nsenter, enter @ ..] = self.machine.enter();
        let mut command = Command::new(nsenter);
        command.args(enter).arg("setpriv").args(AS_USER);
        command.arg(self.programs.join("postgres")).arg("-D").arg(self.data(server));
        let settings = settings(self.machine.address, PORTS[server], &self.data(server));
        command.args(settings.iter().flat_map(|setting| ["-c", setting]));
        Process::start("postgres", command, &self.log_path(server))
    }

    fn data(&self, server: usize) -> PathBuf {
        self.directory.path().join(format!("data-{server}"))
    }

    fn log_path(&self, server: usize) -> PathBuf {
        self.directory.path().join(format!("log-{server}"))
    }
}

/// Options of `setpriv`.
const AS_USER: [&str; 6] = ["--reuid", USER, "--regid", USER, "--clear-groups", "--"];

fn settings(address: Ipv4Addr, port: u16, data: &Path) -> [String; 7] {
    [
        format!("listen_addresses={address}"),
        format!("port={port}"),
        format!("unix_socket_directories={}", data.display()),
        "max_connections=200".to_owned(),
        // The machine itself does not crash in these tests, so nothing has to reach the disk.
        "fsync=off".to_owned(),
        "shared_buffers=32MB".to_owned(),
        // While the standby is not connected, commits wait.
        "wal_retrieve_retry_interval=100ms".to_owned(),
    ]
}

impl Servers {
    fn take_primary(&mut self) -> Option<Process> {
        self.processes[self.primary].take()
    }
}

impl Drop for ClusterPostgres {
    fn drop(&mut self) {
        // SIGQUIT lets the main processes end the others.
        for process in self.servers.get_mut().processes.iter_mut().flatten() {
            process.signal(SIGQUIT);
            let deadline = Instant::now() + Duration::from_secs(5);
            while !process.has_ended() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// The programs of the newest Postgres that is installed.
fn programs() -> Option<PathBuf> {
    let versions = crate::values::names(Path::new("/usr/lib/postgresql"));
    let newest = versions.iter().max_by_key(|version| version.parse::<u32>().unwrap_or(0))?;
    let programs = Path::new("/usr/lib/postgresql").join(newest).join("bin");
    programs.join("postgres").is_file().then_some(programs)
}
