//! `belljar bench` with sandboxes of a container engine, compared with the engine's own command.

use anyhow::Result;
use belljar_runtime::docker::{DockerConfig, DockerRuntime};
use belljar_runtime::{Runtime as _, SandboxSpec};
use serde::Serialize;

use crate::figures::{Figures, Machine};
use crate::native::RuntimeBench;
use crate::samples::{self, Summary};
use crate::workload::{FIRST, FIRST_PANDAS};
use crate::{BenchArgs, BenchConfig, peers, progress};

/// Small, because a container takes much memory and a second to create.
const POOL_SIZE: usize = 3;

/// Results for sandboxes of a container engine.
#[derive(Debug, Serialize)]
pub(crate) struct DockerFigures {
    machine: Machine,
    backend: String,
    image: String,
    create_pooled: Summary,
    create_pooled_pandas: Summary,
    create_cold: Summary,
    warm_exec: Summary,
    /// The time to the same first result with the engine's own command.
    docker_run: Summary,
}

pub(crate) async fn measure(
    args: &BenchArgs,
    config: &BenchConfig,
    docker: DockerConfig,
) -> Result<DockerFigures> {
    let progress = progress();
    let say = |text: &str| progress.set_message(text.to_owned());
    let image = docker.image.clone();
    // With an owner, as a server has: only then is an interpreter kept warm.
    let owner = format!("bench{}", std::process::id());
    let runtime = DockerRuntime::launch(docker, Some(&owner)).await?;
    let backend = runtime.backend();
    let spec = SandboxSpec { limits: config.limits, ..SandboxSpec::default() };
    let bench = RuntimeBench { runtime, spec, pool: POOL_SIZE, args };
    let (few, rounds) = if args.quick { (3, 10) } else { (10, 50) };
    say("the first sandbox, for which the image may have to be prepared");
    bench.create_cold(1, FIRST).await?;
    say("docker run");
    let docker_run = peers::docker_run(&image, config, FIRST, few)?;
    say("creating without a pool");
    let create_cold = bench.create_cold(few, FIRST).await?;
    say("creating from the pool");
    let create_pooled = bench.create_pooled(rounds, FIRST).await?;
    let create_pooled_pandas = bench.create_pooled(rounds, FIRST_PANDAS).await?;
    say("warm executions");
    let warm_exec = bench.warm_exec(if args.quick { 500 } else { 5000 }).await?;
    progress.finish_and_clear();
    Ok(DockerFigures {
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

impl Figures for DockerFigures {
    fn heading(&self) -> String {
        format!("{}; {} with {}", self.machine, self.backend, self.image)
    }

    fn header(&self) -> Vec<&'static str> {
        samples::HEADER.to_vec()
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let times =
            |ours: &Summary| format!("{:.2}x of docker run", ours.p50_ms / self.docker_run.p50_ms);
        vec![
            self.create_pooled.row("create -> first result, pool", times(&self.create_pooled)),
            self.create_pooled_pandas.row("... that uses pandas", String::new()),
            self.create_cold.row("create -> first result, no pool", times(&self.create_cold)),
            self.warm_exec.row("warm exec", String::new()),
            self.docker_run.row("same first result by docker run", String::new()),
        ]
    }
}
