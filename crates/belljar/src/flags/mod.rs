//! Flags and arguments that several commands have.

pub(crate) mod values;

use std::ops::Deref;

use clap::Args;

use values::{parse_cpus, parse_size};

/// The server that a command is a client of.
#[derive(Debug, Args)]
pub(crate) struct ServerFlags {
    /// The URL of the server [default: BELLJAR_URL, else the local server of Python programs, else
    /// http://127.0.0.1:8000]
    #[arg(long, value_name = "URL", global = true)]
    url: Option<String>,
}

impl ServerFlags {
    /// The flag as the setting that it corresponds to.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        self.url.iter().map(|url| ("BELLJAR_URL", url.clone())).collect()
    }
}

/// A session, by its id or its key.
#[derive(Debug, Args)]
pub(crate) struct SessionArg {
    /// The id of the session, or its key
    #[arg(value_name = "ID")]
    session: String,
}

impl Deref for SessionArg {
    type Target = str;

    fn deref(&self) -> &str {
        &self.session
    }
}

/// Limits of a sandbox.
#[derive(Debug, Args)]
pub(crate) struct LimitFlags {
    /// Memory, including files in RAM: a number of bytes, or with K, M, G [default: by the settings]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Processors, such as 0.5 or 2 [default: by the settings]
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    pub(crate) cpus: Option<u32>,
    /// Processes and threads [default: by the settings]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(4..=100_000))]
    pub(crate) pids: Option<u64>,
}
