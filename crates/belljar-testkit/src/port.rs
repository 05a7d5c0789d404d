//! Ports for servers that end and come back at the same address.

use std::net::{Ipv4Addr, TcpListener};

/// Below the ports that the kernel gives to connections and to listeners that ask for any: those may take a port while its
/// server is away.
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

/// The same with its address.
pub fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}
