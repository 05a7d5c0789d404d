//! From the parsed command line to the command that runs.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory as _;

use crate::cli::{Cli, Command};
use crate::commands::{
    artifacts, bench, cluster_ca, completions, doctor, gateway, guest, image, init, key, migrate,
    node, run, serve, session, setup, shell, spawner, status, uninstall, usage, view, volume,
};
use crate::logging;
use crate::settings::Settings;

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
    // The server reads the settings. Wrong ones are its error.
    if let Command::Init(args) = &command {
        logging::expect_json(command.is_server());
        return init::init(args);
    }
    // These need no settings, so wrong settings must not make them fail.
    match &command {
        Command::LeaseWatchdog(args) => return node::lease_watchdog(args),
        Command::Cluster(command) => return cluster_ca::cluster(command),
        Command::Completions(args) => return completions::completions(args, Cli::command()),
        Command::Man(args) => return completions::man(args, Cli::command()),
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
        Command::Node(_) => node::node(&settings),
        Command::Gateway(_) => gateway::gateway(&settings),
        Command::Cluster(command) => cluster_ca::cluster(&command),
        Command::LeaseWatchdog(args) => node::lease_watchdog(&args),
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
        Command::Migrate(args) => migrate::migrate(&args, &settings),
        Command::Uninstall(args) => uninstall::uninstall(&args, &settings),
        Command::Completions(args) => completions::completions(&args, Cli::command()),
        Command::Man(args) => completions::man(&args, Cli::command()),
        Command::Spawner { inside, .. } => spawner::spawner(inside),
        Command::Guest(args) => guest::guest(args),
        Command::Init(args) => init::init(&args),
        Command::BuildStep => image::build_step(),
    }
}
