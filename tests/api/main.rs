//! Belljar over HTTP, as its users meet it: the real server, real sandboxes, whole answers.

mod client;
#[path = "../leaks/corner.rs"]
mod corner;
mod openapi;
mod server;
mod sessions;
