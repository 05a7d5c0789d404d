//! Finds out how near an address is, from the route that Linux has for it: the same answer as `ip route get`.
//!
//! Each lookup asks Linux (rtnetlink(7)), so there is no list to update: an address or a network that has just been added
//! counts.

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearness {
    /// This machine: one of its addresses, or one that is routed to it.
    Own,
    /// A neighbour: packets reach it without a router.
    OnLink,
    /// Behind a router, or not reachable at all.
    Routed,
}

/// Routes with such a short prefix are default routes, even without a router: tunnels have none (`default dev ppp0`,
/// `0.0.0.0/1 dev tun0`). Bits of a prefix, IPv4 and IPv6.
const MIN_PREFIX: (u8, u8) = (8, 16);

// From linux/socket.h, linux/netlink.h and linux/rtnetlink.h.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 1;
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTA_DST: u16 = 1;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_ANYCAST: u8 = 4;

/// `struct nlmsghdr`, `struct rtmsg` and `struct rtattr`.
const MESSAGE_HEAD: usize = 16;
const ROUTE_HEAD: usize = 12;
const ATTRIBUTE_HEAD: usize = 4;

/// An answer is one route.
const MAX_ANSWER: usize = 8 * 1024;

/// Looks up how packets to this address would leave. An error means that Linux could not be asked.
pub fn nearness(address: IpAddr) -> io::Result<Nearness> {
    let Some(route) = ask(address, 0)? else { return Ok(Nearness::Routed) };
    match route.kind {
        // The range includes broadcast.
        RTN_LOCAL..=RTN_ANYCAST => return Ok(Nearness::Own),
        RTN_UNICAST if !route.has_gateway => {}
        _ => return Ok(Nearness::Routed),
    }
    // The first answer is for this address only. This one is the entry of the routing table that matches it.
    let Some(entry) = ask(address, RTM_F_FIB_MATCH)? else { return Ok(Nearness::Routed) };
    let least = if address.is_ipv4() { MIN_PREFIX.0 } else { MIN_PREFIX.1 };
    Ok(if entry.prefix < least { Nearness::Routed } else { Nearness::OnLink })
}

#[derive(Debug)]
struct Route {
    kind: u8,
    prefix: u8,
    has_gateway: bool,
}

/// `None` if there is no route to the address.
fn ask(address: IpAddr, flags: u32) -> io::Result<Option<Route>> {
    // Protocol 0 of netlink is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &question(address, flags), SendFlags::empty())?;
    let mut answer = [0; MAX_ANSWER];
    // Linux has answered before `send` returns.
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    match read(&answer[..length.min(MAX_ANSWER)]) {
        Some(Ok(route)) => Ok(Some(route)),
        Some(Err(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS)) => Ok(None),
        // Without IPv6, Linux has no answer for its addresses.
        Some(Err(Errno::OPNOTSUPP | Errno::AFNOSUPPORT)) if address.is_ipv6() => Ok(None),
        Some(Err(errno)) => Err(errno.into()),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "not an answer of rtnetlink")),
    }
}

fn question(address: IpAddr, flags: u32) -> Vec<u8> {
    let (family, bits, octets) = match address {
        IpAddr::V4(address) => (AF_INET, 32, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, 128, address.octets().to_vec()),
    };
    let attribute: u16 = if bits == 32 { 8 } else { 20 };
    let length = 16 + 12 + u32::from(attribute);
    let mut question = Vec::with_capacity(64);
    question.extend(length.to_ne_bytes());
    question.extend(RTM_GETROUTE.to_ne_bytes());
    question.extend(NLM_F_REQUEST.to_ne_bytes());
    // A sequence number and our port: there is one question on this socket.
    question.extend([0; 8]);
    // Six fields that Linux fills in follow the bits of the destination.
    question.extend([family, bits, 0, 0, 0, 0, 0, 0]);
    question.extend(flags.to_ne_bytes());
    question.extend(attribute.to_ne_bytes());
    question.extend(RTA_DST.to_ne_bytes());
    question.extend(octets);
    question
}

