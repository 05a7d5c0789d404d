//! What a node says about itself when it registers.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use belljar_cluster::tls;
use belljar_engine::store::{NodeLoad, Store};
use belljar_sys::process;

use crate::settings::Settings;

/// The name of the secret that signs links, in the database. It is the same for all nodes, because any of them may get a
/// request for a link.
const LINK_KEY: &str = "links";

/// The id of this node: as set, or random and kept.
pub(super) fn node_id(settings: &Settings) -> Result<String> {
    if let Some(id) = &settings.cluster.node_id {
        return Ok(id.clone());
    }
    let path = settings.state_dir.join("node-id");
    if let Ok(text) = fs::read_to_string(&path) {
        let id = text.trim();
        if tls::is_node_id(id) {
            return Ok(id.to_owned());
        }
    }
    let id = format!("node-{}", &process::random_name()[..16]);
    write(&path, id.as_bytes())?;
    Ok(id)
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

/// Snapshots of this node can be restored on nodes of the same class.
pub(super) fn class(_settings: &Settings, image: &str) -> String {
    format!("{}-{image}", std::env::consts::ARCH)
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

/// Makes the key that signs links the same on all nodes.
pub(super) async fn share_link_key(settings: &Settings, store: &dyn Store) -> Result<()> {
    let Some(records) = store.cluster() else { return Ok(()) };
    let fresh = process::random_bytes::<32>().to_vec();
    let key = records.shared_secret(LINK_KEY, fresh).await?;
    let path = settings.state_dir.join("links.key");
    if fs::read(&path).is_ok_and(|stored| stored == key) {
        return Ok(());
    }
    write(&path, &key)
}

/// Replaces a file that only its owner may read. After a crash it is the old or the new one.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    let fresh = path.with_extension("part");
    let write = || {
        let _ = fs::remove_file(&fresh);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    };
    write().with_context(|| format!("failed to write `{}`", path.display()))
}
