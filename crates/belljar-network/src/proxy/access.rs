//! Checks what the policy of a sandbox allows: destinations, their addresses, and injected headers.

use std::net::SocketAddr;

use hyper::Method;
use hyper::header::HeaderMap;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Egress;
use super::denial::Denial;
use crate::Injection;
use crate::host::Target;
use crate::outbound::{address, dial};
use crate::traffic::{Metered, OpenVisit};

/// How many rules of a policy a refusal lists.
const MAX_LISTED_RULES: usize = 8;

impl Egress {
    /// The addresses of an allowed destination, resolved and checked.
    pub(super) async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, Denial> {
        self.check_target(target)?;
        let host = target.host.bare();
        let resolving = self.resolver.resolve(&host, target.port);
        let addresses = match timeout(self.network.timeouts.connect, resolving).await {
            Ok(Ok(addresses)) => addresses,
            Ok(Err(cause)) => {
                let reason = format!("the address of `{}` was not found: {cause}", target.host);
                return Err(Denial::failed(reason));
            }
            Err(_) => {
                let reason = format!("the address of `{}` was not found in time", target.host);
                return Err(Denial::timed_out(reason));
            }
        };
        self.check_addresses(target, &addresses)?;
        Ok(addresses)
    }

    fn check_target(&self, target: &Target) -> Result<(), Denial> {
        if !self.policy.permits(target) {
            let reason = format!("`{target}` is not allowed by the network policy of this sandbox");
            return Err(Denial { hint: self.hint(target), ..Denial::refused(reason) });
        }
        // The operator may have lowered the ceiling since the sandbox was created.
        if self.network.ceiling.as_ref().is_some_and(|ceiling| !ceiling.permits(target)) {
            let hint = "The operator can allow it with BELLJAR_MAX_NETWORK.".to_owned();
            let reason = format!("`{target}` is not allowed by this server");
            return Err(Denial { hint, ..Denial::refused(reason) });
        }
        if self.traffic.is_used_up() {
            let reason = "this sandbox has used up its network bytes; see BELLJAR_NETWORK_BYTES";
            return Err(Denial::refused(reason));
        }
        Ok(())
    }

    fn check_addresses(&self, target: &Target, addresses: &[SocketAddr]) -> Result<(), Denial> {
        let ceiling = self.network.ceiling.as_ref();
        let is_named = |address: &SocketAddr| {
            let (ip, port) = (address.ip(), address.port());
            self.policy.names(ip, port) && ceiling.is_none_or(|ceiling| ceiling.names(ip, port))
        };
        address::check(addresses, is_named).map_err(|refused| {
            // The sandbox must not learn the addresses.
            tracing::debug!(%target, ?addresses, "refused an address to a sandbox");
            let advice = match refused.can_be_allowed {
                true => "; only a rule with the address itself allows it",
                false => "",
            };
            Denial::refused(format!("`{}` has {} address{advice}", target.host, refused.kind))
        })
    }

    /// A hint that lists the rules of the policy, and says how to allow more.
    fn hint(&self, target: &Target) -> String {
        let rules: Vec<String> = self.policy.rules().take(MAX_LISTED_RULES).collect();
        let more = self.policy.rules().count().saturating_sub(MAX_LISTED_RULES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!(
            "It allows {}{more}. To allow this host too, create the session with \
             \"network\": {{\"allow\": [\"{target}\", ...]}}, or with --network.",
            rules.join(", ")
        )
    }

    /// Connects to one of the addresses, which the caller has checked.
    pub(super) async fn dial(
        &self,
        target: &Target,
        addresses: &[SocketAddr],
        visit: &OpenVisit,
    ) -> Result<Metered<TcpStream>, Denial> {
        match timeout(self.network.timeouts.connect, dial(addresses)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                Ok(Metered::new(stream, &visit.meter))
            }
            Ok(Err(cause)) => {
                Err(Denial::failed(format!("failed to connect to `{target}`: {cause}")))
            }
            Err(_) => Err(not_in_time(target)),
        }
    }

    /// Adds headers to a request for this host.
    pub(super) fn inject(
        &self,
        headers: &mut HeaderMap,
        target: &Target,
        https: bool,
        visit: &mut OpenVisit,
    ) {
        for injection in self.injections(target, https) {
            // The operator may have removed the secret since the sandbox was created.
            if let Some(value) = self.network.secrets.value(injection) {
                headers.insert(injection.header.clone(), value.clone());
                visit.add_injected(injection.header.as_str());
            }
        }
    }

    fn injections(&self, target: &Target, https: bool) -> impl Iterator<Item = &Injection> {
        let injections = self.policy.injections().iter();
        injections.filter(move |it| it.terminate == https && it.target == *target)
    }

    /// Whether the proxy terminates TLS for this host.
    pub(super) fn terminates(&self, target: &Target) -> bool {
        self.injections(target, true).next().is_some()
    }

    /// Refuses methods whose response repeats the request, injected secrets included: `TRACE` (RFC 9110, section 9.3.8)
    /// and Microsoft's `TRACK`. Case-insensitive, because some hosts read methods like that.
    pub(super) fn check_method(
        &self,
        method: &Method,
        target: &Target,
        https: bool,
    ) -> Result<(), Denial> {
        let repeats = ["TRACE", "TRACK"].iter().any(|it| method.as_str().eq_ignore_ascii_case(it));
        if repeats && self.injections(target, https).next().is_some() {
            return Err(Denial::refused(format!(
                "{method} is not allowed for `{target}`: the response would repeat the injected secret"
            )));
        }
        Ok(())
    }
}

pub(super) fn not_in_time(target: &Target) -> Denial {
    Denial::timed_out(format!("failed to connect to `{target}` in time"))
}
