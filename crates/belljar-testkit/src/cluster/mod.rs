//! A cluster on one machine: nodes, gateways, Postgres and S3, each on a machine of its own in a private network.
//!
//! Everything ends with the [`Cluster`], also after a panic.

pub mod caller;
pub mod dice;
pub mod member;
pub mod network;
pub mod postgres;
pub mod process;
pub mod proxy;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use self::member::Member;
use self::network::Network;
use self::postgres::ClusterPostgres;
use self::proxy::Proxy;
use crate::client::{Client, Target};
use crate::s3::{Fault, S3Server};
use crate::values::text;
use crate::wait::eventually;

/// The lease of nodes in tests.
pub const LEASE: Duration = Duration::from_secs(3);

/// How long after the end of a lease a gateway takes the sessions of a node.
pub const MARGIN: Duration = Duration::from_secs(5);

/// The lease, the time until gateways act, and what a busy machine needs in addition.
pub const TAKE_OVER: Duration = Duration::from_secs(3 + 5 + 12);

/// Why clusters cannot run on this machine, if so.
pub fn is_impossible() -> Option<&'static str> {
    if !crate::skip::is_root() {
        return Some("network namespaces need root");
    }
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    match ["nft", "ip", "nsenter", "unshare", "setpriv", "openssl"]
        .iter()
        .all(|program| has(program))
    {
        true => ClusterPostgres::is_missing(),
        false => Some("one of the programs nft, ip, nsenter, unshare, setpriv, openssl is missing"),
    }
}

/// What a cluster has, before it starts.
pub struct Plan {
    nodes: usize,
    gateways: usize,
    standby: bool,
    env: Vec<(String, String)>,
}

impl Plan {
    pub fn new(nodes: usize, gateways: usize) -> Plan {
        Plan { nodes, gateways, standby: false, env: Vec::new() }
    }

    /// Postgres has a synchronous standby.
    #[must_use]
    pub fn with_standby(mut self) -> Plan {
        self.standby = true;
        self
    }

    /// A setting of all nodes and gateways.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Plan {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub async fn start(self) -> Cluster {
        Cluster::start(self).await
    }
}

/// A running cluster.
pub struct Cluster {
    // Dropped in this order: the members before the services that they use, the network last.
    pub nodes: Vec<Arc<Member>>,
    pub gateways: Vec<Arc<Member>>,
    pub s3: Proxy,
    pub postgres: ClusterPostgres,
    /// An API key of the default tenant.
    pub key: String,
    objects: S3Server,
    directory: TempDir,
    network: Network,
    env: Vec<(String, String)>,
}

impl Cluster {
    /// `nodes` nodes and `gateways` gateways, with short leases.
    pub async fn with(nodes: usize, gateways: usize) -> Cluster {
        Plan::new(nodes, gateways).start().await
    }

    async fn start(plan: Plan) -> Cluster {
        let directory = tempfile::tempdir().expect("a directory");
        make_authority(&directory);
        let network = Network::new();
        let postgres = ClusterPostgres::start(&network).await;
        if plan.standby {
            postgres.add_standby().await;
        }
        let objects = S3Server::start();
        let target = objects.endpoint().replace("http://", "").parse().expect("an address");
        let s3 = Proxy::start(network.own_address(), target).await;
        let env = Cluster::settings(&directory, &postgres, &s3, &objects, plan.env);
        let mut cluster = Cluster {
            nodes: Vec::new(),
            gateways: Vec::new(),
            s3,
            postgres,
            key: String::new(),
            objects,
            directory,
            network,
            env,
        };
        for _ in 0..plan.nodes {
            cluster.add_node().await;
        }
        // Without nodes the database stays empty, for a migration.
        if plan.nodes > 0 {
            cluster.has_ready_nodes(plan.nodes).await;
            cluster.key = cluster.make_key(&["--name", "test"]);
        }
        for _ in 0..plan.gateways {
            cluster.add_gateway().await;
        }
        cluster
    }

    fn settings(
        directory: &TempDir,
        postgres: &ClusterPostgres,
        s3: &Proxy,
        objects: &S3Server,
        more: Vec<(String, String)>,
    ) -> Vec<(String, String)> {
        let file = |name: &str| directory.path().join(name).display().to_string();
        let own = [
            ("BELLJAR_DATABASE_URL", postgres.url()),
            ("BELLJAR_CLUSTER_CA", file("ca.pem")),
            ("BELLJAR_CLUSTER_CA_KEY", file("ca.key")),
            ("BELLJAR_LEASE_S", LEASE.as_secs().to_string()),
        ];
        let through_proxy = [("AWS_ENDPOINT_URL", format!("http://{}", s3.address))];
        let own = objects.settings().into_iter().chain(own).chain(through_proxy);
        // Of several values of a setting the last one counts.
        own.map(|(name, value)| (name.to_owned(), value)).chain(more).collect()
    }

