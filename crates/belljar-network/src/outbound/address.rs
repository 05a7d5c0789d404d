//! Decides to which addresses the server may connect on behalf of others. Public addresses are allowed. Other addresses
//! may belong to a service that trusts this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use belljar_sys::route::{self, Nearness};

/// From where an address can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// From the whole internet.
    Global,
    /// Only from this machine or its network. It is connected to only if it was allowed explicitly. The text is the
    /// kind with its article, for messages: "a private".
    Near(&'static str),
    /// No server can have it. The text is the kind, as above.
    Nowhere(&'static str),
}

/// An address to which no connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedAddress {
    /// The kind with its article: "a private".
    pub kind: &'static str,
    /// Whether it can be allowed explicitly.
    pub can_be_allowed: bool,
}

/// Checks all addresses of a host. One refused address refuses the host: a name with a public and a private address is
/// an attack (DNS rebinding). `near_allowed` decides about [`Reach::Near`].
pub fn check(
    addresses: &[SocketAddr],
    near_allowed: impl Fn(&SocketAddr) -> bool,
) -> Result<(), RefusedAddress> {
    for address in addresses {
        let near = match reach(address.ip()) {
            Reach::Nowhere(kind) => return Err(RefusedAddress { kind, can_be_allowed: false }),
            Reach::Near(kind) => Some(kind),
            Reach::Global => near_by_route(address.ip()),
        };
        if let Some(kind) = near
            && !near_allowed(address)
        {
            return Err(RefusedAddress { kind, can_be_allowed: true });
        }
    }
    Ok(())
}

/// Finds public addresses that this machine itself has, or reaches without a router. Services there often trust every
/// client, because only this machine and its network can connect.
fn near_by_route(address: IpAddr) -> Option<&'static str> {
    let inside = match address {
        IpAddr::V4(_) => Vec::new(),
        IpAddr::V6(address) => v4_inside(address),
    };
    let forms = inside.into_iter().map(IpAddr::V4).chain([address.to_canonical()]);
    forms.into_iter().find_map(|form| match route::nearness(form) {
        Ok(Nearness::Routed) => None,
        Ok(Nearness::Own) => Some("the server's own"),
        Ok(Nearness::OnLink) => Some("a neighbouring"),
        Err(error) => {
            tracing::warn!(%error, "failed to get a route from the kernel, so the address is refused");
            Some("an unverifiable")
        }
    })
}

pub fn reach(address: IpAddr) -> Reach {
    match address {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => reach_v6(address),
    }
}

/// Follows the IANA registry of special-purpose addresses.
fn reach_v4(address: Ipv4Addr) -> Reach {
    match address.octets() {
        // Linux connects 0.0.0.0 to loopback.
        [0, ..] => Reach::Nowhere("an unspecified"),
        [127, ..] => Reach::Near("a loopback"),
        [169, 254, ..] => Reach::Near("a link-local"),
        // Azure's metadata service, in a public range. Those of other clouds are link-local, shared
        // (100.100.100.200), private (fd00:ec2::254, fd20:ce::254) or reserved (192.0.0.192).
        [168, 63, 129, 16] => Reach::Near("a metadata"),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Reach::Near("a private"),
        [100, 64..=127, ..] => Reach::Near("a shared"),
        [198, 18..=19, ..] => Reach::Near("a benchmarking"),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Reach::Nowhere("a documentation"),
        [192, 0, 0, _] | [192, 88, 99, _] | [240..=255, ..] => Reach::Nowhere("a reserved"),
        [224..=239, ..] => Reach::Nowhere("a multicast"),
        _ => Reach::Global,
    }
}

