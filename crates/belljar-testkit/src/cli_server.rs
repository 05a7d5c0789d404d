//! A server for one test, with the command line as its client.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use belljar_sys::process;

use crate::command::{Finished, Running, TestContext};
use crate::port::free_address;
use crate::scratch_host::ScratchHost;
use crate::wait::{PATIENCE, eventually_blocking};

const SIGTERM: i32 = 15;

/// A running server on a scratch host. Its sessions end with it.
pub struct CliServer {
    /// `Some` while it runs.
    server: Option<Child>,
    context: TestContext,
    /// The flags with which it is started.
    flags: Vec<String>,
    _corner: ScratchHost,
}

impl CliServer {
    /// A server on a UNIX socket.
    pub fn on_socket() -> CliServer {
        CliServer::prepare(|context| {
            let socket = context.path("socket").display().to_string();
            (vec!["--unix".into(), socket.clone()], format!("unix:{socket}"))
        })
        .started()
    }

    pub fn on_tcp() -> CliServer {
        CliServer::on_tcp_with(&[])
    }

    /// A server on TCP with additional settings.
    pub fn on_tcp_with(settings: &[(&str, &str)]) -> CliServer {
        let address = free_address();
        let mut served = CliServer::prepare(|_| {
            (vec!["--listen".into(), address.clone()], format!("http://{address}"))
        });
        settings.iter().for_each(|(name, value)| served.context.set_env(name, value));
        served.started()
    }

    /// A server with a certificate that the clients trust.
    pub fn on_tls() -> CliServer {
        CliServer::on_tls_with(CERTIFICATE, KEY)
    }

    /// A server with this certificate.
    pub fn on_tls_with(certificate: &str, key: &str) -> CliServer {
        CliServer::prepared_tls(certificate, key).started()
    }

    /// A server with this certificate that is not started yet.
    pub fn prepared_tls(certificate: &str, key: &str) -> CliServer {
        let address = free_address();
        let mut served = CliServer::prepare(|_| {
            let flags = ["--listen", &address, "--tls-cert", certificate, "--tls-key", key];
            (flags.map(str::to_owned).to_vec(), format!("https://{address}"))
        });
        served.context.set_env("SSL_CERT_FILE", certificate);
        served
    }

    /// Prepares the context. `way` makes the flags and the address in it.
    fn prepare(way: impl FnOnce(&TestContext) -> (Vec<String>, String)) -> CliServer {
        let scratch = ScratchHost::new();
        let context = TestContext::inside(&scratch);
        let (flags, url) = way(&context);
        let installation = |name: &str| context.path(name).display().to_string();
        let (state, sessions) = (installation("state"), installation("sessions"));
        let (blobs, cache, volumes) =
            (installation("blobs"), installation("cache"), installation("volumes"));
        let context = context
            .env("BELLJAR_STATE_DIR", &state)
            .env("SESSIONS_ROOT", &sessions)
            // Servers that share these would delete each other's content.
            .env("BLOBSTORE_DIR", &blobs)
            .env("BELLJAR_DATASET_CACHE", &cache)
            .env("BELLJAR_VOLUMES_DIR", &volumes)
            .env("BELLJAR_URL", &url)
            .env("SSL_CERT_FILE", CERTIFICATE)
            .env("BELLJAR_POOL", "1")
            // These tests need no other packages, and each server would load them again.
            .env("BELLJAR_PRELOAD", "json")
            // If the test fails before it can clean up, the sandboxes end soon.
            .env("BELLJAR_ALONE", "30");
        CliServer { server: None, context, flags, _corner: scratch }
    }

    fn started(mut self) -> CliServer {
        self.start();
        self
    }

    pub fn start(&mut self) {
        self.start_unasked();
        eventually_blocking("the server answers", || self.call(["list"]).code == Some(0));
    }

    /// Changes a setting of the server's next start, and of the commands from now on.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.context.set_env(name, value);
    }

    /// The address of the server.
    pub fn url(&self) -> String {
        self.context.value("BELLJAR_URL")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.context.path("server.log")).unwrap_or_default()
    }

    /// Starts the server without waiting until it answers.
    pub fn start_unasked(&mut self) {
        let log = File::options().create(true).append(true).open(self.context.path("server.log"));
        let log = log.expect("a log");
        let mut command = self.context.belljar(["serve", "--stop-sessions"]);
        command.args(&self.flags).stdout(Stdio::null()).stderr(log);
        self.server = Some(command.spawn().expect("belljar starts"));
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        let mut server = self.server.take().expect("it runs");
        server.kill().and_then(|()| server.wait()).expect("it can be killed");
    }

    pub fn pid(&self) -> u32 {
        self.server.as_ref().expect("it runs").id()
    }

    pub fn context(&self) -> &TestContext {
        &self.context
    }

    /// `belljar session ARGS`, to its end.
    pub fn call<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Finished {
        self.context.finish(self.session().args(args))
    }

    /// Like [`CliServer::call`], but it must succeed.
    #[track_caller]
    pub fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Finished {
        let finished = self.call(args);
        assert_eq!(finished.code, Some(0), "{finished}");
        finished
    }

    /// `belljar artifacts ARGS`, to its end.
    pub fn artifacts<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Finished {
        self.context.finish(self.context.belljar(["artifacts"]).args(args))
    }

    /// Runs code in a session; returns the ids of the artifacts it left, in the order of their
    /// paths.
    #[track_caller]
    pub fn leave(&self, session: &str, code: &str) -> Vec<String> {
        let result = self.ok(["exec", session, "--json", "-c", code]).json();
        let artifacts = result["artifacts"].as_array().expect("a list").iter();
        artifacts.map(|artifact| artifact["id"].as_str().expect("an id").to_owned()).collect()
    }

    /// Creates a session and returns its id.
    #[track_caller]
    pub fn create(&self, args: &[&str]) -> String {
        self.ok([&["create"], args].concat()).stdout().trim().to_owned()
    }

    /// `belljar session exec ARGS`, left running.
    pub fn start_exec<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        self.context.leave_running(self.session().arg("exec").args(args))
    }

    fn session(&self) -> Command {
        self.context.belljar(["session"])
    }

    /// Stops it with SIGTERM, and waits for its end.
    pub fn stop(&mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        let _ = process::signal(server.id(), SIGTERM);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if server.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let _ = server.kill();
        let _ = server.wait();
    }
}

impl Drop for CliServer {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.context.path("server.log")).unwrap_or_default();
            eprintln!("--- the server said\n{log}");
        }
    }
}

/// Made with `openssl req -x509` for these tests, and not used elsewhere.
const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cli/tls/server.pem");
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cli/tls/server.key");

/// A certificate that no server in the tests uses.
pub const STRANGER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cli/tls/stranger.pem");

/// A self-signed certificate that was valid in January 2020.
pub const EXPIRED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cli/tls/expired.pem");
pub const EXPIRED_KEY: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cli/tls/expired.key");
