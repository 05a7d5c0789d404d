//! Names to addresses, asked of the DNS without a thread for each question.
//!
//! ```text
//!   Dns (one per server): BELLJAR_DNS or /etc/resolv.conf, and /etc/hosts, read again when they change
//!    └─ Resolver (one per sandbox): a place per question ─▶ hosts file ─▶ DNS ─▶ addresses
//! ```
//!
//! `getaddrinfo` would hold a thread of the pool that file work needs, for as long as a DNS server is
//! silent, and who asks decides which server that is. What is not done here, and the C library
//! would do: other sources than these two (LDAP, multicast DNS, `nsswitch.conf`).

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

/// Questions of one resolver at a time; others wait for a place.
const MAX_LOOKUPS: usize = 8;

/// How long one question keeps its place.
const MAX_LOOKUP: Duration = Duration::from_secs(15);

/// Addresses of one name that are looked at; each is checked and may be tried.
const MAX_ADDRESSES: usize = 32;

/// Answers that a resolver remembers, for as long as they say.
const REMEMBERED: u64 = 64;

/// How often at most the files are looked at for changes, and how much of them is read.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
const MAX_FILE: u64 = 4 << 20;

/// Servers that can be set.
const MAX_SERVERS: usize = 8;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";

/// Where this server learns addresses.
#[derive(Debug, Default)]
pub struct Dns {
    /// Instead of those in `/etc/resolv.conf`; empty if they are used.
    servers: Vec<SocketAddr>,
    loaded: Mutex<Option<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    looked: Instant,
    stamps: [Option<Stamp>; 2],
    config: Arc<Config>,
}

/// What changes if a file does: inode, size, seconds and nanoseconds of its last change.
type Stamp = (u64, u64, i64, i64);

#[derive(Debug)]
struct Config {
    dns: ResolverConfig,
    options: ResolverOpts,
    hosts: Hosts,
}

impl Dns {
    /// Addresses of servers, with or without a port, separated by spaces or commas. None means those
    /// of `/etc/resolv.conf`.
    pub fn parse(text: &str) -> Result<Dns, String> {
        let words = text.split(|c: char| c.is_whitespace() || c == ',');
        let servers: Result<Vec<_>, String> = words
            .filter(|word| !word.is_empty())
            .map(|word| {
                let alone = word.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53));
                let address = alone.or_else(|_| word.parse()).ok();
                address.filter(|address| address.port() > 0).ok_or_else(|| {
                    format!(
                        "`{}` is no address such as 10.0.0.2 or [fd00::2]:53",
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

    fn config(&self) -> Arc<Config> {
        let mut loaded = lock(&self.loaded);
        if let Some(loaded) = &*loaded
            && loaded.looked.elapsed() < LOOK_AGAIN
        {
            return Arc::clone(&loaded.config);
        }
        let (looked, stamps) = (Instant::now(), [stamp(RESOLV_CONF), stamp(HOSTS)]);
        let config = match loaded.take() {
            Some(loaded) if loaded.stamps == stamps => loaded.config,
            _ => Arc::new(self.load()),
        };
        *loaded = Some(Loaded { looked, stamps, config: Arc::clone(&config) });
        config
    }

    fn load(&self) -> Config {
        let (dns, mut options) = match self.servers[..] {
            [] => from_resolv_conf(&read(RESOLV_CONF)),
            _ => (asking(self.servers.iter().copied()), ResolverOpts::default()),
        };
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.cache_size = REMEMBERED;
        // Asked before the DNS, by us.
        options.use_hosts_file = ResolveHosts::Never;
        let mut hosts = Hosts::default();
        if let Err(error) = hosts.read_hosts_conf(&read(HOSTS)[..]) {
            tracing::warn!(%error, "failed to read all of {HOSTS}");
        }
        Config { dns, options, hosts }
    }
}

fn from_resolv_conf(text: &[u8]) -> (ResolverConfig, ResolverOpts) {
    system_conf::parse_resolv_conf(text).unwrap_or_else(|error| {
        // resolv.conf(5): without any, it is the one on this machine.
        tracing::debug!(%error, "{RESOLV_CONF} names no server; this machine itself is asked");
        let own = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 53);
        (asking([own]), ResolverOpts::default())
    })
}

/// Servers, and no domains to complete names with.
fn asking(servers: impl IntoIterator<Item = SocketAddr>) -> ResolverConfig {
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

/// What there is of a file; nothing if it cannot be read.
fn read(path: &str) -> Vec<u8> {
    let mut content = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(MAX_FILE).read_to_end(&mut content);
    }
    content
}

impl Config {
    /// What the hosts file says. As with the C library, the DNS is not asked for more.
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

/// Asks on behalf of one sandbox, or of all sources of datasets. Nothing is shared between two of
/// them but the servers: no place, no connection and no answer.
pub struct Resolver {
    dns: Arc<Dns>,
    places: Semaphore,
    /// With the configuration that it was made for.
    client: Mutex<Option<(Arc<Config>, TokioResolver)>>,
    /// Names that are answered from here, without the hosts file and the DNS.
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
            places: Semaphore::new(MAX_LOOKUPS),
            client: Mutex::default(),
            names: HashMap::new(),
        }
    }

    /// Answers this name with these addresses, without the hosts file and the DNS.
    #[must_use]
    pub fn with_name(mut self, name: &str, addresses: &[IpAddr]) -> Resolver {
        self.names.insert(name.to_owned(), addresses.to_vec());
        self
    }

    /// Every address of a host, at least one. The caller bounds the time that it takes, because a
    /// place may have to be waited for.
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
            found = self.ask(&config, name).await?;
        }
        let mut addresses = Vec::new();
        for address in found.into_iter().map(with_port) {
            if !addresses.contains(&address) && addresses.len() < MAX_ADDRESSES {
                addresses.push(address);
            }
        }
        if addresses.is_empty() { Err(no_address()) } else { Ok(addresses) }
    }

