//! `belljar bench`: measures this machine and prints the figures.

use std::env;
use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_bench::{Backend, BenchArgs, BenchConfig};

use crate::backend::Prepared;
use crate::settings::Settings;
use crate::{home, table};

pub(crate) fn bench(args: &BenchArgs, settings: &Settings) -> Result<ExitCode> {
    let config = BenchConfig {
        program: env::current_exe().context("failed to find the belljar binary")?,
        limits: settings.limits,
        python: home::environment_python(settings),
        peer_image: settings.bench_image.clone(),
        docker_runtime: settings.backend.docker_runtime.clone(),
    };
    let backend = || {
        Ok(match Prepared::start(settings)? {
            Prepared::Native(prepared) => Backend::Native(prepared),
            Prepared::Docker(config) => Backend::Docker(config),
        })
    };
    let measured = belljar_bench::bench(args, &config, backend)?;
    if args.json {
        println!("{}", measured.json);
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}\n", measured.heading);
    print!("{}", table::render(&measured.header, &measured.rows));
    if !measured.remarks.is_empty() {
        println!("\n{}", measured.remarks.join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}
