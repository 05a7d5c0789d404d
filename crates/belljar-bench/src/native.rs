//! `belljar bench`: native sandboxes (namespaces), created and used in this process.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use belljar_engine::pool::{Pool, warm_sandbox};
use belljar_runtime::ZygoteState;
use belljar_runtime::native;
use belljar_runtime::{Runtime, Sandbox, SandboxSpec};
use belljar_sys::procfs;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::figures::{Figures, Machine};
use crate::peers::{self, CommandLine};
use crate::samples::{self, Samples, Summary, count, mib};
use crate::workload::{FIRST, FIRST_PANDAS, NOTHING, POOL_SIZE, execute};
use crate::{BenchArgs, BenchConfig, progress};

/// Results for native sandboxes.
#[derive(Debug, Serialize)]
pub(crate) struct NativeFigures {
    machine: Machine,
    zygote: Zygote,
    create_pooled: Summary,
    create_pooled_pandas: Summary,
    create_cold: Summary,
    create_cold_pandas: Summary,
    warm_exec: Summary,
    burst: Burst,
    density: Vec<Density>,
    memory: Memory,
    command_line: CommandLine,
    /// The time to the same first result with a plain interpreter and with `docker run`.
    python_process: Option<Summary>,
    docker_run: Option<Summary>,
    /// Why a figure is missing.
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Zygote {
    modules: usize,
    warm_ms: f64,
    rss_mib: f64,
}

#[derive(Debug, Serialize)]
struct Burst {
    sessions: usize,
    total_ms: f64,
    each: Summary,
}

/// Latencies while this many sessions are live.
#[derive(Debug, Serialize)]
struct Density {
    sessions: usize,
    create: Summary,
    first_of_visit: Summary,
    warm_exec: Summary,
    answered: usize,
}

#[derive(Debug, Serialize)]
struct Memory {
    sessions: usize,
    /// Memory that is charged to the cgroup of a sandbox, on average.
    cgroup_mib: f64,
    /// Memory of this process, the spawner and the zygote, divided by the number of sessions.
    ours_mib: f64,
    per_session_mib: f64,
    python_process_mib: Option<f64>,
}

/// A runtime, and the sandboxes that it makes for the benchmark.
pub(crate) struct RuntimeBench<'a> {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) spec: SandboxSpec,
    /// Size of the pool during the measurement.
    pub(crate) pool: usize,
    pub(crate) args: &'a BenchArgs,
}

pub(crate) async fn measure(
    args: &BenchArgs,
    config: &BenchConfig,
    prepared: native::Prepared,
) -> Result<NativeFigures> {
    let progress = progress();
    let say = |text: &str| progress.set_message(text.to_owned());
    let (rounds, sessions) =
        if args.quick { (20, args.sessions.min(100)) } else { (100, args.sessions) };
    let mut notes = Vec::new();

    say("warming the zygote");
    let runtime = prepared.launch()?;
    let (zygote, zygote_kib) = warm_zygote(&runtime, &mut notes).await?;
    let spawner = runtime.spawner_pid();
    let spec = SandboxSpec { limits: config.limits, ..SandboxSpec::default() };
    let bench = RuntimeBench { runtime, spec, pool: POOL_SIZE, args };

    say("command line");
    let command_line = peers::command_line(config, if args.quick { 5 } else { 20 })?;
    say("creating without a pool");
    let create_cold = bench.create_cold(rounds, FIRST).await?;
    let create_cold_pandas = bench.create_cold(rounds, FIRST_PANDAS).await?;
    say("creating from the pool");
    let create_pooled = bench.create_pooled(rounds, FIRST).await?;
    let create_pooled_pandas = bench.create_pooled(rounds, FIRST_PANDAS).await?;
    say("warm executions");
    let warm_exec = bench.warm_exec(if args.quick { 500 } else { 5000 }).await?;
    say("a burst of creates");
    let burst = bench.burst(100).await?;
    say("many live sessions");
    let (density, live) = bench.density(sessions, &progress).await?;
    let memory = memory(&live, config, spawner, zygote_kib);
    progress.set_message("stopping the sessions");
    for sandbox in live {
        sandbox.destroy().await;
    }
    say("peers");
    let few = if args.quick { 3 } else { 10 };
    let mut note = |what: &str, error: anyhow::Error| notes.push(format!("{what}: {error:#}"));
    let python_process =
        peers::python(config, FIRST, few).map_err(|e| note("python3 not compared", e)).ok();
    let docker_run =
        peers::docker(config, FIRST, few).map_err(|e| note("docker not compared", e)).ok();
    progress.finish_and_clear();

    Ok(NativeFigures {
        machine: Machine::of_this(),
        zygote,
        create_pooled,
        create_pooled_pandas,
        create_cold,
        create_cold_pandas,
        warm_exec,
        burst,
        density,
        memory,
        command_line,
        python_process,
        docker_run,
        notes,
    })
}