fn reach_v6(address: Ipv6Addr) -> Reach {
    let inside = v4_inside(address);
    if !inside.is_empty() {
        let mut reaches = inside.into_iter().map(reach_v4);
        return reaches.find(|reach| *reach != Reach::Global).unwrap_or(Reach::Global);
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Reach::Nowhere("an unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Reach::Near("a loopback"),
        // NAT64 with a prefix of the local network: the address that it translates to is not known here.
        [0x64, 0xff9b, 1, ..] => Reach::Near("a translated"),
        [0xfc00..=0xfdff, ..] => Reach::Near("a private"),
        [0xfe80..=0xfebf, ..] => Reach::Near("a link-local"),
        [0xff00..=0xffff, ..] => Reach::Nowhere("a multicast"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Reach::Nowhere("a documentation"),
        [0x2001, 0..=0x1ff, ..] => Reach::Nowhere("a reserved"),
        [0x2000..=0x3fff, ..] => Reach::Global,
        // IPv4-compatible, site-local, discard-only and unassigned.
        _ => Reach::Nowhere("a reserved"),
    }
}

/// The IPv4 addresses that an IPv6 address maps to or is a tunnel to.
fn v4_inside(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let segments = address.segments();
    let v4_at = |segment: usize| {
        let [a, b] = segments[segment].to_be_bytes();
        let [c, d] = segments[segment + 1].to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    match segments {
        // IPv4-mapped: the kernel connects to the IPv4 address.
        [0, 0, 0, 0, 0, 0xffff, ..] => vec![v4_at(6)],
        // NAT64
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => vec![v4_at(6)],
        // 6to4
        [0x2002, ..] => vec![v4_at(1)],
        // Teredo: the address of the server, and that of the client with all bits inverted.
        [0x2001, 0, ..] => vec![v4_at(2), Ipv4Addr::from_bits(!v4_at(6).to_bits())],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_classified() {
        for (kind, addresses) in [
            (
                "global",
                &[
                    "1.1.1.1",
                    "9.255.255.255",
                    "11.0.0.0",
                    "100.63.255.255",
                    "100.128.0.0",
                    "126.255.255.255",
                    "128.0.0.0",
                    "169.253.255.255",
                    "168.63.129.15",
                    "168.63.129.17",
                    "172.15.255.255",
                    "172.32.0.0",
                    "192.0.1.0",
                    "192.167.255.255",
                    "198.17.255.255",
                    "198.20.0.0",
                    "223.255.255.255",
                    "2606:4700::1111",
                    "2001:4860:4860::8888",
                    "::ffff:8.8.8.8",
                    "64:ff9b::8.8.8.8",
                    "2002:808:808::1",
                    "2001:0:808:808::f7f7:f7f7",
                ][..],
            ),
            (
                "near",
                &[
                    "10.0.0.1",
                    "100.64.0.1",
                    "100.127.255.255",
                    "127.0.0.1",
                    "127.255.255.255",
                    "169.254.169.254",
                    "168.63.129.16",
                    "::ffff:168.63.129.16",
                    "64:ff9b::168.63.129.16",
                    "100.100.100.200",
                    "fd00:ec2::254",
                    "fd20:ce::254",
                    "172.16.0.1",
                    "172.31.255.255",
                    "192.168.0.1",
                    "198.18.0.1",
                    "198.19.255.255",
                    "::1",
                    "fc00::1",
                    "fdff::1",
                    "fe80::1",
                    "febf::1",
                    "::ffff:127.0.0.1",
                    "::ffff:169.254.169.254",
                    "64:ff9b::10.0.0.1",
                    "64:ff9b:1::8.8.8.8",
                    "2002:7f00:1::1",
                    "2002:a9fe:a9fe::",
                    // Teredo with a private server, and with a loopback client.
                    "2001:0:a00:1::f7f7:f7f7",
                    "2001:0:808:808::80ff:fffe",
                ],
            ),
            (
                "nowhere",
                &[
                    "0.0.0.0",
                    "0.1.2.3",
                    "192.0.0.8",
                    "192.0.0.192",
                    "192.0.2.1",
                    "192.88.99.1",
                    "198.51.100.1",
                    "203.0.113.1",
                    "224.0.0.1",
                    "239.255.255.255",
                    "240.0.0.1",
                    "255.255.255.255",
                    "::",
                    "::127.0.0.1",
                    "::8.8.8.8",
                    "::ffff:0.0.0.0",
                    "64:ff9b::255.255.255.255",
                    "2002:e000:1::",
                    "ff02::1",
                    "2001:db8::1",
                    "3fff::1",
                    "2001:2::1",
                    "2001:20::1",
                    "100::1",
                    "fec0::1",
                    "4000::1",
                ],
            ),
        ] {
            for address in addresses {
                let found = match reach(address.parse().unwrap()) {
                    Reach::Global => "global",
                    Reach::Near(_) => "near",
                    Reach::Nowhere(_) => "nowhere",
                };
                assert_eq!(found, kind, "{address}");
            }
        }
    }

    #[test]
    fn one_refused_address_is_enough() {
        let addresses: Vec<SocketAddr> =
            vec!["8.8.8.8:80".parse().unwrap(), "10.0.0.1:80".parse().unwrap()];
        let refused = RefusedAddress { kind: "a private", can_be_allowed: true };
        assert_eq!(check(&addresses, |_| false), Err(refused));
        assert_eq!(check(&addresses, |_| true), Ok(()));
        assert_eq!(check(&addresses[..1], |_| false), Ok(()));
        // An unspecified address cannot be allowed.
        assert!(check(&["0.0.0.0:80".parse().unwrap()], |_| true).is_err());
    }
}
