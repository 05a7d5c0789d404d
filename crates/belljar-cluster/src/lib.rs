//! Belljar on many machines.
//!
//! ```text
//!   clients ──▶ gateway ── mutual TLS ──▶ node: engine, sandboxes, lease keeper ──▶ lease watchdog (a process)
//!                  └──────── Postgres ───────┘   (nodes, leases, owners of sessions)
//! ```
//!
//! * [`tls`] gives each process a certificate of the cluster's own authority;
//! * [`lease`] keeps the lease of a node and stops its sandboxes in time when that fails, [`watchdog`] does the same
//!   when the server itself is stopped;
//! * [`gateway`] checks requests, chooses a node and passes them on.
//!
//! What a node does with its sessions is in `belljar-engine`; the records are in `belljar-store`.

#![forbid(unsafe_code)]

pub mod gateway;
pub mod lease;
pub mod tls;
pub mod watchdog;
