//! What is left of everything when the server is killed, and what its successor makes of it.

#[path = "../api/client.rs"]
#[allow(dead_code, reason = "made for the tests of the API")]
mod client;
#[path = "../leaks/corner.rs"]
#[allow(dead_code, reason = "made for the tests of leaks")]
mod corner;
#[path = "../api/server.rs"]
#[allow(dead_code, reason = "made for the tests of the API")]
mod server;
#[path = "../api/site.rs"]
mod site;

mod disk;
mod forgotten;
mod kills;
mod lives;
mod network;
mod sleep;
mod successor;
mod volumes;
mod worker;
