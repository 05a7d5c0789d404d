use crate::{cli::BenchArgs, settings::Settings};
use anyhow::Result;
use std::process::ExitCode;
pub(super) fn bench(_: &BenchArgs, _: &Settings) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
