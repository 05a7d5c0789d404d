//! A private network for one test: a network namespace for each machine, joined by a bridge.
//!
//! ```text
//!   test ── veth ──┐
//!   node-0 ─ veth ─┤ bridge, in a namespace of its own
//!   node-1 ─ veth ─┘
//! ```
//!
//! A waiting process holds each namespace. It ends when the test does, however the test ends, and the kernel then
//! removes the namespace with its interfaces.

use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use belljar_sys::process;

use crate::wait::eventually_blocking;

/// The last byte of the test's own address.
const TEST: u8 = 1;

/// The last byte of the first machine's address.
const FIRST: u8 = 10;

/// The machines of a test. Dropping it removes all of them.
pub struct Network {
    hub: Namespace,
    subnet: [u8; 3],
    next: AtomicU8,
}

impl Network {
    pub fn new() -> Network {
        let subnet = free_subnet();
        let hub = Namespace::new();
        run(hub.command("ip").args(["link", "add", "bridge0", "type", "bridge"]));
        run(hub.command("ip").args(["link", "set", "bridge0", "up"]));
        let network = Network { hub, subnet, next: AtomicU8::new(FIRST) };
        let own = format!("bj{}", &process::random_name()[..10]);
        let hub = network.hub.pid();
        run(Command::new("ip")
            .args(["link", "add", &own, "type", "veth", "peer", "name", "test", "netns", &hub]));
        network.attach("test");
        let address = format!("{}/24", network.own_address());
        run(Command::new("ip").args(["address", "add", &address, "dev", &own]));
        run(Command::new("ip").args(["link", "set", &own, "up"]));
        network
    }

    /// The test's own address, which all machines can reach.
    pub fn own_address(&self) -> Ipv4Addr {
        self.address(TEST)
    }

    pub fn add_machine(&self, name: &str) -> Machine {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (address, namespace) = (self.address(number), Namespace::new());
        let (port, pid) = (format!("m{number}"), namespace.pid());
        run(self
            .hub
            .command("ip")
            .args(["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &pid]));
        self.attach(&port);
        run(namespace.command("ip").args([
            "address",
            "add",
            &format!("{address}/24"),
            "dev",
            "eth0",
        ]));
        run(namespace.command("ip").args(["link", "set", "eth0", "up"]));
        Machine { name: name.to_owned(), address, namespace }
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        let [a, b, c] = self.subnet;
        Ipv4Addr::new(a, b, c, last)
    }

    fn attach(&self, port: &str) {
        run(self.hub.command("ip").args(["link", "set", port, "master", "bridge0", "up"]));
    }
}

impl Default for Network {
    fn default() -> Network {
        Network::new()
    }
}

/// A network namespace with an address.
pub struct Machine {
    pub name: String,
    pub address: Ipv4Addr,
    namespace: Namespace,
}

/// Which packets a partition drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Both,
    Incoming,
    Outgoing,
}

impl Machine {
    /// The words that run a program on this machine; the program keeps the pid.
    pub fn enter(&self) -> [String; 5] {
        ["nsenter", "--target", &self.namespace.pid(), "--net", "--"].map(str::to_owned)
    }

    /// Drops packets between this machine and `peers`, also of connections that exist.
    pub fn cut_off(&self, peers: &[Ipv4Addr], direction: Direction) {
        let peers: Vec<String> = peers.iter().map(Ipv4Addr::to_string).collect();
        let peers = peers.join(", ");
        let mut rules = String::from("table ip partition {\n");
        if direction != Direction::Outgoing {
            rules += &format!(
                "chain incoming {{ type filter hook input priority 0; ip protocol tcp ip saddr {{ {peers} }} drop; }}\n"
            );
        }
        if direction != Direction::Incoming {
            rules += &format!(
                "chain outgoing {{ type filter hook output priority 0; ip daddr {{ {peers} }} drop; }}\n"
            );
        }
        rules += "}\n";
        self.reconnect();
        let mut nft = self.namespace.command("nft");
        let mut child = nft.args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft starts");
        child.stdin.take().expect("it was piped").write_all(rules.as_bytes()).expect("nft reads");
        assert!(child.wait().expect("nft ends").success(), "nft refused:\n{rules}");
    }

    /// Removes the partition, if there is one.
    pub fn reconnect(&self) {
        let mut nft = self.namespace.command("nft");
        let output = nft.args(["delete", "table", "ip", "partition"]).output().expect("nft starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || error.contains("No such file"), "{error}");
    }
}

/// A network namespace that exists as long as this value, or until the test ends.
struct Namespace {
    /// Reads its standard input, which the test never writes to, until the end.
    holder: Child,
}

impl Namespace {
    fn new() -> Namespace {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let holder = command.spawn().expect("unshare starts");
        let namespace = Namespace { holder };
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let (own, pid) = (of("self"), namespace.pid());
        eventually_blocking("a new network namespace", || {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "cat\n")
                && of(&pid) != own
        });
        run(namespace.command("ip").args(["link", "set", "lo", "up"]));
        namespace
    }

    fn pid(&self) -> String {
        self.holder.id().to_string()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid(), "--net", "--", program]);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A /24 network to which this machine has no route.
fn free_subnet() -> [u8; 3] {
    let routes = Command::new("ip").args(["route", "show", "table", "all"]).output();
    let routes = String::from_utf8(routes.expect("ip starts").stdout).expect("text");
    let mut candidates = (0..64).map(|_| {
        let random = process::random_name();
        let byte =
            |at: usize| u8::from_str_radix(&random[at..at + 2], 16).expect("hexadecimal digits");
        [10, 128 + byte(0) % 120, byte(2)]
    });
    let is_free = |[a, b, c]: &[u8; 3]| !routes.contains(&format!("{a}.{b}.{c}."));
    candidates.find(is_free).expect("a free network")
}

/// Runs a command that must succeed.
pub(super) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{error}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
