//! The network of sandboxes: an HTTP proxy on the host that checks every request against a policy.
//!
//! ```text
//!   code ─▶ 127.0.0.1:3128 ─▶ guest ═ link ═▶ Egress ─▶ policy, ceiling ─▶ resolve ─▶ check addresses
//!           (in the sandbox)                    │                            once      │
//!                                               │ Traffic: visits and bytes            ▼
//!                                               └──────────────────────────── connect to those
//! ```
//!
//! A sandbox has no network interface except loopback, so there is nothing to filter and nothing to bypass.
//! Code reaches hosts through [`proxy`] only, with `CONNECT` or a request with an absolute URL. A redirect is
//! a new request of the client and is checked like any other.
//!
//! [`policy`] decides what is allowed and [`host`] parses names; [`secrets`] and [`authority`] add headers
//! that code in the sandbox must not see; [`traffic`] records visits; [`outbound`] resolves names, checks
//! addresses and connects, here and for sources of datasets.
//!
//! This crate has no code for sandboxes: the engine passes their connections to it ([`Connections`]).

#![forbid(unsafe_code)]

mod authority;
mod environment;
mod error;
pub mod host;
mod network;
pub mod outbound;
mod policy;
mod proxy;
mod secrets;
pub mod setting;
#[cfg(test)]
mod tests;
mod traffic;

pub use authority::{AuthoritySource, new_authority};
pub use error::NetworkError;
pub use network::Network;
pub use outbound::{Dns, Resolver};
pub use policy::{Injection, Policy};
pub use proxy::{Connections, Serving, remove_hop_by_hop, serve};
pub use secrets::Secrets;
pub use traffic::{Outcome, Totals, Traffic, Visit, VisitListener};

/// Locks state that stays valid after a panic: no code here panics in the middle of a change.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Tests measure how much memory the parsers of hostile input allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: belljar_fuzz::Counting = belljar_fuzz::Counting;
