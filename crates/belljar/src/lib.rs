//! `belljar`: the program: settings and commands. It is a library only so that tests can use the same settings.

#![forbid(unsafe_code)]

pub mod backend;
mod cli;
mod client;
mod commands;
mod dispatch;
mod flags;
pub mod home;
mod logging;
mod records;
pub mod settings;
mod table;

use std::process::ExitCode;

use clap::Parser;

/// The program.
pub fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match dispatch::dispatch(cli.command) {
        Ok(code) => code,
        Err(error) => {
            // The whole chain of causes, in one line.
            logging::fail(&commands::without_escapes(&format!("{error:#}")));
            ExitCode::from(commands::EXIT_FAILED)
        }
    }
}