/// Waits for the zygote. Returns its figures, and its resident memory in KiB.
async fn warm_zygote(
    runtime: &Arc<native::NativeRuntime>,
    notes: &mut Vec<String>,
) -> Result<(Zygote, u64)> {
    let start = Instant::now();
    runtime.keep_zygote();
    let warm = match runtime.zygote_settled().await {
        ZygoteState::Warm(warm) => warm,
        ZygoteState::Failed(why) => bail!("there is no zygote: {why}"),
        ZygoteState::Warming => bail!("the zygote is still not warm"),
    };
    let zygote = Zygote {
        modules: warm.modules.len(),
        warm_ms: start.elapsed().as_secs_f64() * 1000.0,
        rss_mib: mib(warm.rss_kib * 1024),
    };
    for (module, why) in &warm.failed {
        notes.push(format!("not preloaded: {module} ({why})"));
    }
    Ok((zygote, warm.rss_kib))
}

impl RuntimeBench<'_> {
    pub(crate) async fn create_cold(&self, rounds: usize, code: &str) -> Result<Summary> {
        let mut samples = Samples::default();
        for _ in 0..rounds {
            let start = Instant::now();
            let sandbox = warm_sandbox(&self.runtime, &self.spec).await?;
            execute(&sandbox, code).await?;
            samples.push(start.elapsed());
            sandbox.destroy().await;
        }
        Ok(samples.summary())
    }

    pub(crate) async fn create_pooled(&self, rounds: usize, code: &str) -> Result<Summary> {
        let spec = self.spec.clone();
        let next = Box::new(move || Ok((String::new(), spec.clone())));
        let pool = Pool::start(Arc::clone(&self.runtime), self.pool, next);
        let mut samples = Samples::default();
        for _ in 0..rounds {
            // The pool is full and idle when a sandbox is taken.
            pool.full().await;
            let start = Instant::now();
            let sandbox = pool.take().await?.sandbox;
            execute(&sandbox, code).await?;
            samples.push(start.elapsed());
            sandbox.destroy().await;
        }
        let (hits, misses) = pool.hits_and_misses();
        ensure!(misses == 0, "{misses} of {} creates missed the pool", hits + misses);
        pool.drain().await;
        Ok(samples.summary())
    }

    pub(crate) async fn warm_exec(&self, rounds: usize) -> Result<Summary> {
        let sandbox = warm_sandbox(&self.runtime, &self.spec).await?;
        execute(&sandbox, FIRST).await?;
        let mut samples = Samples::default();
        for _ in 0..rounds {
            let start = Instant::now();
            execute(&sandbox, NOTHING).await?;
            samples.push(start.elapsed());
        }
        sandbox.destroy().await;
        Ok(samples.summary())
    }

    async fn burst(&self, sessions: usize) -> Result<Burst> {
        let start = Instant::now();
        let tasks: Vec<_> = (0..sessions)
            .map(|_| {
                let (runtime, spec) = (Arc::clone(&self.runtime), self.spec.clone());
                tokio::spawn(async move {
                    let sandbox = warm_sandbox(&runtime, &spec).await?;
                    execute(&sandbox, FIRST).await?;
                    anyhow::Ok((start.elapsed(), sandbox))
                })
            })
            .collect();
        let mut each = Samples::default();
        let mut made = Vec::new();
        for task in tasks {
            let (took, sandbox) = task.await??;
            each.push(took);
            made.push(sandbox);
        }
        let total_ms = start.elapsed().as_secs_f64() * 1000.0;
        for sandbox in made {
            sandbox.destroy().await;
        }
        Ok(Burst { sessions, total_ms, each: each.summary() })
    }

    /// Creates sandboxes up to the largest number, and measures at a few numbers in between.
    async fn density(
        &self,
        most: usize,
        progress: &ProgressBar,
    ) -> Result<(Vec<Density>, Vec<Sandbox>)> {
        let mut marks: Vec<usize> = [1, 100, 500, 1000].into_iter().filter(|&n| n < most).collect();
        marks.push(most);
        let mut live: Vec<Sandbox> = Vec::new();
        let mut density = Vec::new();
        for mark in marks {
            let mut create = Samples::default();
            while live.len() < mark {
                let start = Instant::now();
                let sandbox = warm_sandbox(&self.runtime, &self.spec).await?;
                create.push(start.elapsed());
                live.push(sandbox);
                progress.set_message(format!("{} live sessions", live.len()));
            }
            density.push(self.measure_live(&live, &create).await?);
        }
        Ok((density, live))
    }

    async fn measure_live(&self, live: &[Sandbox], create: &Samples) -> Result<Density> {
        let mut answered = 0;
        for sandbox in live {
            answered += usize::from(execute(sandbox, NOTHING).await.is_ok());
        }
        // Spreads the visits over all sessions. The first execution of a visit finds cold caches,
        // as after a long pause. The next ones find warm caches, as in an active conversation.
        let visits = if self.args.quick { 20 } else { 100 };
        let (mut first_of_visit, mut warm_exec) = (Samples::default(), Samples::default());
        for visit in 0..visits {
            let sandbox = &live[visit * 7919 % live.len()];
            for n in 0..=10 {
                let start = Instant::now();
                execute(sandbox, NOTHING).await?;
                let samples = if n == 0 { &mut first_of_visit } else { &mut warm_exec };
                samples.push(start.elapsed());
            }
        }
        Ok(Density {
            sessions: live.len(),
            create: create.summary(),
            first_of_visit: first_of_visit.summary(),
            warm_exec: warm_exec.summary(),
            answered,
        })
    }
}

