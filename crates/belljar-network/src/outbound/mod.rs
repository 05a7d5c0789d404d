//! Connections that the server opens on behalf of others: to sources of datasets, and for code in sandboxes.
//!
//! A name is resolved once ([`Resolver`]), every address is checked ([`address`]), and the checked
//! addresses are connected to. A second DNS query could return other addresses.

pub mod address;
mod connector;
mod http_url;
mod resolver;
mod tls;

pub use connector::{ConnectError, Connection, Connector};
pub use http_url::HttpUrl;
pub use resolver::{Dns, Resolver};
pub use tls::TlsError;
#[cfg(test)]
pub(crate) use tls::trusting;
pub(crate) use tls::{system_certificates, system_tls};

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout for each of several addresses, so that one that does not answer leaves time for the others.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(6);

/// Connects to the first address that answers. The caller has checked them all.
pub(crate) async fn dial(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match timeout(ADDRESS_TIMEOUT, TcpStream::connect(*address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(cause)) => failure = cause,
            Err(_) => failure = io::Error::from(io::ErrorKind::TimedOut),
        }
    }
    Err(failure)
}
