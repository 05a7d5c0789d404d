//! Belljar over HTTP, as its users meet it: the real server, real sandboxes, whole answers.

mod client;
#[path = "../leaks/corner.rs"]
mod corner;
mod execs;
mod expiry;
mod openapi;
mod queue;
mod refusals;
mod runs;
mod server;
mod sessions;
mod shell;
mod streams;
