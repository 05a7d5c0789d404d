//! The commands, one file or folder each.

pub(crate) mod artifacts;
pub(crate) mod bench;
pub(crate) mod cluster_ca;
mod code;
mod colours;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod gateway;
pub(crate) mod guest;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod key;
mod limits;
pub(crate) mod migrate;
pub(crate) mod node;
mod outage;
mod output;
mod progress;
mod remove;
pub(crate) mod run;
pub(crate) mod serve;
mod server;
pub(crate) mod session;
pub(crate) mod setup;
pub(crate) mod shell;
pub(crate) mod spawner;
mod state_db;
pub(crate) mod status;
pub(crate) mod uninstall;
pub(crate) mod usage;
pub(crate) mod view;
pub(crate) mod volume;

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::client::Client;
use crate::settings::Settings;

/// The sandbox or the command failed, not the code; `docker run` uses the same number.
pub(crate) const EXIT_FAILED: u8 = 125;

/// The code succeeded, but some of its artifacts could not be kept.
pub(crate) const EXIT_LOST: u8 = 123;

pub(crate) use output::without_escapes;

/// Runs `work` with a client of the server that the settings name.
fn as_client(
    settings: &Settings,
    work: impl AsyncFnOnce(&Client) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let client = Client::new(&settings.client)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("failed to start the event loop")?.block_on(work(&client))
}
