//! Notices the end of containers, with one stream of engine events for all.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::{
    EventsOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
};
use futures_util::StreamExt;
use tokio::sync::watch;

use super::engine;
use super::recipe::labels;
use crate::lock;

/// Between attempts to connect to an engine that is not reachable.
const PAUSE: Duration = Duration::from_millis(500);

/// How often the list of running containers is also checked.
const LOOK_PACE: Duration = Duration::from_secs(3);

/// How a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Death {
    pub(super) out_of_memory: bool,
}

type Watches = Mutex<HashMap<String, watch::Sender<Option<Death>>>>;

/// The watched containers.
#[derive(Debug)]
pub(super) struct Deaths {
    watched: Arc<Watches>,
    task: tokio::task::JoinHandle<()>,
}

impl Deaths {
    pub(super) fn listen(docker: Docker, owner: &str) -> Deaths {
        let watched: Arc<Watches> = Arc::default();
        let task = tokio::spawn(listen(docker, owner.to_owned(), Arc::clone(&watched)));
        Deaths { watched, task }
    }

    /// Gets a value when the container has ended. To be called before it is started.
    pub(super) fn watch(&self, container: &str) -> watch::Receiver<Option<Death>> {
        let (sender, receiver) = watch::channel(None);
        lock(&self.watched).insert(container.to_owned(), sender);
        receiver
    }

    /// Stops watching a container.
    pub(super) fn forget(&self, container: &str) {
        lock(&self.watched).remove(container);
    }
}

impl Drop for Deaths {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(docker: Docker, owner: String, watched: Arc<Watches>) {
    loop {
        let filters = HashMap::from([
            ("type", vec!["container".to_owned()]),
            ("event", vec!["die".to_owned(), "destroy".to_owned()]),
            ("label", vec![format!("{}={owner}", labels::OWNER)]),
        ]);
        let options = EventsOptionsBuilder::new().filters(&filters).build();
        let mut events = docker.events(Some(options));
        loop {
            match tokio::time::timeout(LOOK_PACE, events.next()).await {
                Ok(Some(Ok(event))) => {
                    if let Some(container) = event.actor.and_then(|actor| actor.id) {
                        look_at(&docker, &watched, &container).await;
                    }
                }
                // Finds containers that ended before we listened, or while the engine was not reachable.
                Err(_) => look(&docker, &owner, &watched).await,
                Ok(Some(Err(_)) | None) => break,
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Checks all watched containers that do not run.
async fn look(docker: &Docker, owner: &str, watched: &Watches) {
    let filters = HashMap::from([("label", vec![format!("{}={owner}", labels::OWNER)])]);
    let options = ListContainersOptionsBuilder::new().filters(&filters).build();
    let Ok(running) = docker.list_containers(Some(options)).await else { return };
    let running: HashSet<String> = running.into_iter().filter_map(|seen| seen.id).collect();
    let containers: Vec<String> = lock(watched).keys().cloned().collect();
    for container in containers.iter().filter(|container| !running.contains(*container)) {
        look_at(docker, watched, container).await;
    }
}

async fn look_at(docker: &Docker, watched: &Watches, container: &str) {
    if !lock(watched).contains_key(container) {
        return;
    }
    let death = match docker.inspect_container(container, None::<InspectContainerOptions>).await {
        Ok(seen) => {
            let state = seen.state.unwrap_or_default();
            // A container that was just made does not run yet, and has not ended.
            let over = state.running == Some(false) && state.finished_at.is_some_and(is_a_time);
            over.then(|| Death { out_of_memory: state.oom_killed == Some(true) })
        }
        Err(error) if engine::is_gone(&error) => Some(Death { out_of_memory: false }),
        // The engine is not reachable; the check is repeated later.
        Err(_) => None,
    };
    if let (Some(death), Some(sender)) = (death, lock(watched).get(container)) {
        sender.send_replace(Some(death));
    }
}

/// Engines report the year 1 for "never".
fn is_a_time(text: String) -> bool {
    !text.is_empty() && !text.starts_with("0001-")
}