    /// Starts one more node.
    pub async fn add_node(&mut self) -> Arc<Member> {
        let name = format!("node-{}", self.nodes.len());
        let machine = self.network.add_machine(&name);
        let listen = format!("{}:8444", machine.address);
        let env = [
            ("BELLJAR_NODE_ID", name.clone()),
            ("BELLJAR_NODE_LISTEN", listen.clone()),
            ("BELLJAR_NODE_ADDRESS", listen),
        ];
        let node = self.member("node", machine, &env);
        node.start().await;
        self.nodes.push(Arc::clone(&node));
        node
    }

    /// Starts one more gateway and waits until it answers.
    pub async fn add_gateway(&mut self) -> Arc<Member> {
        let name = format!("gateway-{}", self.gateways.len());
        let machine = self.network.add_machine(&name);
        let env = [("BELLJAR_LISTEN", format!("{}:8443", machine.address))];
        let gateway = self.member("gateway", machine, &env);
        gateway.start().await;
        self.gateways.push(Arc::clone(&gateway));
        self.answers(self.gateways.len() - 1).await;
        gateway
    }

    fn member(
        &self,
        command: &'static str,
        machine: network::Machine,
        env: &[(&str, String)],
    ) -> Arc<Member> {
        let logs = self.directory.path().to_owned();
        let own = env.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let env: Vec<_> = self.env.iter().cloned().chain(own).collect();
        Arc::new(Member::new(command, machine, &env, logs))
    }

    /// The settings that all nodes and gateways have, for processes that the test itself starts.
    pub fn env(&self) -> &[(String, String)] {
        &self.env
    }

    /// The next `times` requests to S3 with this method get this fault.
    pub fn fail_s3(&self, method: &'static str, fault: Fault, times: usize) {
        self.objects.fail_method(method, fault, times);
    }

    /// The file with the content of an object in S3.
    pub fn object(&self, key: &str) -> PathBuf {
        self.objects.file(key)
    }

    /// The test's own address, at which nodes find S3.
    pub fn own_address(&self) -> std::net::Ipv4Addr {
        self.network.own_address()
    }

    /// A client of a gateway.
    pub fn client(&self, gateway: usize) -> Client {
        Client::new(Target::Tcp(self.gateways[gateway].gateway_address())).with_key(&self.key)
    }

    /// Waits until a gateway answers.
    pub async fn answers(&self, gateway: usize) {
        let address = self.gateways[gateway].gateway_address();
        eventually(&format!("gateway {gateway} answers"), async || {
            let path = (hyper::Method::GET, "/readyz");
            let answer = caller::call(address, &self.key, path, "", Duration::from_secs(5)).await;
            answer.is_ok_and(|answer| answer.status == 200)
        })
        .await;
    }

    /// Waits until this many nodes have a valid lease.
    pub async fn has_ready_nodes(&self, count: usize) {
        let query = "select count(*) from nodes where state = 'ready' and lease_until > now()";
        self.postgres.returns(query, &count.to_string()).await;
    }

    /// Creates an API key with `belljar key create` and returns its secret.
    pub fn make_key(&self, args: &[&str]) -> String {
        let made = self.nodes[0].installation.key(args);
        text(&made["secret"]).to_owned()
    }

    /// Which node owns a session; none while it is asleep.
    pub fn owner(&self, session: &str) -> Option<usize> {
        let owner =
            self.postgres.query(&format!("select owner from sessions where id = '{session}'"));
        self.nodes.iter().position(|node| node.machine.name == owner.trim())
    }

    /// Copies all logs to a directory that stays, and returns its path.
    pub fn keep_logs(&self) -> PathBuf {
        let kept = std::env::temp_dir().join(format!("cluster-logs-{}", std::process::id()));
        fs::create_dir_all(&kept).expect("a directory");
        for name in crate::values::names(self.directory.path()) {
            if name.ends_with(".log") {
                let _ = fs::copy(self.directory.path().join(&name), kept.join(&name));
            }
        }
        let _ = fs::write(kept.join("postgres.log"), self.postgres.log());
        kept
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- logs of the cluster: {}", self.keep_logs().display());
        }
    }
}

/// Writes a certificate authority for the connections between gateways and nodes.
fn make_authority(directory: &TempDir) {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=belljar-test"]);
    openssl.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    openssl.args(["-addext", "keyUsage=critical,keyCertSign,cRLSign"]);
    openssl.arg("-keyout").arg(directory.path().join("ca.key"));
    openssl.arg("-out").arg(directory.path().join("ca.pem"));
    network::run(&mut openssl);
}
