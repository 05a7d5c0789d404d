//! `belljar guest`: PID 1 of a container, started by its engine.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_guest::{Start, Transport};
use belljar_runtime::docker;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct GuestArgs {
    /// Connect to the host at this socket; without it, use standard input and output
    #[arg(long, value_name = "SOCKET")]
    pub(crate) dial: Option<PathBuf>,
    /// Seconds to continue without a host
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    pub(crate) alone_for: u64,
}

pub(crate) fn guest(args: GuestArgs) -> Result<ExitCode> {
    let sealed = docker::seal_guest().context("failed to seal the sandbox")?;
    belljar_guest::run(Start {
        transport: args.dial.map_or(Transport::Stdio, Transport::Dial),
        nonce: None,
        oom_events: sealed.oom_events,
        alone_for_s: args.alone_for,
    })
    .context("the guest failed")?;
    Ok(ExitCode::SUCCESS)
}
