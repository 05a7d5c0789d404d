//! Between a zygote and whoever has kernels forked: the host, or in a container the guest.
//!
//! One JSON object in each packet, with descriptors beside it; every order gets one answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum ToZygote<'a> {
    /// Must come first. The filter is a BPF program in base64; an empty one means that kernels are
    /// under one already.
    Configure { preload: &'a [String], seccomp: String },
    /// `fds` names the descriptors that come with it, in their order.
    Fork {
        id: u64,
        fds: Vec<&'static str>,
        uid: u32,
        gid: u32,
        cwd: &'a str,
        env: serde_json::Map<String, serde_json::Value>,
    },
    /// Write down what all kernels have in common, into the pipe that comes with it.
    Picture { layer: u64 },
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
    Pictured {
        bytes: u64,
    },
    Error {
        #[serde(default)]
        error: String,
    },
}

/// What a warm zygote says of itself.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Warm {
    pub python: String,
    pub modules: Vec<String>,
    /// Modules of the preload list that could not be imported, and why.
    #[serde(default)]
    pub failed: BTreeMap<String, String>,
    /// Threads besides the main one; any would make forking unsafe.
    #[serde(default)]
    pub threads: Vec<String>,
    #[serde(default)]
    pub rss_kib: u64,
    /// Its process id on the host.
    #[serde(skip)]
    pub pid: u32,
}

/// An environment, as it stands in [`ToZygote::Fork`].
#[must_use]
pub fn environment(env: &[(String, String)]) -> serde_json::Map<String, serde_json::Value> {
    env.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect()
}

/// The names of a kernel's ends, in the order in which a guest hands them out.
pub const KERNEL_ENDS: [&str; 5] = ["control", "stdin", "stdout", "stderr", "landlock"];
