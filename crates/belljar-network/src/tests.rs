//! Tests with the proxy, its clients and the sites in one process. Requests are written as bytes, without an HTTP
//! client.

mod fuzz;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::authority::{Authority, AuthoritySource};
use crate::lock;
use crate::network::Timeouts;
use crate::proxy::Egress;

const SOON: Duration = Duration::from_secs(10);

/// A site that counts its connections.
struct Site {
    port: u16,
    came: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Site {
    /// Calls `answer` with all bytes of a connection so far, whenever more arrive. A result that is not empty is sent
    /// and ends the connection.
    async fn start(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Site {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (came, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(answer));
        let counted = Arc::clone(&came);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                connections.spawn(converse(stream, Arc::clone(&answer)));
            }
        });
        Site { port, came, _task: task }
    }

    /// A site that answers with the request.
    async fn mirror() -> Site {
        Site::start(|asked| match whole(asked) {
            true => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{asked}", asked.len()),
            false => String::new(),
        })
        .await
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }
}

/// Whether a request is complete.
fn whole(asked: &str) -> bool {
    let Some((head, body)) = asked.split_once("\r\n\r\n") else { return false };
    let head = head.to_ascii_lowercase();
    if head.contains("transfer-encoding: chunked") {
        return body.ends_with("0\r\n\r\n");
    }
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
    length.is_none_or(|length| body.len() >= length.parse().unwrap())
}

async fn converse(mut stream: TcpStream, answer: Arc<impl Fn(&str) -> String>) {
    let mut asked = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read) = stream.read(&mut buffer).await {
        if read == 0 {
            return;
        }
        asked.extend_from_slice(&buffer[..read]);
        let said = answer(&String::from_utf8_lossy(&asked));
        if !said.is_empty() {
            let _ = stream.write_all(said.as_bytes()).await;
            let _ = stream.shutdown().await;
            return;
        }
    }
}

/// A proxy with a policy. `site.test` and `other.test` resolve to loopback.
struct Proxy {
    network: Network,
    resolver: Resolver,
    policy: Policy,
    max_bytes: u64,
}

fn proxy(policy: &str) -> Proxy {
    let (mut network, mut resolver) = (Network::default(), Resolver::default());
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let public: IpAddr = "8.8.8.8".parse().unwrap();
    for (name, addresses) in [
        ("site.test", vec![loopback]),
        ("other.test", vec![loopback]),
        ("both.test", vec![public, loopback]),
        ("metadata.test", vec!["169.254.169.254".parse().unwrap()]),
        ("metadata6.test", vec!["fd00:ec2::254".parse().unwrap()]),
        ("mapped.test", vec!["::ffff:10.0.0.1".parse().unwrap()]),
        ("nat64.test", vec!["64:ff9b::7f00:1".parse().unwrap()]),
        ("sixtofour.test", vec!["2002:7f00:1::".parse().unwrap()]),
        ("shared.test", vec!["100.64.0.1".parse().unwrap()]),
        ("multicast.test", vec!["224.0.0.1".parse().unwrap()]),
        ("zero.test", vec!["0.0.0.0".parse().unwrap()]),
        ("azure.test", vec!["168.63.129.16".parse().unwrap()]),
        ("own.test", vec![OWN.parse().unwrap()]),
    ] {
        resolver = resolver.with_name(name, &addresses);
    }
    network.timeouts = Timeouts {
        connect: Duration::from_secs(5),
        idle: Duration::from_secs(5),
        head: Duration::from_secs(5),
    };
    Proxy { network, resolver, policy: Policy::parse(policy).unwrap(), max_bytes: u64::MAX }
}

/// A proxy that accepts connections.
struct Listening {
    egress: Arc<Egress>,
}

impl Proxy {
    fn start(self) -> Listening {
        let Proxy { network, resolver, policy, max_bytes } = self;
        let (network, traffic) = (Arc::new(network), Traffic::new(max_bytes, None));
        Listening { egress: Arc::new(Egress { network, policy, traffic, resolver }) }
    }
}

impl Listening {
    fn connect(&self) -> DuplexStream {
        let (near, far) = tokio::io::duplex(1 << 16);
        tokio::spawn(proxy::serve_connection(Arc::clone(&self.egress), far));
        near
    }

