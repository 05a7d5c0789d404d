//! `belljar bench`: latency, memory and density on this machine, beside others in the same run.
//!
//! Numbers of a shared machine mean little by themselves; ratios of things measured in turns mean
//! more. Each line says what it was compared with.

mod browser;
mod containers;
mod echo;
mod files;
mod http;
mod life;
mod peers;
mod samples;
mod server;
mod wire;

use std::fmt;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use belljar_engine::pool::{Pool, warm_sandbox};
use belljar_engine::result;
use belljar_proto::exec::{ExecSpec, Language, Status, What};
use belljar_runtime::native;
use belljar_runtime::native::zygote::ZygoteState;
use belljar_runtime::{Runtime, Sandbox, SandboxSpec};
use belljar_sys::{privileges, procfs};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::backend::Prepared;
use crate::cli::BenchArgs;
use crate::settings::Settings;
use crate::table;
use samples::{Samples, Summary};

/// First result of a new session: the whole stack is imported, nothing is done with it yet.
const FIRST: &str =
    "import numpy, pandas, pyarrow, matplotlib.pyplot, sklearn, scipy, PIL, openpyxl; 6 * 7";

/// The same, and pandas is put to work.
const FIRST_PANDAS: &str = "import pandas as pd; int(pd.Series([1, 2, 3]).sum())";

/// A cell that costs the kernel nothing.
const NOTHING: &str = "x = 1";

const POOL_SIZE: usize = 8;

pub(super) fn bench(args: &BenchArgs, settings: &Settings) -> Result<ExitCode> {
    if args.http {
        return http::bench(args);
    }
    if args.files {
        return files::bench(args);
    }
    if args.browser {
        return browser::bench(args);
    }
    if args.life {
        return life::bench(args);
    }
    privileges::raise_open_files();
    let prepared = match Prepared::start(settings)? {
        Prepared::Native(prepared) => *prepared,
        docker @ Prepared::Docker(_) => return containers::bench(args, settings, docker),
    };
    conclude(args, measure(args, settings, prepared), Report::print)
}

/// Measures, and shows what came of it as it was asked for.
fn conclude<R: Serialize>(
    args: &BenchArgs,
    measuring: impl Future<Output = Result<R>>,
    print: impl FnOnce(&R),
) -> Result<ExitCode> {
    let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let report = event_loop.context("failed to start the event loop")?.block_on(measuring)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Serialize)]