/// Memory of idle sessions that have executed code, and of our own processes.
fn memory(live: &[Sandbox], config: &BenchConfig, spawner: u32, zygote_kib: u64) -> Memory {
    let charged: u64 = live.iter().filter_map(Sandbox::memory_used).sum();
    let processes = [std::process::id(), spawner];
    let ours: u64 = processes.into_iter().filter_map(procfs::private_kib).sum();
    let ours = (ours + zygote_kib) * 1024;
    let share = |bytes: u64| mib(bytes) / count(live.len());
    Memory {
        sessions: live.len(),
        cgroup_mib: share(charged),
        ours_mib: share(ours),
        per_session_mib: share(charged + ours),
        python_process_mib: peers::python_rss_kib(config, FIRST).map(|kib| mib(kib * 1024)),
    }
}

impl Figures for NativeFigures {
    fn heading(&self) -> String {
        format!(
            "{}; zygote: {} modules, {:.0} MiB, warm in {:.1} s",
            self.machine,
            self.zygote.modules,
            self.zygote.rss_mib,
            self.zygote.warm_ms / 1000.0
        )
    }

    fn header(&self) -> Vec<&'static str> {
        samples::HEADER.to_vec()
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows: Vec<Vec<String>> = [
            ("create -> first result, pool", &self.create_pooled),
            ("... that uses pandas", &self.create_pooled_pandas),
            ("create -> first result, no pool", &self.create_cold),
            ("... that uses pandas", &self.create_cold_pandas),
        ]
        .into_iter()
        .map(|(what, summary)| summary.row(what, self.compared_with_peers(summary)))
        .collect();
        rows.push(self.warm_exec.row("warm exec", String::new()));
        let Burst { sessions, total_ms, each } = &self.burst;
        rows.push(
            each.row(&format!("burst of {sessions}, each"), format!("all in {total_ms:.0} ms")),
        );
        rows.extend(self.density.iter().flat_map(|density| self.density_rows(density)));
        rows.extend(self.peer_rows());
        rows
    }

    fn remarks(&self) -> Vec<String> {
        let memory = &self.memory;
        let mut remarks = vec![format!(
            "memory per idle session, {} live: {:.2} MiB ({:.2} in its cgroup, {:.2} of ours)",
            memory.sessions, memory.per_session_mib, memory.cgroup_mib, memory.ours_mib
        )];
        if let Some(python) = memory.python_process_mib {
            let times = python / memory.per_session_mib;
            remarks.push(format!("a python3 that did the same work: {python:.0} MiB, {times:.0}x"));
        }
        remarks.extend(self.notes.iter().map(|note| format!("note: {note}")));
        remarks
    }
}

impl NativeFigures {
    fn compared_with_peers(&self, ours: &Summary) -> String {
        let times = |theirs: &Option<Summary>, name: &str| {
            let theirs = theirs.as_ref()?;
            Some(format!("{name} takes {:.0}x", theirs.p50_ms / ours.p50_ms))
        };
        let parts = [times(&self.docker_run, "docker run"), times(&self.python_process, "python3")];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn density_rows(&self, density: &Density) -> [Vec<String>; 3] {
        let n = density.sessions;
        let first = self.density.first().map(|first| first.warm_exec.p50_ms);
        let growth = first.map_or(String::new(), |first| {
            format!("{:.2}x of the first", density.warm_exec.p50_ms / first)
        });
        let answered = format!("{growth}, {}/{n} answer", density.answered);
        let cold = "after a pause, caches cold".to_owned();
        [
            density.create.row(&format!("create with {n} live"), String::new()),
            density.first_of_visit.row(&format!("next exec with {n} live"), cold),
            density.warm_exec.row(&format!("warm exec with {n} live"), answered),
        ]
    }

    fn peer_rows(&self) -> Vec<Vec<String>> {
        let CommandLine { belljar_run, python3 } = &self.command_line;
        let over = format!("{:.0} ms over python3", belljar_run.p50_ms - python3.p50_ms);
        let mut rows = vec![
            belljar_run.row("belljar run -c 'print(1)'", over),
            python3.row("python3 -c 'print(1)'", String::new()),
        ];
        if let Some(python) = &self.python_process {
            rows.push(python.row("same first result by python3", "no isolation".into()));
        }
        if let Some(docker) = &self.docker_run {
            rows.push(docker.row("same first result by docker run", String::new()));
        }
        rows
    }
}
