//! Settings of nodes and gateways.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use belljar_cluster::tls::{self, ClusterTls, Role};

use super::parse;
use super::values::Values;

/// Used by `belljar node` and `belljar gateway` only, so nothing here must be set for other commands.
#[derive(Debug, Clone)]
pub struct ClusterSettings {
    /// `None`: random, and kept in the state directory.
    pub node_id: Option<String>,
    pub node_listen: SocketAddr,
    /// What gateways connect to: a host and a port.
    pub node_address: Option<String>,
    ca: Option<PathBuf>,
    ca_key: Option<PathBuf>,
    pub lease: Duration,
    /// How long a stopping node takes to give its sessions away.
    pub node_drain: Duration,
    /// How often awake sessions are copied to S3.
    pub snapshot_every: Option<Duration>,
    /// The labels of nodes' pods, if gateways may watch them.
    pub pod_selector: Option<String>,
    /// Health checks and metrics without TLS and keys.
    pub health_listen: Option<SocketAddr>,
}

impl ClusterSettings {
    pub(super) fn read(values: &Values<'_>) -> Result<ClusterSettings> {
        let seconds = |name| values.read(name, parse::number(3..=3600)).map(Duration::from_secs);
        Ok(ClusterSettings {
            node_id: values.optional("BELLJAR_NODE_ID", node_id)?,
            node_listen: values.read("BELLJAR_NODE_LISTEN", parse::address)?,
            node_address: values.optional("BELLJAR_NODE_ADDRESS", host_and_port)?,
            ca: values.path("BELLJAR_CLUSTER_CA")?,
            ca_key: values.path("BELLJAR_CLUSTER_CA_KEY")?,
            lease: seconds("BELLJAR_LEASE_S")?,
            node_drain: Duration::from_secs(
                values.read("BELLJAR_NODE_DRAIN_S", parse::number(0..=86_400))?,
            ),
            snapshot_every: values
                .limit("BELLJAR_SNAPSHOT_EVERY_S", parse::seconds_or_0)?
                .map(Duration::from_secs),
            pod_selector: values.optional("BELLJAR_POD_SELECTOR", |text| Some(text.to_owned()))?,
            health_listen: values.optional("BELLJAR_HEALTH_LISTEN", parse::address)?,
        })
    }

    /// The TLS settings of a process with this role.
    pub fn tls(&self, role: &Role) -> Result<ClusterTls> {
        let (ca, key) = match (&self.ca, &self.ca_key) {
            (Some(ca), Some(key)) => (ca, key),
            (None, _) => bail!(
                "BELLJAR_CLUSTER_CA is not set; `belljar cluster ca --out DIR` makes an authority"
            ),
            (_, None) => bail!("BELLJAR_CLUSTER_CA is set and BELLJAR_CLUSTER_CA_KEY is not"),
        };
        ClusterTls::load(ca, key, role).context("BELLJAR_CLUSTER_CA, BELLJAR_CLUSTER_CA_KEY")
    }
}

fn node_id(text: &str) -> Option<String> {
    tls::is_node_id(text).then(|| text.to_owned())
}

fn host_and_port(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|port| *port > 0)?;
    parse::host(host).map(|host| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::with;

    #[test]
    fn defaults_need_nothing_to_be_set() {
        let cluster = with(&[]).unwrap().cluster;
        assert_eq!(cluster.node_listen.to_string(), "0.0.0.0:8444");
        assert_eq!((cluster.lease.as_secs(), cluster.node_drain.as_secs()), (30, 570));
        assert_eq!((cluster.node_id, cluster.node_address), (None, None));
        assert_eq!((cluster.health_listen, cluster.snapshot_every), (None, None));
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for (name, value) in [
            ("BELLJAR_NODE_ID", "Node 1"),
            ("BELLJAR_NODE_LISTEN", "everywhere"),
            ("BELLJAR_NODE_ADDRESS", "10.0.0.1"),
            ("BELLJAR_NODE_ADDRESS", "10.0.0.1:0"),
            ("BELLJAR_LEASE_S", "1"),
            ("BELLJAR_HEALTH_LISTEN", "8081"),
        ] {
            let error = with(&[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
        let address = |text| with(&[("BELLJAR_NODE_ADDRESS", text)]).unwrap().cluster.node_address;
        assert_eq!(address("[fd00::1]:8444").as_deref(), Some("[fd00::1]:8444"));
        assert_eq!(address("Node-1.nodes:8444").as_deref(), Some("node-1.nodes:8444"));
    }

    #[test]
    fn a_missing_authority_is_named() {
        use belljar_cluster::tls::Role;
        let tls = |pairs: &[(&str, &str)]| {
            format!("{:#}", with(pairs).unwrap().cluster.tls(&Role::Gateway).unwrap_err())
        };
        assert!(tls(&[]).contains("belljar cluster ca"));
        assert!(tls(&[("BELLJAR_CLUSTER_CA", "/x")]).contains("BELLJAR_CLUSTER_CA_KEY"));
        let both = [("BELLJAR_CLUSTER_CA", "/nowhere"), ("BELLJAR_CLUSTER_CA_KEY", "/nowhere")];
        assert!(tls(&both).contains("/nowhere"));
    }
}