fn read(answer: &[u8]) -> Option<Result<Route, Errno>> {
    let number = |at: usize| Some(u16::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    match number(4)? {
        NLMSG_ERROR => {
            let code = i32::from_ne_bytes(*answer.get(MESSAGE_HEAD..)?.first_chunk()?);
            Some(Err(Errno::from_raw_os_error(code.checked_neg()?)))
        }
        RTM_NEWROUTE => {
            let head = answer.get(MESSAGE_HEAD..MESSAGE_HEAD + ROUTE_HEAD)?;
            let mut attributes = answer.get(MESSAGE_HEAD + ROUTE_HEAD..)?;
            let mut has_gateway = false;
            while let Some((length, rest)) = attributes.split_first_chunk() {
                let (kind, _) = rest.split_first_chunk()?;
                let kind = u16::from_ne_bytes(*kind);
                has_gateway |= matches!(kind, RTA_GATEWAY | RTA_VIA);
                let length = usize::from(u16::from_ne_bytes(*length)).max(ATTRIBUTE_HEAD);
                attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
            Some(Ok(Route { kind: head[7], prefix: head[1], has_gateway }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn near(address: &str) -> Nearness {
        nearness(address.parse().unwrap()).unwrap()
    }

    #[test]
    fn loopback_is_this_machine() {
        assert_eq!(near("127.0.0.1"), Nearness::Own);
        assert_eq!(near("127.1.2.3"), Nearness::Own);
        // Whether or not it can be reached.
        assert_eq!(near("8.8.8.8"), Nearness::Routed);
    }

    /// In a separate network namespace, whose routes the test changes.
    #[test]
    fn addresses_and_networks_count_as_soon_as_they_are_there() {
        if !crate::privileges::is_root() {
            println!("skipped: only root makes networks");
            return;
        }
        let ip = |arguments: &str| {
            let output = std::process::Command::new("ip").args(arguments.split(' ')).output();
            let output = output.expect("ip is here");
            assert!(output.status.success(), "ip {arguments}: {output:?}");
        };
        // The network namespace belongs to this thread, and ends with it.
        let thread = std::thread::spawn(move || {
            crate::process::unshare_network().unwrap();
            assert_eq!(near("9.9.9.9"), Nearness::Routed, "there is no route");
            assert_eq!(near("2620:fe::fe"), Nearness::Routed);
            ip("link set lo up");
            ip("addr add 9.9.9.9/32 dev lo");
            ip("-6 addr add 2620:fe::fe/128 dev lo");
            assert_eq!(near("9.9.9.9"), Nearness::Own);
            // Linux adds the route to an own IPv6 address a moment after the address.
            let deadline = Instant::now() + Duration::from_secs(10);
            while near("2620:fe::fe") != Nearness::Own {
                assert!(Instant::now() < deadline, "{:?}", near("2620:fe::fe"));
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(near("9.9.9.8"), Nearness::Routed);
            ip("route add 9.8.7.0/24 dev lo");
            ip("-6 route add 2620:aa::/64 dev lo");
            assert_eq!(near("9.8.7.1"), Nearness::OnLink);
            assert_eq!(near("2620:aa::5"), Nearness::OnLink);
            // A default route without a router, as tunnels have it.
            ip("route add 0.0.0.0/1 dev lo");
            ip("-6 route add 2000::/3 dev lo");
            assert_eq!(near("9.9.9.8"), Nearness::Routed);
            assert_eq!(near("2a00::1"), Nearness::Routed);
            assert_eq!(near("9.8.7.1"), Nearness::OnLink);
            // A router on the local network, with a route behind it.
            ip("route add 1.1.1.0/24 via 9.8.7.1 dev lo onlink");
            assert_eq!(near("1.1.1.1"), Nearness::Routed);
            ip("addr del 9.9.9.9/32 dev lo");
            assert_eq!(near("9.9.9.9"), Nearness::Routed);
        });
        thread.join().unwrap();
    }

    #[test]
    fn answers_that_make_no_sense_are_none() {
        for length in 0..64 {
            let _ = read(&vec![0xff; length]);
            let mut answer = vec![0; length];
            if length > 5 {
                answer[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
            }
            let _ = read(&answer);
        }
    }
}
