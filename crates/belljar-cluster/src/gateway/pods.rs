//! Watches the pods of nodes in Kubernetes, so that gateways learn of a dead node before its lease ends.
//!
//! The id of a node is the UID of its pod. A node is dead if its pod has ended and the kubelet has reported the end of all its
//! containers. A pod object that is gone proves nothing: it may have been deleted by force while its machine could not be
//! reached. Then the lease decides.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::in_full;
use belljar_engine::store::Store;
use reqwest::Response;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::nodes::{self, Nodes, Routes};
use crate::tls::{self, TlsError};

/// Where Kubernetes puts the account of a pod.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How long one watch lasts. Then the pods are listed again.
const WATCH_S: u64 = 300;

/// How long the API server may take for the head of an answer, or say nothing within a watch.
const CONNECT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(WATCH_S + 30);

/// The pause after a failure; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Dead pods that wait to be handled.
const QUEUED: usize = 64;

/// The longest event. The API server refuses larger objects itself.
const MAX_EVENT: usize = 4 << 20;

/// The longest list of pods.
const MAX_LIST: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum PodWatchError {
    #[error("BELLJAR_POD_SELECTOR is set, but this is not a pod: KUBERNETES_SERVICE_HOST is {0}")]
    NoPod(&'static str),
    #[error("failed to read `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("failed to trust the API server")]
    Tls(#[source] TlsError),
    #[error("failed to set up HTTP")]
    Http(#[source] reqwest::Error),
    #[error("the API server did not answer")]
    Request(#[source] reqwest::Error),
    #[error("the API server sent what is not JSON")]
    Json(#[source] serde_json::Error),
    #[error("the API server sent more than {0} bytes at once")]
    TooLarge(usize),
    #[error("the API server ended the watch: {0}")]
    Ended(String),
    #[error("the API server sent nothing for {} s", SILENCE.as_secs())]
    Silent,
}

/// The pods of nodes, as the API server of Kubernetes knows them.
#[derive(Debug)]
pub struct PodWatch {
    client: reqwest::Client,
    pods: String,
    selector: String,
    /// Read for each request, because the kubelet renews it.
    token: PathBuf,
}

#[derive(Debug, Deserialize)]
struct PodList {
    metadata: Metadata,
    items: Vec<Pod>,
}

#[derive(Debug, Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    uid: String,
    resource_version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    phase: String,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    state: ContainerState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    terminated: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Event {
    r#type: String,
    object: serde_json::Value,
}

impl Pod {
    /// All its processes have ended, and it never starts others.
    fn is_dead(&self) -> bool {
        let containers = &self.status.container_statuses;
        matches!(self.status.phase.as_str(), "Failed" | "Succeeded")
            && !containers.is_empty()
            && containers.iter().all(|container| container.state.terminated.is_some())
    }
}

impl PodWatch {
    /// Watches pods with these labels in the namespace of this process' own pod.
    pub fn in_cluster(selector: String) -> Result<PodWatch, PodWatchError> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host = variable("KUBERNETES_SERVICE_HOST").ok_or(PodWatchError::NoPod("not set"))?;
        let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
        let host = match host.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ => host,
        };
        PodWatch::new(&format!("https://{host}:{port}"), Path::new(ACCOUNT), selector)
    }

    fn new(server: &str, account: &Path, selector: String) -> Result<PodWatch, PodWatchError> {
        let namespace = read(&account.join("namespace"))?;
        let tls = tls::trusting_only(&account.join("ca.crt")).map_err(PodWatchError::Tls)?;
        let builder = reqwest::Client::builder()
            .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .no_proxy()
            .http1_only()
            .tls_backend_preconfigured(tls);
        Ok(PodWatch {
            client: builder.build().map_err(PodWatchError::Http)?,
            pods: format!("{server}/api/v1/namespaces/{}/pods", namespace.trim()),
            selector,
            token: account.join("token"),
        })
    }

    /// Sends the UID of each pod that is dead, at least once, until something fails.
    async fn follow(&self, dead: &mpsc::Sender<String>) -> Result<(), PodWatchError> {
        loop {
            let list = self.get(&[]).await?;
            let list: PodList =
                serde_json::from_slice(&whole(list).await?).map_err(PodWatchError::Json)?;
            for pod in list.items.into_iter().filter(Pod::is_dead) {
                let _ = dead.send(pod.metadata.uid).await;
            }
            self.watch(&list.metadata.resource_version, dead).await?;
        }
    }

    /// Follows the changes after a list, until the API server ends the watch.
    async fn watch(&self, after: &str, dead: &mpsc::Sender<String>) -> Result<(), PodWatchError> {
        let seconds = WATCH_S.to_string();
        let query = [("watch", "true"), ("resourceVersion", after), ("timeoutSeconds", &seconds)];
        let mut events = Lines::new(self.get(&query).await?);
        while let Some(line) = events.next().await? {
            let event: Event = serde_json::from_slice(&line).map_err(PodWatchError::Json)?;
            if event.r#type == "ERROR" {
                // Mostly 410: what followed the list is no longer known.
                return Err(PodWatchError::Ended(event.object["message"].to_string()));
            }
            let pod = Pod::deserialize(event.object).map_err(PodWatchError::Json)?;
            if pod.is_dead() {
                let _ = dead.send(pod.metadata.uid).await;
            }
        }
        Ok(())
    }

    async fn get(&self, query: &[(&str, &str)]) -> Result<Response, PodWatchError> {
        let token = read(&self.token)?;
        let request = self.client.get(&self.pods).bearer_auth(token.trim());
        let request = request.query(&[("labelSelector", self.selector.as_str())]).query(query);
        let sent = tokio::time::timeout(CONNECT, request.send()).await;
        let answer = sent.map_err(|_| PodWatchError::Silent)?.map_err(PodWatchError::Request)?;
        answer.error_for_status().map_err(PodWatchError::Request)
    }
}

/// The lines of an answer.
struct Lines {
    answer: Response,
    received: Vec<u8>,
    /// So many of the received bytes are not the end of a line.
    searched: usize,
}

impl Lines {
    fn new(answer: Response) -> Lines {
        Lines { answer, received: Vec::new(), searched: 0 }
    }

    /// The next line; `None` at the end of the answer. A line that was cut off is dropped.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, PodWatchError> {
        loop {
            let unsearched = &self.received[self.searched..];
            if let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(self.searched + end + 1);
                self.searched = 0;
                return Ok(Some(std::mem::replace(&mut self.received, rest)));
            }
            self.searched = self.received.len();
            if self.received.len() > MAX_EVENT {
                return Err(PodWatchError::TooLarge(MAX_EVENT));
            }
            let chunk = tokio::time::timeout(SILENCE, self.answer.chunk()).await;
            let chunk = chunk.map_err(|_| PodWatchError::Silent)?;
            match chunk.map_err(PodWatchError::Request)? {
                Some(chunk) => self.received.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }
}

async fn whole(mut answer: Response) -> Result<Vec<u8>, PodWatchError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(PodWatchError::Request)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_LIST {
            return Err(PodWatchError::TooLarge(MAX_LIST));
        }
    }
    Ok(body)
}

fn read(path: &Path) -> Result<String, PodWatchError> {
    fs::read_to_string(path).map_err(|cause| PodWatchError::Read { path: path.into(), cause })
}

/// Takes the sessions of dead nodes over at once, for as long as the gateway runs.
pub(super) async fn watch_pods(
    watch: PodWatch,
    store: Arc<dyn Store>,
    nodes: Arc<Nodes>,
    routes: Arc<Routes>,
) {
    let (dead, mut died) = mpsc::channel::<String>(QUEUED);
    tokio::spawn(async move {
        while let Some(uid) = died.recv().await {
            nodes::take_over_dead(&uid, &*store, &nodes, &routes).await;
        }
    });
    let mut pause = FIRST_PAUSE;
    loop {
        let begun = Instant::now();
        if let Err(error) = watch.follow(&dead).await {
            let why = in_full(&error);
            tracing::warn!("cannot watch the pods of nodes; leases still decide: {why}");
        }
        if begun.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests;
