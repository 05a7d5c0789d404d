//! One file per command.

mod bench;
mod doctor;
mod limits;
mod run;
mod setup;
mod spawner;

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Command;
use crate::settings::Settings;

/// The sandbox, not the code in it, failed; `docker run` uses the same number.
pub(crate) const EXIT_TROUBLE: u8 = 125;

pub(crate) fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(args, &Settings::load()?),
        Command::Setup(args) => setup::setup(&args, &Settings::load()?),
        Command::Doctor(args) => doctor::doctor(&args, &Settings::load()?),
        Command::Bench(args) => bench::bench(&args, &Settings::load()?),
        Command::Spawner { inside } => spawner::spawner(inside),
    }
}
