//! `belljar spawner`: started by the server to make sandboxes.

use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_guest::Transport;
use belljar_runtime::native::spawner::{self, GuestStart};

pub(crate) fn spawner(inside: bool) -> Result<ExitCode> {
    let outcome =
        if inside { spawner::serve(become_guest) } else { spawner::enter_user_namespace() };
    outcome.context("the spawner failed")?;
    Ok(ExitCode::SUCCESS)
}

fn become_guest(start: GuestStart) -> std::io::Result<()> {
    belljar_guest::run(belljar_guest::Start {
        transport: Transport::Listener(start.listener),
        nonce: Some(start.nonce),
        oom_events: start.oom_events,
        alone_for_s: start.alone_for_s,
    })
}
