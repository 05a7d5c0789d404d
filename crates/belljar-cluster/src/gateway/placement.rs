//! Chooses nodes for new sessions and for sessions without an owner. No I/O.

use belljar_engine::store::{NodeRow, NodeState};
use belljar_sys::wake_class::can_wake_on;

/// From how many random nodes the one with the most room is chosen. Always choosing the emptiest of all would send it the
/// requests of all gateways at once.
pub(super) const CANDIDATES: usize = 3;

/// Above this share of reserved memory, a hinted node is not preferred any more.
const HINT_LIMIT: f64 = 0.9;

/// What a session needs of its node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// The only node that can have it.
    pub(super) pinned: Option<String>,
    /// The class of the node that made its snapshot, see [`can_wake_on`].
    pub(super) class: Option<String>,
    /// The node that probably still has its files.
    pub(super) hint: Option<String>,
}

/// The nodes to try, the best first. `random` returns a number below its argument.
pub(super) fn candidates<'a>(
    nodes: &'a [NodeRow],
    wish: &Wish,
    mut random: impl FnMut(usize) -> usize,
) -> Vec<&'a NodeRow> {
    if let Some(pinned) = &wish.pinned {
        return nodes.iter().filter(|node| node.id == *pinned && is_alive(node)).collect();
    }
    let open: Vec<&NodeRow> = nodes.iter().filter(|node| accepts_sessions(node)).collect();
    let can_wake = |node: &&NodeRow| match &wish.class {
        Some(class) => can_wake_on(class, &node.class).is_ok(),
        None => true,
    };
    let (able, others): (Vec<&NodeRow>, Vec<&NodeRow>) = open.into_iter().partition(can_wake);
    // If no node can restore its memory, a session goes on with its files only, which is better than nothing.
    let mut open = if able.is_empty() { others } else { able };
    let hinted = wish.hint.as_ref().and_then(|hint| {
        let found = open.iter().position(|node| node.id == *hint && reserved(node) < HINT_LIMIT)?;
        Some(open.swap_remove(found))
    });
    let mut chosen: Vec<&NodeRow> = Vec::with_capacity(CANDIDATES + 1);
    while chosen.len() < CANDIDATES && !open.is_empty() {
        chosen.push(open.swap_remove(random(open.len())));
    }
    chosen.sort_by(|a, b| reserved(a).total_cmp(&reserved(b)));
    hinted.into_iter().chain(chosen).collect()
}

/// Whether the node can answer requests.
#[must_use]
pub(super) fn is_alive(node: &NodeRow) -> bool {
    !has_ended(node) && node.lease_left_ms > 0
}

/// Whether the node is lost or gone, so that it will not answer any more.
#[must_use]
pub(super) fn has_ended(node: &NodeRow) -> bool {
    matches!(node.state, NodeState::Lost | NodeState::Gone)
}

/// A single server (`belljar serve` with Postgres) has no address for gateways.
fn accepts_sessions(node: &NodeRow) -> bool {
    node.state == NodeState::Ready && node.lease_left_ms > 0 && !node.address.is_empty()
}

/// The share of the node's memory that is reserved. A node without a memory limit counts its sessions instead.
#[must_use]
pub(super) fn reserved(node: &NodeRow) -> f64 {
    let share = |used: u64, capacity: u64| {
        #[expect(clippy::cast_precision_loss, reason = "a share needs no exact numbers")]
        let share = used as f64 / capacity as f64;
        share
    };
    match (node.capacity.memory, node.capacity.sessions) {
        (0, 0) => share(node.used.sessions, 1000),
        (0, sessions) => share(node.used.sessions, sessions),
        (memory, _) => share(node.used.memory, memory),
    }
}

#[cfg(test)]
mod tests {
    use belljar_engine::store::NodeLoad;
    use proptest::prelude::*;

    use super::*;

    fn node(id: &str, used_mib: u64) -> NodeRow {
        NodeRow {
            id: id.to_owned(),
            epoch: 1,
            address: format!("{id}:1"),
            class: "a".to_owned(),
            state: NodeState::Ready,
            capacity: NodeLoad { sessions: 100, memory: 1000 << 20 },
            used: NodeLoad { sessions: 1, memory: used_mib << 20 },
            lease_left_ms: 1000,
        }
    }