    /// Sends bytes, closes the sending side, and returns the whole response.
    async fn say(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut client = self.connect();
        // The request may be refused before everything is sent.
        let _ = client.write_all(bytes.as_ref()).await;
        let _ = client.shutdown().await;
        read_all(&mut client).await
    }

    async fn last(&self) -> Visit {
        for _ in 0..500 {
            if let Some(visit) = self.egress.traffic.recent().into_iter().next() {
                return visit;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nothing was recorded");
    }
}

async fn read_all(client: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut said = Vec::new();
    timeout(SOON, client.read_to_end(&mut said)).await.expect("an end").unwrap();
    String::from_utf8_lossy(&said).into_owned()
}

fn status(said: &str) -> u16 {
    said.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn a_request_is_forwarded_without_hop_by_hop_headers() {
    let site = Site::mirror().await;
    let port = site.port;
    let proxy = proxy(&format!("site.test:{port} 127.0.0.1:{port}")).start();
    let said = proxy
        .say(format!(
            "POST http://Site.TEST.:{port}/a/../b?c=1 HTTP/1.1\r\nHost: evil.test\r\n\
             Connection: keep-alive, X-Mine\r\nX-Mine: 1\r\nProxy-Authorization: Basic eA==\r\n\
             Proxy-Connection: keep-alive\r\nTE: trailers\r\nUpgrade: websocket\r\nX-Yours: 2\r\n\
             Content-Length: 5\r\n\r\nhello"
        ))
        .await;
    assert_eq!(status(&said), 200, "{said}");
    let (_, asked) = said.split_once("\r\n\r\n").unwrap();
    let expected = format!(
        "POST /a/../b?c=1 HTTP/1.1\r\nhost: site.test:{port}\r\nx-yours: 2\r\n\
         content-length: 5\r\n\r\nhello"
    );
    let mut expected: Vec<&str> = expected.lines().collect();
    let mut asked: Vec<&str> = asked.lines().collect();
    expected.sort_unstable();
    asked.sort_unstable();
    assert_eq!(asked, expected);
    let visit = proxy.last().await;
    assert_eq!((visit.method.as_str(), visit.host.as_str()), ("POST", "site.test"));
    assert_eq!((visit.outcome, visit.status, visit.port), (Outcome::Reached, Some(200), port));
    assert!(visit.sent > 50 && visit.received > 50);
}

#[tokio::test]
async fn hosts_that_are_not_listed_are_never_connected_to() {
    let site = Site::mirror().await;
    let port = site.port;
    let proxy = proxy(&format!("site.test:{port} both.test:{port} 8.8.8.8:{port}")).start();
    for (line, code, why) in [
        // Names that resolve to loopback; the address is not listed.
        (format!("GET http://site.test:{port}/ HTTP/1.1"), 403, "has a loopback address"),
        (format!("CONNECT site.test:{port} HTTP/1.1"), 403, "has a loopback address"),
        (format!("CONNECT both.test:{port} HTTP/1.1"), 403, "has a loopback address"),
        (format!("GET http://127.0.0.1:{port}/ HTTP/1.1"), 403, "not allowed"),
        (format!("GET http://[::1]:{port}/ HTTP/1.1"), 403, "not allowed"),
        (format!("GET http://[::ffff:127.0.0.1]:{port}/ HTTP/1.1"), 403, "not allowed"),
        (format!("CONNECT [::ffff:7f00:1]:{port} HTTP/1.1"), 403, "not allowed"),
        (format!("CONNECT other.test:{port} HTTP/1.1"), 403, "not allowed"),
        (format!("CONNECT xsite.test:{port} HTTP/1.1"), 403, "not allowed"),
        (format!("CONNECT site.test.evil.test:{port} HTTP/1.1"), 403, "not allowed"),
        ("CONNECT site.test:443 HTTP/1.1".into(), 403, "not allowed"),
        ("CONNECT site.test:25 HTTP/1.1".into(), 403, "not allowed"),
        // Forms that other programs may read as an address, or as another host.
        (format!("GET http://127.1:{port}/ HTTP/1.1"), 400, "four decimal numbers"),
        (format!("GET http://0177.0.0.1:{port}/ HTTP/1.1"), 400, "four decimal numbers"),
        (format!("GET http://0x7f000001:{port}/ HTTP/1.1"), 400, "four decimal numbers"),
        (format!("GET http://2130706433:{port}/ HTTP/1.1"), 400, "four decimal numbers"),
        (format!("CONNECT 127.0.0.01:{port} HTTP/1.1"), 400, "four decimal numbers"),
        (format!("GET http://site.test@127.0.0.1:{port}/ HTTP/1.1"), 400, "host name cannot have"),
        (format!("CONNECT site.test:{port}@127.0.0.1:{port} HTTP/1.1"), 400, ""),
        (format!("GET http://site.test..:{port}/ HTTP/1.1"), 400, "between its dots"),
        (format!("GET http://site.test\0.evil.test:{port}/ HTTP/1.1"), 400, ""),
        (format!("CONNECT site.test\0:{port} HTTP/1.1"), 400, ""),
        (format!("GET http://site.test%00.evil.test:{port}/ HTTP/1.1"), 400, ""),
        (format!("GET http://site.test\u{3002}evil:{port}/ HTTP/1.1"), 400, ""),
        (format!("GET http://[::1%25lo]:{port}/ HTTP/1.1"), 400, ""),
        ("GET http://site.test:0/ HTTP/1.1".into(), 400, ""),
        ("GET http://site.test:99999/ HTTP/1.1".into(), 400, ""),
        ("CONNECT site.test HTTP/1.1".into(), 400, ""),
        // Requests that a proxy does not serve.
        ("GET / HTTP/1.1".into(), 400, "absolute URL"),
        ("OPTIONS * HTTP/1.1".into(), 400, "absolute URL"),
        (format!("GET https://site.test:{port}/ HTTP/1.1"), 400, "CONNECT"),
        (format!("GET ftp://site.test:{port}/ HTTP/1.1"), 400, "not `ftp`"),
        ("GET file:///etc/passwd HTTP/1.1".into(), 400, ""),
        (format!("GET http://site.test:{port}/"), 400, ""),
        ("\x16\x03\x01\x02\0\x01\0\x01\u{fc}".into(), 400, ""),
    ] {
        let said = proxy.say(format!("{line}\r\nHost: site.test:{port}\r\n\r\n")).await;
        assert!(status(&said) == code && said.contains(why), "{line:?}: {said}");
    }
    assert_eq!(site.came(), 0);
    let totals = proxy.egress.traffic.totals();
    assert_eq!((totals.reached, totals.failed), (0, 0), "{totals:?}");
    assert!(totals.refused > 30, "{totals:?}");
}

#[tokio::test]
async fn near_addresses_are_refused_in_every_disguise() {
    let proxy = proxy("open").start();
    for (host, kind) in [
        ("metadata.test", "a link-local"),
        ("metadata6.test", "a private"),
        ("mapped.test", "a private"),
        ("nat64.test", "a loopback"),
        ("sixtofour.test", "a loopback"),
        ("shared.test", "a shared"),
        ("multicast.test", "a multicast"),
        ("zero.test", "an unspecified"),
        ("both.test", "a loopback"),
        ("azure.test", "a metadata"),
    ] {
        for request in
            [format!("CONNECT {host}:443 HTTP/1.1"), format!("GET http://{host}/ HTTP/1.1")]
        {
            let said = proxy.say(format!("{request}\r\nHost: {host}\r\n\r\n")).await;
            assert!(status(&said) == 403 && said.contains(kind), "{request}: {said}");
            // Code in the sandbox must not learn the addresses.
            assert!(!said.contains("169.254") && !said.contains("10.0.0.1"), "{said}");
        }
    }
    for address in ["169.254.169.254", "[fd00:ec2::254]", "[::1]", "[64:ff9b::7f00:1]", "0.0.0.0"] {
        let said = proxy.say(format!("CONNECT {address}:80 HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        assert_eq!(status(&said), 403, "{address}: {said}");
    }
    for port in [25, 465, 587] {
        let said = proxy.say(format!("CONNECT mail.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        assert_eq!(status(&said), 403, "{port}: {said}");
    }
}

/// A public address that this machine gets in the test below, and another address of its network.
const OWN: &str = "9.9.9.9";
const NEIGHBOUR: &str = "9.9.7.1";

/// Runs in a network namespace that only this thread has.
#[test]
fn public_addresses_of_this_machine_and_its_neighbours_are_near() {
    if !belljar_sys::privileges::is_root() {
        println!("skipped: only root makes networks");
        return;
    }
    let thread = std::thread::spawn(|| {
        belljar_sys::process::unshare_network().unwrap();
        for arguments in
            ["link set lo up", "addr add 9.9.9.9/32 dev lo", "route add 9.9.7.0/24 dev lo"]
        {
            let ip = std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap();
            assert!(ip.status.success(), "ip {arguments}: {ip:?}");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(reach_this_machine());
    });
    thread.join().unwrap();
}

async fn reach_this_machine() {
    let listener = TcpListener::bind((OWN, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = |host: &str| format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: x\r\n\r\n");
    // A name that resolves to this machine is listed; the address is not.
    for policy in ["open".to_owned(), format!("own.test:{port} 8.8.8.8:*")] {
        let proxy = proxy(&policy).start();
        let said = proxy.say(connect("own.test")).await;
        assert!(status(&said) == 403 && said.contains("has the server's own address"), "{said}");
    }
    let open = proxy("open").start();
    for (host, kind) in [
        (OWN, "the server's own"),
        ("[::ffff:9.9.9.9]", "the server's own"),
        ("[64:ff9b::9.9.9.9]", "the server's own"),
        ("[2002:909:909::1]", "the server's own"),
        (NEIGHBOUR, "a neighbouring"),
    ] {
        let said = open.say(connect(host)).await;
        assert!(status(&said) == 403 && said.contains(kind), "{host}: {said}");
    }
    // Both the policy and the ceiling must contain the address itself.
    let named = format!("open {OWN}:{port}");
    for (ceiling, code) in [(Some(named.as_str()), 200), (None, 200), (Some("open"), 403)] {
        let mut proxy = proxy(&named);
        proxy.network.ceiling = ceiling.map(|most| Policy::parse(most).unwrap());
        let mut client = proxy.start().connect();
        client.write_all(connect("own.test").as_bytes()).await.unwrap();
        let mut said = vec![0; "HTTP/1.1 200".len()];
        client.read_exact(&mut said).await.unwrap();
        assert_eq!(status(&String::from_utf8(said).unwrap()), code, "{ceiling:?}");
    }
}

#[tokio::test]
async fn every_request_of_a_connection_is_checked() {
    let site = Site::mirror().await;
    let port = site.port;
    let proxy = proxy(&format!("site.test:{port} 127.0.0.1:{port}")).start();
    // A redirect is followed by the client, with another request.
    let one = format!("GET http://site.test:{port}/one HTTP/1.1\r\nHost: site.test\r\n\r\n");
    let two = "GET http://metadata.test/latest HTTP/1.1\r\nHost: site.test\r\n\r\n";
    let three = format!("GET http://site.test:{port}/three HTTP/1.1\r\nHost: site.test\r\n\r\n");
    let said = proxy.say(format!("{one}{two}{three}")).await;
    let codes: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("HTTP/1.1 ")).collect();
    assert!(codes[0].starts_with("200") && codes[1].starts_with("403"), "{said}");
    assert!(said.contains("GET /one") && said.contains("GET /three"), "{said}");
    assert_eq!(site.came(), 2);
}

#[tokio::test]
async fn proxy_and_host_agree_on_where_a_request_ends() {
    let site = Site::mirror().await;
    let port = site.port;
    let proxy = proxy(&format!("site.test:{port} 127.0.0.1:{port}")).start();
    let post = |headers: &str, body: &str| {
        format!("POST http://site.test:{port}/ HTTP/1.1\r\nHost: site.test\r\n{headers}\r\n{body}")
    };
    let smuggled = "GET http://metadata.test/ HTTP/1.1\r\nHost: x\r\n\r\n";
    for (headers, body) in [
        ("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", format!("0\r\n\r\n{smuggled}")),
        ("Transfer-Encoding: chunked\r\nContent-Length: 100\r\n", format!("0\r\n\r\n{smuggled}")),
        ("Content-Length: 0\r\nContent-Length: 50\r\n", smuggled.into()),
        ("Content-Length: 0, 50\r\n", smuggled.into()),
        ("Content-Length: +5\r\n", "hello".into()),
        ("Content-Length: -1\r\n", "hello".into()),
        ("Transfer-Encoding: identity, chunked, identity\r\n", "0\r\n\r\n".into()),
        ("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n".into()),
        ("Transfer-Encoding : chunked\r\n", format!("0\r\n\r\n{smuggled}")),
        ("Transfer-Encoding:\x0bchunked\r\n", "0\r\n\r\n".into()),
        ("X: a\0b\r\n", String::new()),
        ("X: a\nContent-Length: 5\r\n", "hello".into()),
        ("Connection: content-length\r\nContent-Length: 5\r\n", "hello".into()),
        ("Connection: host\r\n", String::new()),
        (" folded: yes\r\n", String::new()),
        ("Transfer-Encoding: chunked\r\n", "5;x=\"\r\n\"\r\nhello\r\n0\r\n\r\n".into()),
        ("Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\nhello\r\n0\r\n\r\n".into()),
    ] {
        let said = proxy.say(post(headers, &body)).await;
        let first = status(&said);
        assert!([200, 400, 502].contains(&first), "{headers:?}: {said}");
        if first != 200 {
            continue;
        }
        // The received request has one framing, and contains no second request.
        let asked = said.split_once("\r\n\r\n").unwrap().1;
        let head = asked.split("\r\n\r\n").next().unwrap().to_ascii_lowercase();
        let framed = head.matches("content-length").count() + head.matches("transfer-enc").count();
        assert!(framed <= 1, "{headers:?}: {asked}");
        assert_eq!(head.matches("\r\nhost: ").count(), 1, "{asked}");
        assert!(head.contains(&format!("\r\nhost: site.test:{port}")), "{asked}");
        let second = said.matches("HTTP/1.1 200").count();
        assert!(second <= 1, "{headers:?}: {said}");
    }
}

#[tokio::test]
async fn heads_have_a_size_and_a_time() {
    let site = Site::mirror().await;
    let port = site.port;
    let mut slow = proxy(&format!("site.test:{port} 127.0.0.1:{port}"));
    slow.network.timeouts.head = Duration::from_millis(200);
    let proxy = slow.start();
    let get = format!("GET http://site.test:{port}/ HTTP/1.1\r\nHost: site.test\r\n");
    let huge = proxy.say(format!("{get}X: {}\r\n\r\n", "x".repeat(1 << 20))).await;
    assert!([400, 431].contains(&status(&huge)), "{huge}");
    let many: String = (0..1000).map(|n| format!("X-{n}: 1\r\n")).collect();
    let many = proxy.say(format!("{get}{many}\r\n")).await;
    assert!([400, 431].contains(&status(&many)), "{many}");
    // One client does not complete its head, and one sends nothing.
    let mut client = proxy.connect();
    client.write_all(get.as_bytes()).await.unwrap();
    read_all(&mut client).await;
    read_all(&mut proxy.connect()).await;
    assert_eq!(site.came(), 0);
}

#[tokio::test]
async fn tunnels_carry_bytes_and_close_one_side_at_a_time() {
    let site = Site::start(|asked| match asked.ends_with("END") {
        true => format!("{} bytes", asked.len()),
        false => String::new(),
    })
    .await;
    let port = site.port;
    let proxy = proxy(&format!("site.test:{port} 127.0.0.1:{port}")).start();
    // The first bytes are sent with the request, before the response.
    let mut client = proxy.connect();
    let ask = format!("CONNECT site.test:{port} HTTP/1.1\r\nHost: site.test\r\n\r\nearly");
    client.write_all(ask.as_bytes()).await.unwrap();
    let mut granted = vec![0; "HTTP/1.1 200 OK\r\n".len()];
    client.read_exact(&mut granted).await.unwrap();
    client.write_all(&[b'x'; 100_000]).await.unwrap();
    client.write_all(b"END").await.unwrap();
    client.shutdown().await.unwrap();
    let said = read_all(&mut client).await;
    assert!(said.ends_with("100008 bytes"), "{said}");
    let visit = proxy.last().await;
    assert_eq!((visit.method.as_str(), visit.sent, visit.received), ("CONNECT", 100_008, 12));
}

#[tokio::test]
async fn a_silent_site_times_out() {
    let site = Site::start(|_| String::new()).await;
    let port = site.port;
    let mut hasty = proxy(&format!("site.test:{port} 127.0.0.1:{port}"));
    hasty.network.timeouts.idle = Duration::from_millis(200);
    let proxy = hasty.start();
    let get = format!("GET http://site.test:{port}/ HTTP/1.1\r\nHost: site.test\r\n\r\n");
    let said = proxy.say(&get).await;
    assert_eq!(status(&said), 504, "{said}");
    let mut client = proxy.connect();
    client
        .write_all(format!("CONNECT site.test:{port} HTTP/1.1\r\n\r\n").as_bytes())
        .await
        .unwrap();
    assert_eq!(status(&read_all(&mut client).await), 200);
    let visit = proxy.last().await;
    assert_eq!(visit.reason.as_deref(), Some("it was idle for too long"));
}

#[tokio::test]
async fn hosts_that_cannot_be_reached_are_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let proxy = proxy(&format!("127.0.0.1:{port} nowhere.invalid")).start();
    let said = proxy.say(format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n")).await;
    assert!(status(&said) == 502 && said.contains("failed to connect"), "{said}");
    let said = proxy.say("CONNECT nowhere.invalid:443 HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(status(&said) == 502 && said.contains("was not found"), "{said}");
    let rude = Site::start(|_| "SSH-2.0-x\r\n".into()).await;
    let other = self::proxy(&format!("127.0.0.1:{}", rude.port)).start();
    let get = format!("GET http://127.0.0.1:{}/ HTTP/1.1\r\nHost: x\r\n\r\n", rude.port);
    let said = other.say(get).await;
    assert!(status(&said) == 502 && said.contains("did not answer with HTTP"), "{said}");
}

#[tokio::test]
async fn network_bytes_are_limited() {
    let site = Site::start(|_| format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(100_000))).await;
    let port = site.port;
    let mut poor = proxy(&format!("127.0.0.1:{port}"));
    poor.max_bytes = 50_000;
    let proxy = poor.start();
    let get = format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut client = proxy.connect();
    client.write_all(get.as_bytes()).await.unwrap();
    assert!(read_all(&mut client).await.len() < 100_000);
    let said = proxy.say(&get).await;
    assert!(status(&said) == 403 && said.contains("BELLJAR_NETWORK_BYTES"), "{said}");
}

#[tokio::test]
async fn an_operator_can_take_back_what_a_session_was_given() {
    let site = Site::mirror().await;
    let port = site.port;
    let policy = format!("site.test:{port} 127.0.0.1:{port}");
    let get = format!("GET http://site.test:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n");
    for (ceiling, code) in [
        (policy.as_str(), 200),
        ("none", 403),
        // The name is allowed and the address is not.
        (&format!("site.test:{port}"), 403),
        ("open", 403),
    ] {
        let mut lowered = proxy(&policy);
        lowered.network.ceiling = Some(Policy::parse(ceiling).unwrap());
        assert_eq!(status(&lowered.start().say(&get).await), code, "{ceiling}");
    }
}

const SECRET: &str = "hunter2-and-more";

fn with_secret(mut proxy: Proxy, origin: &str) -> Proxy {
    let text = format!(r#"{{"KEY": {{"value": "Bearer {SECRET}", "hosts": ["{origin}"]}}}}"#);
    proxy.network.secrets = Arc::new(Secrets::parse(&text, |_| None).unwrap());
    proxy
}

#[tokio::test]
async fn a_secret_is_added_to_plain_requests_for_its_host_alone() {
    let site = Site::mirror().await;
    let port = site.port;
    let policy = format!(
        r#"{{"allow": ["site.test:{port}", "other.test:{port}", "127.0.0.1:{port}"], "inject":
            [{{"host": "site.test:{port}", "header": "Authorization", "value_from": "KEY"}}]}}"#
    );
    let proxy = with_secret(proxy(&policy), &format!("http://site.test:{port}")).start();
    let get = |host: &str| {
        format!(
            "GET http://{host}:{port}/ HTTP/1.1\r\nHost: site.test:{port}\r\n\
             Authorization: mine\r\n\r\n"
        )
    };
    let said = proxy.say(get("site.test")).await;
    assert!(said.contains(&format!("authorization: Bearer {SECRET}")), "{said}");
    assert!(!said.contains("mine"), "{said}");
    let visit = proxy.last().await;
    assert_eq!(visit.injected, ["authorization"]);
    for host in ["other.test", "127.0.0.1"] {
        let said = proxy.say(get(host)).await;
        assert!(said.contains("authorization: mine") && !said.contains(SECRET), "{said}");
    }
    let shown = format!("{:?} {:?}", proxy.egress, proxy.egress.traffic.recent());
    assert!(!shown.contains(SECRET), "{shown}");
}

#[tokio::test]
async fn methods_that_repeat_a_request_get_no_secret() {
    let site = Site::mirror().await;
    let port = site.port;
    let policy = format!(
        r#"{{"allow": ["site.test:{port}", "other.test:{port}", "127.0.0.1:{port}"], "inject":
            [{{"host": "site.test:{port}", "header": "Authorization", "value_from": "KEY"}}]}}"#
    );
    let proxy = with_secret(proxy(&policy), &format!("http://site.test:{port}")).start();
    let ask = |method: &str, host: &str| {
        format!("{method} http://{host}:{port}/ HTTP/1.1\r\nHost: x\r\nMax-Forwards: 0\r\n\r\n")
    };
    for method in ["TRACE", "trace", "Trace", "TRACK", "track"] {
        let said = proxy.say(ask(method, "site.test")).await;
        assert!(status(&said) == 403 && said.contains("repeat"), "{method}: {said}");
        // Without an injected secret the methods are allowed.
        let said = proxy.say(ask(method, "other.test")).await;
        assert!(status(&said) == 200 && !said.contains(SECRET), "{method}: {said}");
    }
    assert_eq!(site.came(), 5);
    for method in ["connect", "Connect"] {
        let said = proxy.say(ask(method, "site.test")).await;
        assert!(status(&said) == 400 && said.contains("capitals"), "{method}: {said}");
    }
    assert_eq!(site.came(), 5);
    let said = proxy.say(ask("OPTIONS", "site.test")).await;
    assert!(said.contains(SECRET), "others have it: {said}");
}

/// A site behind TLS, with a certificate of this authority.
async fn site_with_tls(authority: &Authority, asked: Arc<std::sync::Mutex<Vec<String>>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = host::Host::parse("site.test").unwrap();
    let acceptor = TlsAcceptor::from(authority.server_for(&host).unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, asked) = (acceptor.clone(), Arc::clone(&asked));
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { return };
                    head.push(byte);
                }
                lock(&asked).push(String::from_utf8(head).unwrap());
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
                let _ = stream.write_all(answer).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    port
}

fn trusting(certificate: &str) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    outbound::trusting(roots).unwrap()
}

#[tokio::test]
async fn a_secret_is_added_inside_of_tls_that_ends_at_the_proxy() {
    let (world, asked) = (Authority::open(&AuthoritySource::Temporary).unwrap(), Arc::default());
    let port = site_with_tls(&world, Arc::clone(&asked)).await;
    let policy = format!(
        r#"{{"allow": ["site.test:{port}", "127.0.0.1:{port}"], "inject": [{{"tls": "terminate",
            "host": "site.test:{port}", "header": "Authorization", "value_from": "KEY"}}]}}"#
    );
    let proxy = with_secret(proxy(&policy), &format!("https://site.test:{port}"));
    assert!(proxy.network.tls.set(trusting(world.certificate())).is_ok());
    let proxy = proxy.start();
    let own = proxy.egress.network.authority().await.unwrap().certificate().to_owned();
    let bundle = proxy.egress.network.bundle(&proxy.egress.policy).await.unwrap();
    assert!(bundle.ends_with(&own));

    let tunnel = async || {
        let mut client = proxy.connect();
        let ask = format!("CONNECT site.test:{port} HTTP/1.1\r\nHost: site.test\r\n\r\n");
        client.write_all(ask.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        assert_eq!(status(&String::from_utf8(head).unwrap()), 200);
        client
    };
    let name = ServerName::try_from("site.test").unwrap();
    let mut client = trusting(&own).connect(name.clone(), tunnel().await).await.unwrap();
    let get = |host: &str, more: &str| format!("GET /x HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
    let two = get(&format!("site.test:{port}"), "Authorization: mine\r\n")
        + &get("evil.test", "Connection: close\r\n");
    client.write_all(two.as_bytes()).await.unwrap();
    let said = read_all(&mut client).await;
    assert!(said.starts_with("HTTP/1.1 200") && said.contains("hello"), "{said}");
    // A request for another host inside the tunnel is refused.
    assert!(said.contains("HTTP/1.1 421"), "{said}");
    let heads: Vec<String> = lock(&asked).clone();
    assert_eq!(heads.len(), 1);
    assert!(heads[0].contains(&format!("authorization: Bearer {SECRET}")), "{heads:?}");
    assert!(heads[0].contains(&format!("host: site.test:{port}")) && !heads[0].contains("mine"));
    let visits = proxy.egress.traffic.recent();
    assert!(visits.iter().any(|visit| visit.injected == ["authorization"]), "{visits:?}");
    assert!(visits.iter().all(|visit| visit.method == "GET"), "{visits:?}");

    // A request whose response would repeat the secret is refused too.
    for method in ["TRACE", "track"] {
        let mut client = trusting(&own).connect(name.clone(), tunnel().await).await.unwrap();
        let trace = get(&format!("site.test:{port}"), "Connection: close\r\n");
        client.write_all(trace.replacen("GET", method, 1).as_bytes()).await.unwrap();
        let said = read_all(&mut client).await;
        assert!(status(&said) == 403 && said.contains("repeat"), "{method}: {said}");
    }
    assert_eq!(lock(&asked).len(), 1);

    // A client that trusts only the site's authority does not trust ours.
    let refused = trusting(world.certificate()).connect(name, tunnel().await).await;
    assert!(refused.is_err());
    // A site with an untrusted certificate gets no secret.
    let (stranger, received) =
        (Authority::open(&AuthoritySource::Temporary).unwrap(), Arc::default());
    let port = site_with_tls(&stranger, Arc::clone(&received)).await;
    let policy = policy_for(port);
    let proxy = with_secret(self::proxy(&policy), &format!("https://site.test:{port}"));
    assert!(proxy.network.tls.set(trusting(world.certificate())).is_ok());
    let proxy = proxy.start();
    let own = proxy.egress.network.authority().await.unwrap().certificate().to_owned();
    let mut client = proxy.connect();
    let ask = format!("CONNECT site.test:{port} HTTP/1.1\r\nHost: site.test\r\n\r\n");
    client.write_all(ask.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let name = ServerName::try_from("site.test").unwrap();
    let mut client = trusting(&own).connect(name, client).await.unwrap();
    let get = get(&format!("site.test:{port}"), "Connection: close\r\n");
    client.write_all(get.as_bytes()).await.unwrap();
    let said = read_all(&mut client).await;
    assert!(status(&said) == 502 && !said.contains(SECRET), "{said}");
    assert!(lock(&received).is_empty());
}

fn policy_for(port: u16) -> String {
    format!(
        r#"{{"allow": ["site.test:{port}", "127.0.0.1:{port}"], "inject": [{{"tls": "terminate",
            "host": "site.test:{port}", "header": "Authorization", "value_from": "KEY"}}]}}"#
    )
}

#[test]
fn the_environment_names_proxy_and_certificates() {
    assert!(Policy::default().environment().is_empty());
    let environment = |policy: &str| {
        let environment = Policy::parse(policy).unwrap().environment();
        environment.into_iter().collect::<std::collections::HashMap<_, _>>()
    };
    let open = environment("open");
    assert_eq!(open["https_proxy"], "http://127.0.0.1:3128");
    assert_eq!(open["NO_PROXY"], "localhost,127.0.0.1,::1");
    assert_eq!(open["SSL_CERT_FILE"], belljar_proto::relay::CERTIFICATES);
    assert_eq!(environment("127.0.0.1:80")["no_proxy"], "localhost,::1");
}
