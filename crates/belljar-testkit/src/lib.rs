//! What several test suites share: a scratch host, servers on it, clients of these servers, and attacks.

#![forbid(unsafe_code)]
#![allow(missing_debug_implementations, reason = "tests print what they compare")]

pub mod attack;
pub mod attack_host;
pub mod cli_server;
pub mod client;
#[cfg(feature = "s3")]
pub mod cluster;
pub mod command;
pub mod installation;
pub mod openapi;
pub mod port;
pub mod postgres;
#[cfg(feature = "s3")]
pub mod s3;
pub mod scratch_host;
pub mod server;
pub mod session;
pub mod skip;
mod start;
pub mod terminal;
pub mod values;
pub mod wait;
pub mod website;

use std::path::Path;
use std::sync::OnceLock;

/// The `belljar` that Cargo built for the tests: two directories above the test program.
pub fn belljar() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has a path");
        let built =
            test.parent().and_then(Path::parent).expect("a test is in a directory of Cargo's");
        let belljar = built.join("belljar");
        assert!(belljar.is_file(), "{} is not built", belljar.display());
        belljar.into_os_string().into_string().expect("a path of text")
    })
}
