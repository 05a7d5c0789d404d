//! Resolves names to addresses, without a thread per query.
//!
//! ```text
//!   Dns (one per server): BELLJAR_DNS or /etc/resolv.conf, and /etc/hosts, read again when they change
//!    └─ Resolver (one per sandbox): a permit per query ─▶ hosts file ─▶ DNS ─▶ addresses
//! ```
//!
//! `getaddrinfo` would block a thread until the DNS server answers. That thread is from the pool that file operations
//! need, and code in a sandbox can choose a name whose server never answers. Other sources of names (LDAP, multicast
//! DNS, `nsswitch.conf`) are not supported.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::lock;

/// Concurrent queries of one resolver; more wait for a permit.
const MAX_LOOKUPS: usize = 8;

/// Timeout of one query.
const MAX_LOOKUP: Duration = Duration::from_secs(15);

/// How many addresses of one name are used; each is checked and may be connected to.
const MAX_ADDRESSES: usize = 32;

/// Responses that a resolver caches, each for its time to live.
const CACHED: u64 = 64;

/// The shortest time between two checks of the files for changes; then the most bytes that are read of a file.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
const MAX_FILE: u64 = 4 << 20;

/// The most DNS servers in the setting.
const MAX_SERVERS: usize = 8;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";

/// The DNS configuration of this server.
#[derive(Debug, Default)]
pub struct Dns {
    /// Used instead of the servers in `/etc/resolv.conf`, unless empty.
    servers: Vec<SocketAddr>,
    loaded: Mutex<Option<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    checked: Instant,
    stamps: [Option<Stamp>; 2],
    config: Arc<DnsConfig>,
}

/// Detects a change of a file: inode, size, seconds and nanoseconds of the last change.
type Stamp = (u64, u64, i64, i64);

#[derive(Debug)]
struct DnsConfig {
    dns: ResolverConfig,
    options: ResolverOpts,
    hosts: Hosts,
}

impl Dns {
    /// Parses addresses of servers, with or without a port, separated by spaces or commas. An empty text means the
    /// servers in `/etc/resolv.conf`.
    pub fn parse(text: &str) -> Result<Dns, String> {
        let words = text.split(|c: char| c.is_whitespace() || c == ',');
        let servers: Result<Vec<_>, String> = words
            .filter(|word| !word.is_empty())
            .map(|word| {
                let alone = word.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53));
                let address = alone.or_else(|_| word.parse()).ok();
                address.filter(|address| address.port() > 0).ok_or_else(|| {
                    format!(
                        "`{}` is not an address such as 10.0.0.2 or [fd00::2]:53",
                        word.escape_debug()
                    )
                })
            })
            .collect();
        let servers = servers?;
        if servers.len() > MAX_SERVERS {
            return Err(format!("more than {MAX_SERVERS} servers"));
        }
        Ok(Dns { servers, loaded: Mutex::default() })
    }

    fn config(&self) -> Arc<DnsConfig> {
        let mut loaded = lock(&self.loaded);
        if let Some(loaded) = &*loaded
            && loaded.checked.elapsed() < CHECK_INTERVAL
        {
            return Arc::clone(&loaded.config);
        }
        let (checked, stamps) = (Instant::now(), [stamp(RESOLV_CONF), stamp(HOSTS)]);
        let config = match loaded.take() {
            Some(loaded) if loaded.stamps == stamps => loaded.config,
            _ => Arc::new(self.load()),
        };
        *loaded = Some(Loaded { checked, stamps, config: Arc::clone(&config) });
        config
    }

    fn load(&self) -> DnsConfig {
        let (dns, mut options) = match self.servers[..] {
            [] => from_resolv_conf(&read(RESOLV_CONF)),
            _ => (with_servers(self.servers.iter().copied()), ResolverOpts::default()),
        };
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.cache_size = CACHED;
        // `resolve` reads the hosts file before it queries the DNS.
        options.use_hosts_file = ResolveHosts::Never;
        let mut hosts = Hosts::default();
        if let Err(error) = hosts.read_hosts_conf(&read(HOSTS)[..]) {
            tracing::warn!(%error, "failed to read all of {HOSTS}");
        }
        DnsConfig { dns, options, hosts }
    }
}

fn from_resolv_conf(text: &[u8]) -> (ResolverConfig, ResolverOpts) {
    system_conf::parse_resolv_conf(text).unwrap_or_else(|error| {
        // resolv.conf(5): the default is the server on this machine.
        tracing::debug!(%error, "{RESOLV_CONF} has no server; the one on this machine is used");
        let own = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 53);
        (with_servers([own]), ResolverOpts::default())
    })
}

/// A configuration with these servers and no search domains.
fn with_servers(servers: impl IntoIterator<Item = SocketAddr>) -> ResolverConfig {
    let server = |address: SocketAddr| {
        let mut server = NameServerConfig::udp_and_tcp(address.ip());
        for connection in &mut server.connections {
            connection.port = address.port();
        }
        server
    };
    ResolverConfig::from_name_servers(servers.into_iter().map(server).collect())
}