struct Report {
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
    command_line: Compared,
    /// The same first work by a plain interpreter and by `docker run`.
    python_process: Option<Summary>,
    docker_run: Option<Summary>,
    /// Why something is missing.
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Machine {
    kernel: String,
    processors: usize,
    version: &'static str,
}

impl Machine {
    fn of_this() -> Machine {
        Machine {
            kernel: procfs::kernel_release(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { kernel, processors, version } = self;
        write!(f, "belljar {version} on Linux {kernel}, {processors} processors")
    }
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

/// What it is like when this many sessions live.
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
    /// Charged to the cgroups of the sandboxes, on average.
    cgroup_mib: f64,
    /// The server's, the spawner's and the zygote's own memory, shared out.
    ours_mib: f64,
    per_session_mib: f64,
    python_process_mib: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Compared {
    belljar_run: Summary,
    python3: Summary,
}

struct Bench<'a> {
    runtime: Arc<dyn Runtime>,
    spec: SandboxSpec,
    /// Sandboxes the pool keeps ready while it is measured.
    pool: usize,
    args: &'a BenchArgs,
}

async fn measure(
    args: &BenchArgs,
    settings: &Settings,
    prepared: native::Prepared,
) -> Result<Report> {
    let progress = progress();
    let say = |text: &str| progress.set_message(text.to_owned());
    let (rounds, sessions) =
        if args.quick { (20, args.sessions.min(100)) } else { (100, args.sessions) };
    let mut notes = Vec::new();

    say("warming the zygote");
    let runtime = prepared.launch()?;
    let start = Instant::now();
    runtime.keep_zygote();
    let warm = match runtime.zygote_settled().await {
        ZygoteState::Warm(warm) => warm,
        ZygoteState::Failed(why) => bail!("there is no zygote: {why}"),
        ZygoteState::Warming => bail!("the zygote did not settle"),
    };
    let zygote = Zygote {
        modules: warm.modules.len(),
        warm_ms: start.elapsed().as_secs_f64() * 1000.0,
        rss_mib: mib(warm.rss_kib * 1024),
    };
    for (module, why) in &warm.failed {
        notes.push(format!("not preloaded: {module} ({why})"));
    }
    let spec = SandboxSpec { limits: settings.limits, ..SandboxSpec::default() };
    let native = Arc::clone(&runtime);
    let bench = Bench { runtime, spec, pool: POOL_SIZE, args };

    say("command line");
    let (belljar_run, python3) = peers::command_line(settings, if args.quick { 5 } else { 20 })?;
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
    let (density, memory) =
        bench.density(sessions, settings, native.spawner_pid(), warm.rss_kib, &progress).await?;
    say("peers");
    let few = if args.quick { 3 } else { 10 };
    let mut note = |what: &str, error: anyhow::Error| notes.push(format!("{what}: {error:#}"));
    let python_process =
        peers::python(settings, FIRST, few).map_err(|e| note("python3 not compared", e)).ok();
    let docker_run =
        peers::docker(settings, FIRST, few).map_err(|e| note("docker not compared", e)).ok();
    progress.finish_and_clear();

    Ok(Report {
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
        command_line: Compared { belljar_run, python3 },
        python_process,
        docker_run,
        notes,
    })
}

impl Bench<'_> {
    async fn create_cold(&self, rounds: usize, code: &str) -> Result<Summary> {
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

    async fn create_pooled(&self, rounds: usize, code: &str) -> Result<Summary> {
        let spec = self.spec.clone();
        let next = Box::new(move || Ok((String::new(), spec.clone())));
        let pool = Pool::start(Arc::clone(&self.runtime), self.pool, next);
        let mut samples = Samples::default();
        for _ in 0..rounds {
            // The pool is full and at rest when a session is asked for.
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

    async fn warm_exec(&self, rounds: usize) -> Result<Summary> {
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

    /// Creates sessions up to the largest number, stopping at each mark to look.
    async fn density(
        &self,
        most: usize,
        settings: &Settings,
        spawner: u32,
        zygote_kib: u64,
        progress: &ProgressBar,
    ) -> Result<(Vec<Density>, Memory)> {
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
            density.push(self.look(&live, &create).await?);
        }
        let memory = memory(&live, settings, spawner, zygote_kib);
        progress.set_message("ending them all");
        for sandbox in live {
            sandbox.destroy().await;
        }
        Ok((density, memory))
    }

    async fn look(&self, live: &[Sandbox], create: &Samples) -> Result<Density> {
        let mut answered = 0;
        for sandbox in live {
            answered += usize::from(execute(sandbox, NOTHING).await.is_ok());
        }
        // Spread over all sessions. The first execution of a visit finds caches cold, as after a
        // long pause; those that follow are what a conversation in full swing sees.
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

/// Of sessions that have run something and now wait, with that of our own processes.
fn memory(live: &[Sandbox], settings: &Settings, spawner: u32, zygote_kib: u64) -> Memory {
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
        python_process_mib: peers::python_rss_kib(settings, FIRST).map(|kib| mib(kib * 1024)),
    }
}

async fn execute(sandbox: &Sandbox, code: &str) -> Result<()> {
    let spec = ExecSpec {
        exec_id: next_id(),
        what: What::Cell { language: Language::Python, echo: true },
        env: Vec::new(),
        timeout_ms: 60_000,
        grace_ms: 1_000,
        output_limit: 1 << 20,
        stdin: false,
        script: None,
        merge_output: false,
    };
    let exec_id = spec.exec_id.clone();
    let mut following = sandbox.exec(spec, code.as_bytes()).await?;
    let (result, _) = result::collect(exec_id, &mut following, 1 << 20, |_| {}).await;
    ensure!(result.status == Status::Ok, "the code failed: {:?} {:?}", result.reason, result.error);
    Ok(())
}

fn next_id() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("bench_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[expect(clippy::cast_precision_loss, reason = "sizes and counts of one machine")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[expect(clippy::cast_precision_loss, reason = "sizes and counts of one machine")]
fn count(n: usize) -> f64 {
    n.max(1) as f64
}

impl Report {
    fn print(&self) {
        println!(
            "{}; zygote: {} modules, {:.0} MiB, warm in {:.1} s\n",
            self.machine,
            self.zygote.modules,
            self.zygote.rss_mib,
            self.zygote.warm_ms / 1000.0
        );
        let mut rows = Vec::new();
        let mut row = |what: String, summary: &Summary, versus: String| {
            rows.push(summary.row(what, versus));
        };
        let against = |ours: &Summary| {
            let times = |theirs: &Option<Summary>, name: &str| {
                let theirs = theirs.as_ref()?;
                Some(format!("{name} takes {:.0}x", theirs.p50_ms / ours.p50_ms))
            };
            let parts =
                [times(&self.docker_run, "docker run"), times(&self.python_process, "python3")];
            parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
        };
        for (what, summary) in [
            ("create -> first result, pool", &self.create_pooled),
            ("... that uses pandas", &self.create_pooled_pandas),
            ("create -> first result, no pool", &self.create_cold),
            ("... that uses pandas", &self.create_cold_pandas),
        ] {
            row(what.into(), summary, against(summary));
        }
        row("warm exec".into(), &self.warm_exec, String::new());
        row(
            format!("burst of {}, each", self.burst.sessions),
            &self.burst.each,
            format!("all in {:.0} ms", self.burst.total_ms),
        );
        let first = self.density.first().map(|first| first.warm_exec.p50_ms);
        for density in &self.density {
            let n = density.sessions;
            row(format!("create with {n} live"), &density.create, String::new());
            let cold = "after a pause, caches cold".to_owned();
            row(format!("next exec with {n} live"), &density.first_of_visit, cold);
            let growth = first.map_or(String::new(), |first| {
                format!("{:.2}x of the first", density.warm_exec.p50_ms / first)
            });
            let answered = format!("{growth}, {}/{n} answer", density.answered);
            row(format!("warm exec with {n} live"), &density.warm_exec, answered);
        }
        let (ours, theirs) = (&self.command_line.belljar_run, &self.command_line.python3);
        let over = format!("{:.0} ms over python3", ours.p50_ms - theirs.p50_ms);
        row("belljar run -c 'print(1)'".into(), ours, over);
        row("python3 -c 'print(1)'".into(), theirs, String::new());
        if let Some(python) = &self.python_process {
            row("same first result by python3".into(), python, "no isolation".into());
        }
        if let Some(docker) = &self.docker_run {
            row("same first result by docker run".into(), docker, String::new());
        }
        print!("{}", table::render(&samples::HEADER, &rows));

        let memory = &self.memory;
        println!(
            "\nmemory per idle session, {} live: {:.2} MiB ({:.2} in its cgroup, {:.2} of ours)",
            memory.sessions, memory.per_session_mib, memory.cgroup_mib, memory.ours_mib
        );
        if let Some(python) = memory.python_process_mib {
            let times = python / memory.per_session_mib;
            println!("a python3 that did the same work: {python:.0} MiB, {times:.0}x");
        }
        for note in &self.notes {
            println!("note: {note}");
        }
    }
}
