//! Messages between the guest of a container and the zygote inside, which forks kernels.
//!
//! Each packet is one JSON object, with descriptors; every request gets one answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum ToZygote<'a> {
    /// Must come first.
    Configure { preload: &'a [String] },
    /// `fds` names the descriptors that come with it, in their order.
    Fork {
        id: u64,
        fds: Vec<&'static str>,
        uid: u32,
        gid: u32,
        cwd: &'a str,
        env: serde_json::Map<String, serde_json::Value>,
    },
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum FromZygote {
    Ready(Warm),
    Forked {
        id: u64,
        ok: bool,
        #[serde(default)]
        error: String,
    },
    Error {
        #[serde(default)]
        error: String,
    },
}

/// What a preloaded interpreter reports about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warm {
    pub python: String,
    pub modules: Vec<String>,
    /// Modules of the preload list that could not be imported, and why.
    #[serde(default)]
    pub failed: BTreeMap<String, String>,
    /// Threads besides the main one: kernels do not have them.
    #[serde(default)]
    pub threads: Vec<String>,
    /// Memory that kernels share.
    #[serde(default)]
    pub rss_kib: u64,
}

/// An environment, as [`ToZygote::Fork`] has it.
#[must_use]
pub fn environment(env: &[(String, String)]) -> serde_json::Map<String, serde_json::Value> {
    env.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect()
}

/// The names of a kernel's descriptors, in the order in which a guest sends them.
pub const KERNEL_ENDS: [&str; 4] = ["control", "stdin", "stdout", "stderr"];