fn stamp(path: &str) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec()))
}

/// The content of a file; empty if it cannot be read.
fn read(path: &str) -> Vec<u8> {
    let mut content = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(MAX_FILE).read_to_end(&mut content);
    }
    content
}

impl DnsConfig {
    /// Addresses in the hosts file. If there are any, the DNS is not queried, like in the C library.
    fn in_hosts_file(&self, name: &Name) -> Vec<IpAddr> {
        let of = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let found = [RecordType::A, RecordType::AAAA].into_iter().filter_map(of);
        found
            .flat_map(|found| {
                found.answers().iter().filter_map(|it| it.data.ip_addr()).collect::<Vec<_>>()
            })
            .collect()
    }
}

/// Resolves names for one sandbox, or for all sources of datasets. Two resolvers share no permits, no
/// connections and no cache.
pub struct Resolver {
    dns: Arc<Dns>,
    permits: Semaphore,
    /// The client, and the configuration that it was made from.
    client: Mutex<Option<(Arc<DnsConfig>, TokioResolver)>>,
    /// Names that are resolved from here, without the hosts file and the DNS.
    names: HashMap<String, Vec<IpAddr>>,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("dns", &self.dns.servers).finish_non_exhaustive()
    }
}

impl Default for Resolver {
    fn default() -> Resolver {
        Resolver::new(Arc::default())
    }
}

impl Resolver {
    pub fn new(dns: Arc<Dns>) -> Resolver {
        Resolver {
            dns,
            permits: Semaphore::new(MAX_LOOKUPS),
            client: Mutex::default(),
            names: HashMap::new(),
        }
    }

    /// Resolves this name to these addresses, without the hosts file and the DNS.
    #[must_use]
    pub fn with_name(mut self, name: &str, addresses: &[IpAddr]) -> Resolver {
        self.names.insert(name.to_owned(), addresses.to_vec());
        self
    }

    /// All addresses of a host, at least one. The caller limits the time, which includes waiting for a
    /// permit.
    pub async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let with_port = |ip: IpAddr| SocketAddr::new(ip, port);
        if let Ok(address) = host.parse() {
            return Ok(vec![with_port(address)]);
        }
        if let Some(known) = self.names.get(host) {
            return Ok(known.iter().copied().map(with_port).collect());
        }
        if is_number(host) {
            return Err(no_address());
        }
        let name = Name::from_ascii(host).map_err(|_| no_address())?;
        let config = self.dns.config();
        let mut found = config.in_hosts_file(&name);
        if found.is_empty() {
            found = self.query(&config, name).await?;
        }
        let mut addresses = Vec::new();
        for address in found.into_iter().map(with_port) {
            if !addresses.contains(&address) && addresses.len() < MAX_ADDRESSES {
                addresses.push(address);
            }
        }
        if addresses.is_empty() { Err(no_address()) } else { Ok(addresses) }
    }

    async fn query(&self, config: &Arc<DnsConfig>, name: Name) -> io::Result<Vec<IpAddr>> {
        let _permit = self.permits.acquire().await.map_err(io::Error::other)?;
        let client = self.client(config)?;
        match timeout(MAX_LOOKUP, client.lookup_ip(name)).await {
            Ok(Ok(found)) => Ok(found.iter().collect()),
            Ok(Err(error)) if error.is_no_records_found() => Err(no_address()),
            Ok(Err(error)) => {
                // The error names our DNS servers, which code in a sandbox must not learn.
                tracing::debug!(%error, "a DNS query failed");
                Err(io::Error::other("the DNS did not answer"))
            }
            Err(_) => Err(io::Error::other("the DNS did not answer in time")),
        }
    }

    fn client(&self, config: &Arc<DnsConfig>) -> io::Result<TokioResolver> {
        let mut client = lock(&self.client);
        if let Some((made_for, client)) = &*client
            && Arc::ptr_eq(made_for, config)
        {
            return Ok(client.clone());
        }
        let provider = TokioRuntimeProvider::default();
        let made = TokioResolver::builder_with_config(config.dns.clone(), provider)
            .with_options(config.options.clone())
            .build()
            .map_err(io::Error::other)?;
        *client = Some((Arc::clone(config), made.clone()));
        Ok(made)
    }
}

