//! What a node says about itself when it registers.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, bail};
use belljar_engine::store::NodeLoad;

use crate::records;
use crate::settings::Settings;

/// The id of this node: as set, or random and kept.
pub(super) fn node_id(settings: &Settings) -> Result<String> {
    match &settings.cluster.node_id {
        Some(id) => Ok(id.clone()),
        None => records::node_id(&settings.state_dir),
    }
}

/// The address for gateways.
pub(super) fn address(settings: &Settings, listening: Option<SocketAddr>) -> Result<String> {
    if let Some(address) = &settings.cluster.node_address {
        return Ok(address.clone());
    }
    let listening = listening.context("BELLJAR_NODE_LISTEN: no address")?;
    if !listening.ip().is_unspecified() {
        return Ok(listening.to_string());
    }
    match own_address() {
        Some(ip) => Ok(SocketAddr::new(ip, listening.port()).to_string()),
        None => bail!(
            "this machine has no route from which its address could be found; set \
             BELLJAR_NODE_ADDRESS"
        ),
    }
}

/// The address of this machine towards other networks. Connecting a UDP socket sends nothing.
fn own_address() -> Option<IpAddr> {
    let towards = |own: &str, other: &str| {
        let socket = UdpSocket::bind((own, 0)).ok()?;
        socket.connect((other, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    // Addresses for documentation, which belong to no machine.
    towards("0.0.0.0", "192.0.2.1").or_else(|| towards("::", "2001:db8::1"))
}

/// Snapshots of this node can be restored on nodes of the same class: the same kind of processor and the same default
/// image. That the libraries are the same is checked when a snapshot is restored.
pub(crate) fn class(image: &str) -> String {
    format!("{}-{image}", belljar_sys::wake_class::wake_class())
}

/// What sandboxes of this node may reserve.
pub(super) fn capacity(settings: &Settings) -> NodeLoad {
    let total = settings.server.total;
    NodeLoad {
        sessions: total.sessions.unwrap_or_default(),
        memory: total.memory.or_else(machine_memory).unwrap_or_default(),
    }
}

/// The memory of the machine, in bytes.
fn machine_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}
