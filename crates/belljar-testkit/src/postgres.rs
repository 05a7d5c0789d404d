//! A Postgres server for tests, with a database per test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::port::free_port;
use crate::skip::is_root;

/// Postgres refuses to run as root.
const USER: &str = "postgres";

/// Nothing here must survive a power cut.
const FAST: &str = "-c fsync=off -c full_page_writes=off -c shared_buffers=16MB";

/// Makes the certificate and key of a server with TLS.
const OPENSSL: &str = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
     -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE -keyout server.key -out server.crt";

/// Waits until the test process ends for any reason, then stops the server and removes its files.
const CLEAN_UP: &str = r#"cat >/dev/null; "$@" -m immediate stop; rm -rf "$DIRECTORY""#;

/// A server on a UNIX socket, and on a port of 127.0.0.1 if it has TLS. It is stopped and removed when this is dropped, or with the test process.
pub struct Postgres {
    directory: PathBuf,
    /// The port for TLS; 0 without.
    port: u16,
    /// The process that cleans up when its standard input is closed.
    cleaner: Child,
    databases: AtomicU32,
}

impl Postgres {
    /// The server of this test process.
    pub fn shared() -> &'static Postgres {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(Postgres::start)
    }

    /// A server of its own, for tests that stop it.
    pub fn start() -> Postgres {
        Postgres::start_on(0)
    }

    /// A server that accepts TLS with the certificate of [`certificate`](Postgres::certificate), for `localhost`.
    pub fn start_with_tls() -> Postgres {
        Postgres::start_on(free_port())
    }

    fn start_on(port: u16) -> Postgres {
        let directory = tempfile::Builder::new().prefix("belljar-pg").tempdir();
        let directory = directory.map(TempDir::keep).expect("a directory");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o711)).expect("permissions");
        let data = directory.join("data");
        fs::create_dir(&data).expect("a directory for data");
        if is_root() {
            for path in [&data, &directory] {
                succeed(Command::new("chown").arg(USER).arg(path));
            }
        }
        let cleaner = clean_up_later(&directory);
        succeed(
            program("initdb")
                .args(["-A", "trust", "-U", USER, "--no-sync", "--no-instructions", "-D"])
                .arg(&data),
        );
        if port > 0 {
            succeed(program("openssl").args(OPENSSL.split(' ')).current_dir(&data));
        }
        let server = Postgres { directory, port, cleaner, databases: AtomicU32::new(0) };
        server.resume();
        server
    }

    /// The URL of a new, empty database.
    pub fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    pub fn url(&self, database: &str) -> String {
        format!(
            "postgres://{USER}@/{database}?host={}&port={}&sslmode=disable",
            self.directory.to_str().expect("a path of text"),
            if self.port > 0 { self.port } else { 5432 },
        )
    }

    /// The socket of a server without TLS.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(".s.PGSQL.5432")
    }

    /// The URL of a database with TLS, without parameters.
    pub fn tls_url(&self, database: &str) -> String {
        format!("postgres://{USER}:hunter2@localhost:{}/{database}", self.port)
    }

    /// The certificate of the server, in PEM.
    pub fn certificate(&self) -> PathBuf {
        self.directory.join("data/server.crt")
    }

    /// Runs SQL in the database of this URL or name, and returns the output of `psql`.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let url = match database.contains("://") {
            true => database.to_owned(),
            false => self.url(database),
        };
        succeed(program("psql").args(["-X", "-A", "-t", "-q", "-c", sql]).arg(url))
    }

    /// Stops the server at once, as in a crash.
    pub fn stop(&self) {
        succeed(pg_ctl(&self.directory).args(["-m", "immediate", "stop"]));
    }

    /// Starts the server after [`stop`](Postgres::stop).
    pub fn resume(&self) {
        let mut options = format!("-k {} {FAST}", self.directory.display());
        options += &match self.port {
            0 => " -c listen_addresses=".to_owned(),
            port => format!(" -c listen_addresses=127.0.0.1 -c port={port} -c ssl=on"),
        };
        let log = self.directory.join("data/log");
        succeed(pg_ctl(&self.directory).arg("-l").arg(log).args(["-o", &options, "-w", "start"]));
    }

    /// The process id of the server, for example to freeze it.
    pub fn pid(&self) -> u32 {
        let file = fs::read_to_string(self.directory.join("data/postmaster.pid"));
        let file = file.expect("the server runs");
        file.lines().next().and_then(|line| line.parse().ok()).expect("a process id")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.cleaner.stdin.take());
        let _ = self.cleaner.wait();
    }
}

/// A group of its own: a signal to the group of the test does not end it.
fn clean_up_later(directory: &Path) -> Child {
    let stop = pg_ctl(directory);
    Command::new("sh")
        .args(["-c", CLEAN_UP, "sh"])
        .arg(stop.get_program())
        .args(stop.get_args())
        .env("DIRECTORY", directory)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("sh")
}

fn pg_ctl(directory: &Path) -> Command {
    let mut command = program("pg_ctl");
    command.arg("-D").arg(directory.join("data"));
    command
}

/// A program of Postgres, as an unprivileged user.
fn program(name: &str) -> Command {
    let path = if name == "openssl" { name.into() } else { programs().join(name) };
    let mut command = match is_root() {
        true => Command::new("setpriv"),
        false => Command::new(&path),
    };
    if is_root() {
        command
            .arg(format!("--reuid={USER}"))
            .arg(format!("--regid={USER}"))
            .args(["--clear-groups", "--"])
            .arg(path);
    }
    command.current_dir("/");
    command
}

/// Debian has its programs outside of PATH.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions
        .map(|version| version.path().join("bin"))
        .filter(|path| path.join("initdb").exists())
        .collect();
    found.sort();
    found.pop().expect("Postgres is not installed: run scripts/prepare-system")
}

fn succeed(command: &mut Command) -> String {
    // A server that pg_ctl starts must not keep pipes of the test open, so files take the output.
    let file = tempfile::tempfile().expect("a file");
    let copy = || Stdio::from(file.try_clone().expect("a file"));
    let status = command.stdin(Stdio::null()).stdout(copy()).stderr(copy()).status();
    let output = {
        use std::io::{Read as _, Seek as _};
        let mut file = &file;
        let mut text = String::new();
        file.rewind().expect("a file");
        file.read_to_string(&mut text).expect("text");
        text
    };
    assert!(status.is_ok_and(|status| status.success()), "{command:?}: {output}");
    output.trim_end().to_owned()
}