/// Whether this is an address in an old notation, such as `127.1` or `0x7f000001`. The last label of a name is
/// never a number.
fn is_number(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    let digits = last.strip_prefix("0x").unwrap_or(last);
    digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        && (digits.len() < last.len() || last.bytes().all(|byte| byte.is_ascii_digit()))
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tokio::net::UdpSocket;

    use super::*;

    #[test]
    fn dns_servers_are_addresses_with_or_without_a_port() {
        let servers = |text: &str| {
            let servers = Dns::parse(text).map(|dns| dns.servers);
            servers.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(servers(" "), Ok(String::new()));
        assert_eq!(
            servers("10.0.0.2, 127.0.0.1:5353 fd00::2,[fd00::3]:54"),
            Ok("10.0.0.2:53 127.0.0.1:5353 [fd00::2]:53 [fd00::3]:54".into())
        );
        for wrong in ["dns.example", "10.0.0.2:0", "10.0.0.2:99999", "127.1", "[fd00::3]"] {
            assert!(servers(wrong).is_err(), "{wrong}");
        }
        assert!(servers(&"10.0.0.2 ".repeat(MAX_SERVERS + 1)).is_err());
    }

    #[test]
    fn without_a_server_this_machine_is_used() {
        let (config, _) = from_resolv_conf(b"search example.org\n");
        assert_eq!(config.name_servers()[0].ip, IpAddr::from([127, 0, 0, 1]));
        let (config, options) =
            from_resolv_conf(b"nameserver 10.1.2.3\nsearch a.example\noptions ndots:5 timeout:1\n");
        assert_eq!(config.name_servers()[0].ip, IpAddr::from([10, 1, 2, 3]));
        assert_eq!((options.ndots, options.timeout), (5, Duration::from_secs(1)));
        assert_eq!(config.search().len(), 1);
    }

    /// A DNS server that answers A queries for `*.example` with 9.9.9.9 and others with NXDOMAIN, and does not
    /// answer for names with `silent` in them. Also returns the names that were queried.
    async fn server() -> (SocketAddr, Arc<Mutex<HashSet<String>>>) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let asked: Arc<Mutex<HashSet<String>>> = Arc::default();
        let seen = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut question = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut question).await {
                let (name, answer) = answer(&question[..length]);
                let silent = name.contains("silent");
                lock(&seen).insert(name);
                if !silent {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        (address, asked)
    }

    /// RFC 1035, section 4: a head of twelve bytes, then the name in labels, type and class.
    fn answer(question: &[u8]) -> (String, Vec<u8>) {
        let (mut name, mut at) = (String::new(), 12);
        while question[at] > 0 {
            let label = &question[at + 1..=at + usize::from(question[at])];
            name = format!("{name}{}.", String::from_utf8_lossy(label));
            at += 1 + label.len();
        }
        let asks_for_v4 = question[at + 1..at + 3] == [0, 1];
        let known = name.ends_with(".example.");
        let mut answer = question[..at + 5].to_vec();
        let code = if known { 0x80 } else { 0x83 };
        answer[2..4].copy_from_slice(&[0x81, code]);
        // Counts of the sections: at most one answer, no authorities, nothing additional.
        answer[6..12].copy_from_slice(&[0, u8::from(known && asks_for_v4), 0, 0, 0, 0]);
        if known && asks_for_v4 {
            // A pointer to the name above, A, IN, a TTL of a minute, four bytes.
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 9, 9, 9, 9]);
        }
        (name, answer)
    }

    #[tokio::test]
    async fn names_are_looked_up_in_the_hosts_file_and_the_dns() {
        let (address, asked) = server().await;
        let resolver = Resolver::new(Arc::new(Dns::parse(&address.to_string()).unwrap()));
        let found = resolver.resolve("a_b.example", 80).await.unwrap();
        assert_eq!(found, ["9.9.9.9:80".parse().unwrap()]);
        let missing = resolver.resolve("missing.test", 80).await.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let before = lock(&asked).len();
        assert_eq!(before, 2);
        // None of these is sent to the DNS.
        let found = resolver.resolve("localhost", 80).await.unwrap();
        assert!(found.contains(&"127.0.0.1:80".parse().unwrap()), "{found:?}");
        assert_eq!(resolver.resolve("::1", 80).await.unwrap(), ["[::1]:80".parse().unwrap()]);
        for name in ["nowhere.invalid", "127.1", "2130706433", "0x7f.0x1", ""] {
            assert!(resolver.resolve(name, 80).await.is_err(), "{name}");
        }
        assert_eq!(lock(&asked).len(), before);
    }

    #[tokio::test]
    async fn a_silent_dns_holds_permits_of_its_own_sandbox_only() {
        let (address, asked) = server().await;
        let dns = Arc::new(Dns::parse(&address.to_string()).unwrap());
        let (patient, other) = (Arc::new(Resolver::new(Arc::clone(&dns))), Resolver::new(dns));
        let mut waiting = tokio::task::JoinSet::new();
        for n in 0..100 {
            let patient = Arc::clone(&patient);
            waiting.spawn(async move { patient.resolve(&format!("silent{n}.example"), 1).await });
        }
        while lock(&asked).len() < MAX_LOOKUPS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // No more queries are sent while these wait, and another resolver has its own permits.
        let found = timeout(Duration::from_secs(2), other.resolve("a.example", 1)).await;
        assert!(found.unwrap().is_ok());
        let silent = lock(&asked).iter().filter(|name| name.contains("silent")).count();
        assert_eq!(silent, MAX_LOOKUPS);
        assert_eq!(patient.permits.available_permits(), 0);
        // A cancelled query returns its permit.
        waiting.shutdown().await;
        assert_eq!(patient.permits.available_permits(), MAX_LOOKUPS);
        let found = timeout(Duration::from_secs(2), patient.resolve("b.example", 1)).await;
        assert!(found.unwrap().is_ok());
    }
}
