//! The backends of the tests, and helpers that look at sandboxes from outside.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_sys::{privileges, process};
use rusqlite::{Connection, OpenFlags};

use belljar_testkit::installation::{Installation, remember_limits};
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::names;
use belljar_testkit::wait::PATIENCE;

/// Made by `scripts/prepare-docker`: Debian with python3.
pub(crate) const BASE_IMAGE: &str = "belljar/test-base:1";

/// Bash and a few programs, without Python.
pub(crate) const SHELL_IMAGE: &str = "belljar/test-shell:1";

/// The base image with Chromium and browser-use.
pub(crate) const BROWSER_IMAGE: &str = "belljar/test-browser:1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Native,
    Docker,
    /// Containers with gVisor as their kernel.
    Runsc,
}

impl Backend {
    /// The backend, if this machine has it. For root a missing backend is a failure, because root
    /// can install all of them.
    pub(crate) fn if_available(self) -> Option<Backend> {
        let missing = match self {
            Backend::Native => None,
            Backend::Docker | Backend::Runsc if !succeeds(&["image", "inspect", BASE_IMAGE]) => {
                Some("no container engine with the test images")
            }
            Backend::Runsc
                if !docker(&["info", "--format", "{{json .Runtimes}}"]).contains("runsc") =>
            {
                Some("the container engine has no runtime runsc")
            }
            Backend::Docker | Backend::Runsc => None,
        };
        let Some(missing) = missing else { return Some(self) };
        assert!(!privileges::is_root(), "{missing}: run scripts/prepare-docker");
        belljar_testkit::skip::record(&format!(
            "{missing}; scripts/prepare-docker says what to do"
        ));
        None
    }

    pub(crate) fn is_container(self) -> bool {
        self != Backend::Native
    }

    /// An installation whose servers use this backend.
    pub(crate) fn installation(self) -> Installation {
        let (installation, backend) = match self {
            Backend::Native => (Installation::new().env("BELLJAR_BACKEND", "native"), "native"),
            Backend::Docker => (in_containers(), "docker"),
            Backend::Runsc => {
                (in_containers().env("BELLJAR_DOCKER_RUNTIME", "runsc"), "docker/runsc")
            }
        };
        remember_limits(installation.scratch(), backend);
        installation
    }

    pub(crate) fn site(self, env: &[(&str, &str)]) -> BackendSite {
        let installation = env
            .iter()
            .fold(self.installation(), |installation, (name, value)| installation.env(name, value));
        BackendSite::of(self, installation)
    }

    /// A server with one session.
    pub(crate) async fn session(self, ask: serde_json::Value) -> (BackendSite, Server, Session) {
        let site = self.site(&[]);
        let server = site.serve().await;
        let session = server.session_with(ask).await;
        (site, server, session)
    }
}

fn in_containers() -> Installation {
    Installation::new().env("BELLJAR_BACKEND", "docker").env("SANDBOX_IMAGE", BASE_IMAGE)
}

/// An installation and its containers in the engine, which are removed on drop.
pub(crate) struct BackendSite {
    pub(crate) backend: Backend,
    pub(crate) installation: Arc<Installation>,
}

impl BackendSite {
    pub(crate) fn of(backend: Backend, installation: Installation) -> BackendSite {
        BackendSite { backend, installation: Arc::new(installation) }
    }

    pub(crate) async fn serve(&self) -> Server {
        self.installation.serve().await
    }

    /// Ends a sandbox from outside, without the server.
    pub(crate) fn end_behind_our_back(&self, session: &Session) {
        if self.backend.is_container() {
            docker(&["rm", "--force", &container_of(session)]);
        } else {
            for guest in self.installation.pids_inside(1) {
                process::signal(guest, 9).expect("it lives");
            }
        }
    }

    /// Waits until nothing of any sandbox is left: no process, container, cgroup, socket.
    pub(crate) async fn has_no_traces(&self) {
        self.installation.has_no_traces().await;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let doors = names(&self.installation.scratch().run_dir().join("doors"));
            let containers = self.containers();
            if doors.is_empty() && containers.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: {containers:?} {doors:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Containers of this installation's servers, running or not.
    pub(crate) fn containers(&self) -> Vec<String> {
        match (self.backend.is_container(), self.owner()) {
            (true, Some(owner)) => containers(&format!("belljar.owner={owner}")),
            _ => Vec::new(),
        }
    }

    /// The owner in the labels of these servers' containers.
    pub(crate) fn owner(&self) -> Option<String> {
        let path = self.installation.path("state/belljar.db");
        let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
        let ask = "SELECT value FROM meta WHERE name = 'owner'";
        database.query_row(ask, [], |row| row.get(0)).ok()
    }
}

impl Drop for BackendSite {
    fn drop(&mut self) {
        for container in self.containers() {
            let _ = command(&["rm", "--force", &container]).output();
        }
    }
}

/// The only container of a session.
pub(crate) fn container_of(session: &Session) -> String {
    let found = containers(&format!("belljar.session={}", session.id));
    let [container] = &found[..] else { panic!("not one container: {found:?}") };
    container.clone()
}

pub(crate) fn containers(label: &str) -> Vec<String> {
    let filter = format!("label={label}");
    let listed = docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter]);
    listed.lines().map(str::to_owned).collect()
}

/// Output of `docker ARGS`, which must succeed.
#[track_caller]
pub(crate) fn docker(args: &[&str]) -> String {
    let output = command(args).output().expect("docker starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker {args:?}: {error}");
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

pub(crate) fn succeeds(args: &[&str]) -> bool {
    command(args).output().is_ok_and(|output| output.status.success())
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new("docker");
    command.args(args);
    command
}
