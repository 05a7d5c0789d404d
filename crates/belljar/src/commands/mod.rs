//! The commands, one file or folder each.

pub(crate) mod artifacts;
mod bench;
mod code;
mod colours;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod guest;
pub(crate) mod image;
pub(crate) mod key;
mod limits;
mod outage;
mod output;
mod progress;
mod remove;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod setup;
pub(crate) mod shell;
mod spawner;
mod state_db;
pub(crate) mod status;
pub(crate) mod uninstall;
pub(crate) mod usage;
pub(crate) mod view;
pub(crate) mod volume;

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::cli::Command;
use crate::client::Client;
use crate::logging;
use crate::settings::Settings;

/// The sandbox or the command failed, not the code; `docker run` uses the same number.
pub(crate) const EXIT_FAILED: u8 = 125;

/// The code succeeded, but some of its artifacts could not be kept.
pub(crate) const EXIT_LOST: u8 = 123;

pub(crate) use output::without_escapes;

pub(crate) fn dispatch(command: Command) -> Result<ExitCode> {
    if let Command::Spawner { inside, json_logs } = command {
        logging::start_spawner(json_logs);
        return spawner::spawner(inside);
    }
    // Inside a container there are no settings to read.
    if let Command::Guest(args) = command {
        return guest::guest(args);
    }
    if let Command::BuildStep = command {
        return image::build_step();
    }
    // These need no settings, so wrong settings must not make them fail.
    match &command {
        Command::Completions(args) => return completions::completions(args),
        Command::Man(args) => return completions::man(args),
        _ => {}
    }
    let flags = command.settings();
    carry_out(command, &flags).map_err(|error| named_as_flag(error, &flags))
}

/// Errors of settings name variables. If the value came from a flag, the error names the flag instead.
fn named_as_flag(error: anyhow::Error, flags: &[(&'static str, String)]) -> anyhow::Error {
    let text = format!("{error:#}");
    for (variable, value) in flags.iter().filter(|(_, value)| !value.is_empty()) {
        let flag = variable.trim_start_matches("BELLJAR_").to_lowercase().replace('_', "-");
        if let Some(rest) = text.strip_prefix(&format!("{variable}={value}")) {
            return anyhow::Error::msg(format!("--{flag} {value}{rest}"));
        }
        if let Some(rest) = text.strip_prefix(&format!("{variable}: ")) {
            return anyhow::Error::msg(format!("--{flag}: {rest}"));
        }
    }
    error
}

fn carry_out(command: Command, flags: &[(&'static str, String)]) -> Result<ExitCode> {
    logging::expect_json(command.is_server());
    let settings = Settings::load_with(flags)?;
    logging::start(&settings.log, command.default_log(), command.is_server());
    match command {
        Command::Run(args) => run::run(args, &settings),
        Command::Serve(args) => serve::serve(&args, &settings),
        Command::Session(args) => session::session(args.command, &settings),
        Command::Status(args) => status::status(&args, &settings),
        Command::Shell(args) => shell::shell(args, &settings),
        Command::Artifacts(args) => artifacts::artifacts(args.command, &settings),
        Command::Volume(args) => volume::volume(args.command, &settings),
        Command::Key(command) => key::key(command, &settings),
        Command::Usage(args) => usage::usage(args, &settings),
        Command::Image(args) => image::image(args.command, &settings),
        Command::View(args) => view::view(&args),
        Command::Setup(args) => setup::setup(&args, &settings),
        Command::Doctor(args) => doctor::doctor(&args, &settings),
        Command::Bench(args) => bench::bench(&args, &settings),
        Command::Uninstall(args) => uninstall::uninstall(&args, &settings),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => completions::man(&args),
        Command::Spawner { inside, .. } => spawner::spawner(inside),
        Command::Guest(args) => guest::guest(args),
        Command::BuildStep => image::build_step(),
    }
}

/// Runs `work` with a client of the server that the settings name.
fn as_client(
    settings: &Settings,
    work: impl AsyncFnOnce(&Client) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let client = Client::new(&settings.client)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("failed to start the event loop")?.block_on(work(&client))
}
