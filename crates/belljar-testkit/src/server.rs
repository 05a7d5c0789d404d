//! A running `belljar serve`, with a client that talks to it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use belljar_sys::{process, procfs};
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::installation::{Installation, command_line, pid_inside};
use crate::session::Session;
use crate::wait::{PATIENCE, eventually};

const SIGTERM: i32 = 15;

/// A running server; killed when dropped. What it leaves is removed with its installation.
pub struct Server {
    pub(crate) client: Client,
    pub(crate) child: Option<Child>,
    pub(crate) said: Arc<Mutex<String>>,
    pub installation: Arc<Installation>,
}

impl std::ops::Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Server {
    pub async fn start() -> Server {
        Server::with(&[]).await
    }

    pub async fn with(env: &[(&str, &str)]) -> Server {
        let installation = env
            .iter()
            .fold(Installation::new(), |installation, (name, value)| installation.env(name, value));
        Arc::new(installation).serve().await
    }

    /// Waits until packages are loaded and the sandbox that loads them is gone.
    pub async fn warmed_up(&self) {
        let is_warm = async || self.get("/healthz").await.json(200)["zygote"] == "warm";
        eventually("the zygote is warm", is_warm).await;
    }

    /// A client that outlives the borrow, for concurrent requests.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.installation.path(name)
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Everything it has printed so far.
    pub fn said(&self) -> String {
        self.said.lock().expect("not poisoned").clone()
    }

    /// Resident memory, in bytes.
    pub fn rss(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib << 10
    }

    /// A process of the server, outside of sandboxes, with these words in its command line.
    pub fn descendant(&self, words: &str) -> Option<u32> {
        let mut pids = procfs::descendants(&procfs::parents(), self.pid());
        pids.retain(|pid| pid_inside(*pid).is_none() && command_line(*pid).contains(words));
        pids.into_iter().find(|pid| !procfs::is_zombie(*pid))
    }

    /// The value of a counter or gauge; 0 if it is not listed yet.
    pub async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text(200);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.trim().parse().expect("a number"))
    }

    /// Asks the server to stop, as an operator would, and waits for its end.
    pub async fn terminate(mut self) -> String {
        self.ask_to_stop();
        let status = self.wait().await;
        assert!(status.success(), "{status}:\n{}", self.said());
        self.said()
    }

    pub fn ask_to_stop(&self) {
        process::signal(self.pid(), SIGTERM).expect("it runs");
    }

    /// Kills it with SIGKILL.
    pub async fn kill(mut self) -> Arc<Installation> {
        self.child.as_mut().expect("it runs").kill().expect("it can be killed");
        self.wait().await;
        Arc::clone(&self.installation)
    }

    /// Waits for its end.
    pub async fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it was not waited for");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().expect("it is our child") {
                return status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("it does not end:\n{}", self.said());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn session(&self) -> Session {
        self.session_with(json!({})).await
    }

    /// Posts to this path of a session, and returns the answer.
    pub async fn post_path(&self, session: &Session, path: &str) -> Value {
        self.post_answer(session, path).await.json(200)
    }

    pub async fn post_answer(&self, session: &Session, path: &str) -> Answer {
        self.post(&session.path(path), json!({})).await
    }

    pub async fn session_with(&self, ask: Value) -> Session {
        self.client.session_with(ask).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                eprintln!("--- the server said:\n{}", self.said());
            }
        }
    }
}
