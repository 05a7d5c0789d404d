//! The listener for clients, and the host names that they may use.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use belljar_api::GuardConfig;
use belljar_api::listen::{self, Listener};
use belljar_engine::keys::KeyRing;

use crate::settings::{Listen, ServerSettings, Settings};

pub(crate) async fn bind(server: &ServerSettings, keys: &KeyRing) -> Result<Listener> {
    let tls = server.tls.as_ref().map(|tls| listen::Tls::load(&tls.cert, &tls.key)).transpose()?;
    match &server.listen {
        Listen::Unix(path) if tls.is_some() => {
            bail!("the socket `{}` cannot use TLS; leave out --tls-cert", path.display())
        }
        Listen::Unix(path) => Ok(Listener::unix(path).await?),
        Listen::Tcp(address) => {
            if !address.ip().is_loopback() && keys.is_empty() {
                bail!(
                    "everyone who can reach {address} could run code here; create an API key \
                     first (`belljar key create --name NAME`), or listen on 127.0.0.1 or a UNIX \
                     socket"
                );
            }
            Ok(Listener::tcp(&address.to_string(), tls).await?)
        }
    }
}

/// Which requests that come through this listener are served.
pub(crate) fn guard(server: &ServerSettings, listener: &Listener) -> GuardConfig {
    GuardConfig {
        hosts: own_hosts(server, listener.local_addr()),
        origins: server.allowed_origins.clone(),
        keys_required: !listens_privately(listener),
        local_socket: matches!(server.listen, Listen::Unix(_)),
        behind_gateway: false,
    }
}

pub(crate) fn listens_privately(listener: &Listener) -> bool {
    listener.local_addr().is_none_or(|address| address.ip().is_loopback())
}

/// Host names that are accepted without a key.
fn own_hosts(server: &ServerSettings, address: Option<SocketAddr>) -> Vec<String> {
    let mut hosts: Vec<String> =
        server.allowed_hosts.iter().map(|host| host.trim_matches(['[', ']']).to_owned()).collect();
    hosts.extend(address.map(|address| address.ip().to_string()));
    hosts
}

/// The base of links to artifacts. Behind a socket, or with several addresses, the server does not know its URL. Links are paths then.
pub(crate) fn url(settings: &Settings, listener: &Listener) -> String {
    let is_one_place = listener.local_addr().is_some_and(|address| !address.ip().is_unspecified());
    let public_url = settings.artifacts.public_url.clone();
    public_url.unwrap_or_else(|| if is_one_place { listener.url() } else { String::new() })
}
