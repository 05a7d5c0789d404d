//! Connects sandboxes to the egress proxy, which is `belljar-network`.

use std::sync::Arc;

pub use belljar_network::{
    AuthoritySource, Dns, Injection, Network, NetworkError, Outcome, Policy, Secrets, Totals,
    Traffic, Visit, VisitListener, new_authority,
};
use belljar_network::{Connections, Serving, serve};
use belljar_runtime::link::Link;
use belljar_runtime::{Relay, RelayStream};

use crate::EngineError;

/// Serves the proxy to the sandbox at the other end of `link`, until the result is dropped. `None` if
/// the policy allows no network.
pub(crate) async fn attach(
    network: &Arc<Network>,
    policy: &Policy,
    traffic: &Arc<Traffic>,
    link: &Link,
) -> Result<Option<Serving>, EngineError> {
    if policy.is_none() {
        return Ok(None);
    }
    let certificates = network.certificates(policy).await?;
    let relay = link.relay(certificates.as_bytes()).await.map_err(EngineError::Relay)?;
    Ok(Some(serve(network, policy, traffic, Relayed(relay))))
}

struct Relayed(Relay);

impl Connections for Relayed {
    type Stream = RelayStream;

    async fn next(&mut self) -> Option<RelayStream> {
        self.0.next().await
    }
}
