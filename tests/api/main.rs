//! Belljar over HTTP, as its users meet it: the real server, real sandboxes, whole answers.

mod admission;
mod artifacts;
mod books;
mod browser;
mod client;
#[path = "../leaks/corner.rs"]
mod corner;
mod datasets;
mod deaths;
mod doors;
mod drain;
mod execs;
mod expiry;
mod files;
mod files_archives;
mod files_memory;
mod files_model;
mod idle;
mod keys;
mod languages;
mod network;
mod openapi;
mod queue;
mod refusals;
mod runs;
mod seat;
mod server;
mod sessions;
mod shell;
mod simple_sandbox;
mod site;
mod starts;
mod storage;
mod streams;
mod terminals;
mod volumes;