    async fn ask(&self, config: &Arc<Config>, name: Name) -> io::Result<Vec<IpAddr>> {
        let _place = self.places.acquire().await.map_err(io::Error::other)?;
        let client = self.client(config)?;
        match timeout(MAX_LOOKUP, client.lookup_ip(name)).await {
            Ok(Ok(found)) => Ok(found.iter().collect()),
            Ok(Err(error)) if error.is_no_records_found() => Err(no_address()),
            Ok(Err(error)) => {
                // Which servers there are is nobody's business inside.
                tracing::debug!(%error, "the DNS did not answer a question");
                Err(io::Error::other("the DNS gave no answer"))
            }
            Err(_) => Err(io::Error::other("the DNS gave no answer in time")),
        }
    }

    fn client(&self, config: &Arc<Config>) -> io::Result<TokioResolver> {
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

/// No name ends in a number. `127.1` and `0x7f000001` are old ways to write an address, which nobody
/// needs and the DNS does not know.
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
    fn servers_are_addresses_with_or_without_a_port() {
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
    fn without_a_server_this_machine_is_asked() {
        let (config, _) = from_resolv_conf(b"search example.org\n");
        assert_eq!(config.name_servers()[0].ip, IpAddr::from([127, 0, 0, 1]));
        let (config, options) =
            from_resolv_conf(b"nameserver 10.1.2.3\nsearch a.example\noptions ndots:5 timeout:1\n");
        assert_eq!(config.name_servers()[0].ip, IpAddr::from([10, 1, 2, 3]));
        assert_eq!((options.ndots, options.timeout), (5, Duration::from_secs(1)));
        assert_eq!(config.search().len(), 1);
    }

    /// A DNS server that answers A questions for `*.example` by 9.9.9.9, tells of others that there
    /// are none, and says nothing to those with `silent` in their name. What it was asked for.
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
        // One question, and neither authorities nor more.
        answer[6..12].copy_from_slice(&[0, u8::from(known && asks_for_v4), 0, 0, 0, 0]);
        if known && asks_for_v4 {
            // The name above, A, IN, for a minute, four bytes.
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
        let missing = resolver.resolve("nobody.test", 80).await.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let before = lock(&asked).len();
        assert_eq!(before, 2);
        // Neither of these is a question for the DNS.
        let found = resolver.resolve("localhost", 80).await.unwrap();
        assert!(found.contains(&"127.0.0.1:80".parse().unwrap()), "{found:?}");
        assert_eq!(resolver.resolve("::1", 80).await.unwrap(), ["[::1]:80".parse().unwrap()]);
        for nobody in ["nowhere.invalid", "127.1", "2130706433", "0x7f.0x1", ""] {
            assert!(resolver.resolve(nobody, 80).await.is_err(), "{nobody}");
        }
        assert_eq!(lock(&asked).len(), before);
    }

    #[tokio::test]
    async fn a_silent_dns_holds_places_of_its_own_sandbox_only() {
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
        // No others follow while these wait, and somebody else has places of their own.
        let found = timeout(Duration::from_secs(2), other.resolve("a.example", 1)).await;
        assert!(found.unwrap().is_ok());
        let silent = lock(&asked).iter().filter(|name| name.contains("silent")).count();
        assert_eq!(silent, MAX_LOOKUPS);
        assert_eq!(patient.places.available_permits(), 0);
        // Whoever leaves gives their place back.
        waiting.shutdown().await;
        assert_eq!(patient.places.available_permits(), MAX_LOOKUPS);
        let found = timeout(Duration::from_secs(2), patient.resolve("b.example", 1)).await;
        assert!(found.unwrap().is_ok());
    }
}
