//! Ports for servers that stop and start again at the same address.

use std::net::{Ipv4Addr, TcpListener};

/// Below the range from which the kernel assigns ports to connections and to listeners without a fixed port. Those
/// could take the port while its server is stopped.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port of 127.0.0.1 that is free now.
pub fn free_port() -> u16 {
    let random = belljar_sys::process::random_name();
    let start = u16::from_str_radix(&random[..4], 16).expect("hexadecimal digits") % COUNT;
    let mut ports = (0..COUNT).map(|n| FIRST + (start + n) % COUNT);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    ports.find(is_free).expect("a free port")
}

/// The same as an address.
pub fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}