    fn ids(nodes: &[NodeRow], wish: &Wish) -> Vec<String> {
        candidates(nodes, wish, |_| 0).into_iter().map(|node| node.id.clone()).collect()
    }

    #[test]
    fn the_emptiest_is_first_and_there_are_three() {
        let nodes = [node("a", 500), node("b", 100), node("c", 300), node("d", 0)];
        let chosen = ids(&nodes, &Wish::default());
        assert_eq!(chosen.len(), CANDIDATES);
        assert!(chosen.windows(2).all(|pair| {
            let used = |id: &String| nodes.iter().find(|node| node.id == *id).unwrap().used.memory;
            used(&pair[0]) <= used(&pair[1])
        }));
    }

    #[test]
    fn draining_and_lost_nodes_get_nothing() {
        let mut nodes = [node("a", 0), node("b", 0), node("c", 900), node("d", 0)];
        nodes[0].state = NodeState::Draining;
        nodes[1].state = NodeState::Lost;
        nodes[3].lease_left_ms = -1;
        let mut nodes = nodes.to_vec();
        nodes.push(NodeRow { address: String::new(), ..node("single server", 0) });
        assert_eq!(ids(&nodes, &Wish::default()), ["c"]);
    }

    #[test]
    fn a_session_goes_where_its_memory_can_be_restored_or_else_anywhere() {
        let mut nodes = [node("a", 0), node("b", 900), node("c", 950)];
        nodes[0].class = "x86_64 1 avx native".to_owned();
        nodes[1].class = "x86_64 1 avx,avx2 native".to_owned();
        nodes[2].class = "x86_64 1 avx,avx2,sha_ni native".to_owned();
        let of = |class: &str| Wish { class: Some(class.to_owned()), ..Wish::default() };
        assert_eq!(ids(&nodes, &of("x86_64 1 avx native")), ["a", "b", "c"]);
        assert_eq!(ids(&nodes, &of("x86_64 1 avx,avx2 native")), ["b", "c"]);
        assert_eq!(ids(&nodes, &of("x86_64 1 sha_ni native")), ["c"]);
        assert_eq!(ids(&nodes, &of("aarch64 1  native")), ["a", "b", "c"], "its files only");
    }

    #[test]
    fn a_pinned_session_goes_nowhere_else() {
        let mut nodes = [node("a", 0), node("b", 990)];
        let wish = Wish { pinned: Some("b".to_owned()), ..Wish::default() };
        nodes[1].state = NodeState::Draining;
        assert_eq!(ids(&nodes, &wish), ["b"]);
        nodes[1].state = NodeState::Lost;
        assert!(ids(&nodes, &wish).is_empty());
    }

    #[test]
    fn a_hint_is_followed_while_there_is_room() {
        let nodes = [node("a", 0), node("b", 800), node("c", 950)];
        let hinting = |id: &str| Wish { hint: Some(id.to_owned()), ..Wish::default() };
        assert_eq!(ids(&nodes, &hinting("b"))[0], "b");
        assert_eq!(ids(&nodes, &hinting("c"))[0], "a");
        assert_eq!(ids(&nodes, &hinting("gone"))[0], "a");
    }

    proptest! {
        #[test]
        fn no_node_is_tried_twice_and_one_is_found_if_there_is_one(
            used in proptest::collection::vec(0_u64..1000, 0..12),
            hint in 0_usize..12,
            picks in proptest::collection::vec(0_usize..100, 4),
        ) {
            let names: Vec<String> = (0..used.len()).map(|n| format!("n{n}")).collect();
            let nodes: Vec<NodeRow> =
                names.iter().zip(&used).map(|(id, used)| node(id, *used)).collect();
            let wish = Wish { hint: Some(format!("n{hint}")), ..Wish::default() };
            let mut picks = picks.into_iter().cycle();
            let chosen = candidates(&nodes, &wish, |n| picks.next().unwrap_or(0) % n);
            prop_assert_eq!(chosen.is_empty(), nodes.is_empty());
            let mut unique: Vec<&str> = chosen.iter().map(|node| node.id.as_str()).collect();
            unique.sort_unstable();
            unique.dedup();
            prop_assert_eq!(unique.len(), chosen.len());
        }
    }
}
