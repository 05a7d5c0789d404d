//! The nodes of the cluster, and where sessions are, as this gateway knows them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_engine::in_full;
use belljar_engine::store::{ClusterRecords, NodeRow, Store, TakenOver};
use tokio::sync::watch;

use super::placement;
use crate::lease::TAKE_OVER_MARGIN;

/// How often the nodes are read, and expired leases are looked for.
const PACE: Duration = Duration::from_secs(1);

/// The most cached routes. When there are more, all are dropped: each is one quick query.
const MAX_ROUTES: usize = 100_000;

/// The nodes, read each second. While the database cannot be reached, the last list is kept.
#[derive(Debug)]
pub(super) struct Nodes {
    list: watch::Sender<Arc<Vec<NodeRow>>>,
    /// The nodes that are neither lost nor gone. Changes only when a node comes or goes, so waiting for it is cheap. An
    /// expired lease does not count: after an outage of the database, all of them are expired until they are renewed.
    alive: watch::Sender<BTreeSet<String>>,
}

impl Default for Nodes {
    fn default() -> Nodes {
        Nodes { list: watch::Sender::new(Arc::default()), alive: watch::Sender::default() }
    }
}

impl Nodes {
    #[must_use]
    pub(super) fn list(&self) -> Arc<Vec<NodeRow>> {
        Arc::clone(&self.list.borrow())
    }

    #[must_use]
    pub(super) fn find(&self, id: &str) -> Option<NodeRow> {
        self.list.borrow().iter().find(|node| node.id == id).cloned()
    }

    /// How many nodes are neither lost nor gone.
    #[must_use]
    pub(super) fn alive(&self) -> usize {
        self.alive.borrow().len()
    }

    /// Resolves when the node was found to be lost: no answer of it is to be waited for. A node that is not in the list
    /// yet has registered a moment ago.
    pub(super) async fn lost(&self, id: &str) {
        let mut alive = self.alive.subscribe();
        let mut was_seen = false;
        let is_lost = |alive: &BTreeSet<String>| {
            let is_alive = alive.contains(id);
            was_seen |= is_alive;
            was_seen && !is_alive
        };
        if alive.wait_for(is_lost).await.is_err() {
            // The list ends with the gateway itself.
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn set(&self, rows: Vec<NodeRow>) {
        let alive = rows.iter().filter(|node| !placement::has_ended(node));
        let alive: BTreeSet<String> = alive.map(|node| node.id.clone()).collect();
        self.list.send_replace(Arc::new(rows));
        self.alive.send_if_modified(|before| {
            let is_new = *before != alive;
            if is_new {
                *before = alive;
            }
            is_new
        });
    }

    /// Reads the nodes once. Returns whether that succeeded.
    pub(super) async fn read(&self, store: &dyn Store) -> bool {
        let Some(records) = store.cluster() else { return false };
        match records.nodes().await {
            Ok(rows) => {
                self.set(rows);
                true
            }
            Err(error) => {
                tracing::warn!("failed to read the nodes: {}", in_full(&error));
                false
            }
        }
    }
}

/// Which node owns which session, as last seen. An entry may be out of date: the node answers 421 then.
#[derive(Debug, Default)]
pub(super) struct Routes(Mutex<HashMap<String, String>>);

impl Routes {
    /// The id of the node that owned the session.
    #[must_use]
    pub(super) fn find(&self, session: &str) -> Option<String> {
        self.lock().get(session).cloned()
    }

    pub(super) fn set(&self, session: &str, node: &str) {
        let mut routes = self.lock();
        if routes.len() >= MAX_ROUTES {
            routes.clear();
        }
        routes.insert(session.to_owned(), node.to_owned());
    }

    pub(super) fn forget(&self, session: &str) {
        self.lock().remove(session);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the nodes and takes over expired leases, each second, for as long as the gateway runs.
pub(super) async fn watch_nodes(store: Arc<dyn Store>, nodes: Arc<Nodes>, routes: Arc<Routes>) {
    loop {
        tokio::time::sleep(PACE).await;
        let Some(records) = store.cluster() else { return };
        take_over(records, &routes).await;
        nodes.read(&*store).await;
    }
}

/// Takes over the sessions of a node that has certainly ended, without waiting for the end of its lease.
pub(super) async fn take_over_dead(id: &str, store: &dyn Store, nodes: &Nodes, routes: &Routes) {
    let Some(records) = store.cluster() else { return };
    if nodes.find(id).is_none_or(|node| placement::has_ended(&node)) {
        return;
    }
    match records.lose_node(id).await {
        Ok(()) => tracing::warn!(node.id = id, "the pod of node {id} has ended"),
        // The end of its lease is noticed anyway.
        Err(error) => tracing::warn!(node.id = id, "failed to take it over: {}", in_full(&error)),
    }
    take_over(records, routes).await;
    nodes.read(store).await;
}

async fn take_over(records: &dyn ClusterRecords, routes: &Routes) {
    match records.take_over_expired(TAKE_OVER_MARGIN).await {
        Ok(taken) => taken.iter().for_each(|taken| report(taken, routes)),
        Err(error) => tracing::warn!("failed to look for expired leases: {}", in_full(&error)),
    }
}

fn report(taken: &TakenOver, routes: &Routes) {
    let (asleep, lost) = (taken.asleep.len(), taken.lost.len());
    tracing::warn!(
        node.id = %taken.node,
        "node {} is lost: {asleep} session(s) go on elsewhere, {lost} session(s) are lost",
        taken.node
    );
    taken.asleep.iter().chain(&taken.lost).for_each(|session| routes.forget(session));
}

#[cfg(test)]
mod tests {
    use belljar_engine::store::{NodeLoad, NodeState};

    use super::*;

    fn node(id: &str, state: NodeState) -> NodeRow {
        NodeRow {
            id: id.to_owned(),
            epoch: 1,
            address: String::new(),
            class: String::new(),
            state,
            capacity: NodeLoad::default(),
            used: NodeLoad::default(),
            lease_left_ms: 1,
        }
    }

    #[tokio::test]
    async fn a_request_stops_waiting_when_its_node_is_lost() {
        let nodes = Arc::new(Nodes::default());
        nodes.set(vec![node("a", NodeState::Ready), node("b", NodeState::Draining)]);
        assert_eq!(nodes.alive(), 2);
        let waiting = {
            let nodes = Arc::clone(&nodes);
            tokio::spawn(async move { nodes.lost("a").await })
        };
        nodes.set(vec![node("a", NodeState::Ready), node("b", NodeState::Gone)]);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "another node is gone");
        nodes.set(vec![node("a", NodeState::Lost)]);
        waiting.await.unwrap();
    }

    #[test]
    fn routes_are_bounded() {
        let routes = Routes::default();
        for n in 0..=MAX_ROUTES {
            routes.set(&n.to_string(), "a");
        }
        assert!(routes.lock().len() <= MAX_ROUTES);
        assert_eq!(routes.find(&MAX_ROUTES.to_string()).as_deref(), Some("a"));
        routes.forget(&MAX_ROUTES.to_string());
        assert_eq!(routes.find(&MAX_ROUTES.to_string()), None);
    }
}
