//! The same on a container engine, beside the engine's own command.

use std::process::ExitCode;

use anyhow::Result;
use belljar_runtime::SandboxSpec;
use serde::Serialize;

use super::samples::{self, Summary};
use super::{Bench, FIRST, FIRST_PANDAS, Machine, conclude, peers, progress};
use crate::backend::Prepared;
use crate::cli::BenchArgs;
use crate::settings::Settings;
use crate::table;

/// Containers of the pool are large and slow to make.
const POOL_SIZE: usize = 3;

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    backend: String,
    image: String,
    create_pooled: Summary,
    create_pooled_pandas: Summary,
    create_cold: Summary,
    warm_exec: Summary,
    /// The same first work by the engine's own command.
    docker_run: Summary,
}

pub(super) fn bench(args: &BenchArgs, settings: &Settings, prepared: Prepared) -> Result<ExitCode> {
    conclude(args, measure(args, settings, prepared), Report::print)
}

async fn measure(args: &BenchArgs, settings: &Settings, prepared: Prepared) -> Result<Report> {
    let progress = progress();
    let say = |text: &str| progress.set_message(text.to_owned());
    let image = prepared.default_image(settings);
    // With an owner: what is measured is a server's sandboxes, with an interpreter kept warm.
    let owner = format!("bench{}", std::process::id());
    let runtime = prepared.launch(Some(&owner)).await?;
    let backend = runtime.backend();
    let spec = SandboxSpec { limits: settings.limits, ..SandboxSpec::default() };
    let bench = Bench { runtime, spec, pool: POOL_SIZE, args };
    let (few, rounds) = if args.quick { (3, 10) } else { (10, 50) };
    say("the first of all, which may prepare the image");
    bench.create_cold(1, FIRST).await?;
    say("docker run");
    let docker_run = peers::docker_run(&image, settings, FIRST, few)?;
    say("creating without a pool");
    let create_cold = bench.create_cold(few, FIRST).await?;
    say("creating from the pool");
    let create_pooled = bench.create_pooled(rounds, FIRST).await?;
    let create_pooled_pandas = bench.create_pooled(rounds, FIRST_PANDAS).await?;
    say("warm executions");
    let warm_exec = bench.warm_exec(if args.quick { 500 } else { 5000 }).await?;
    progress.finish_and_clear();
    Ok(Report {
        machine: Machine::of_this(),
        backend,
        image,
        create_pooled,
        create_pooled_pandas,
        create_cold,
        warm_exec,
        docker_run,
    })
}

impl Report {
    fn print(&self) {
        println!("{}; {} with {}\n", self.machine, self.backend, self.image);
        let times =
            |ours: &Summary| format!("{:.2}x of docker run", ours.p50_ms / self.docker_run.p50_ms);
        let rows = [
            ("create -> first result, pool", &self.create_pooled, times(&self.create_pooled)),
            ("... that uses pandas", &self.create_pooled_pandas, String::new()),
            ("create -> first result, no pool", &self.create_cold, times(&self.create_cold)),
            ("warm exec", &self.warm_exec, String::new()),
            ("same first result by docker run", &self.docker_run, String::new()),
        ];
        let rows: Vec<Vec<String>> = rows
            .into_iter()
            .map(|(what, summary, versus)| summary.row(what.to_owned(), versus))
            .collect();
        print!("{}", table::render(&samples::HEADER, &rows));
    }
}
