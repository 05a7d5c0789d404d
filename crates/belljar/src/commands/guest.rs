//! `belljar guest`: started by a container engine as PID 1, never by people.

use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_guest::{Start, Transport};
use belljar_runtime::docker;

use crate::cli::GuestArgs;

pub(super) fn guest(args: GuestArgs) -> Result<ExitCode> {
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
