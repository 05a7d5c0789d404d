//! `belljar bench --life`: sessions that sleep, branch and go back, on a server of our own.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar_sys::{privileges, procfs};
use serde::Serialize;
use serde_json::{Value, json};

use super::samples::{HEADER, Samples, Summary};
use super::server::{Corner, Server};
use super::wire::{self, Wire, delete, exec, id_of, request};
use super::{FIRST, Machine, POOL_SIZE, conclude, count, mib, progress};
use crate::cli::BenchArgs;
use crate::table;

/// What a session holds that is forked.
const HOLD: &str = "import numpy as np; data = np.random.default_rng(1).random(13_107_200)";

/// Connections over which many sessions are made and put to sleep.
const CONNECTIONS: usize = 8;

/// Those that are to sleep must not all be awake at the same time.
const WAVE: usize = 32;

/// Of all sessions, this many in a hundred sleep.
const ASLEEP_PERCENT: usize = 95;

/// How many are asked whether they remember.
const ASKED: usize = 50;

/// What the machine does after a session is gone, it does in this time.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn bench(args: &BenchArgs) -> Result<ExitCode> {
    privileges::raise_open_files();
    conclude(args, measure(args), Report::print)
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    /// A session with 100 MiB of random numbers, made into one more.
    fork: Reached,
    /// From the request to sleep to its answer: all is on disk, and the sandbox gone.
    hibernate: Summary,
    /// From a cell for a session that sleeps, with the stack loaded, to its result.
    wake: Reached,
    /// A cell with a checkpoint after it, and the same without.
    checkpoint: Checkpoint,
    many: Many,
}

#[derive(Debug, Serialize)]
struct Reached {
    #[serde(flatten)]
    took: Summary,
    reach_p50_ms: f64,
}

#[derive(Debug, Serialize)]
struct Checkpoint {
    with: Summary,
    without: Summary,
    /// The median of the differences is no more than this.
    reach_ms: f64,
    bytes_p50: u64,
    reach_bytes: u64,
}

/// Many sessions, most of them asleep.
#[derive(Debug, Serialize)]
struct Many {
    sessions: usize,
    asleep: usize,
    /// Processes of sandboxes that sleep.
    processes_asleep: usize,
    /// Memory that the server has more of for each that sleeps.
    asleep_kib_each: f64,
    reach_kib: f64,
    server_rss_mib: f64,
    /// Of those that were asked, most of them asleep, how many remembered.
    asked: usize,
    remembered: usize,
    seconds: f64,
}

async fn measure(args: &BenchArgs) -> Result<Report> {
    let progress = progress();
    let say = |text: &str| progress.set_message(text.to_owned());
    let rounds = if args.quick { 10 } else { 50 };
    let corner = Corner::new(vec![("BELLJAR_HIBERNATE_SEC", "0".into())])?;
    say("waiting for a server to come to rest");
    let server = Server::start(&corner, POOL_SIZE)?;
    let mut wire = Wire::connect(server.address).await?;
    server.at_rest(&mut wire).await?;
    say("forks");
    let fork = measure_fork(&server, &mut wire, rounds).await?;
    say("sleep");
    let (hibernate, wake) = measure_sleep(&server, &mut wire, rounds).await?;
    say("checkpoints");
    let checkpoint = measure_checkpoints(&mut wire, rounds).await?;
    let most = if args.quick { args.sessions.min(40) } else { args.sessions };
    say(&format!("{most} sessions, most of them asleep"));
    let many = measure_many(&server, &mut wire, most).await?;
    say("ending them all");
    server.stop()?;
    progress.finish_and_clear();
    Ok(Report { machine: Machine::of_this(), fork, hibernate, wake, checkpoint, many })
}

async fn create(wire: &mut Wire, ask: &Value) -> Result<String> {
    id_of(&wire.call(&request("POST", "/v1/sessions", ask)).await?.json()?)
}

async fn run(wire: &mut Wire, id: &str, code: &str) -> Result<()> {
    let answer = wire.call(&exec(id, code)).await?;
    ensure!(answer.is_ok(), "`{code}` failed: {}", answer.json()?);
    Ok(())
}

async fn measure_fork(server: &Server, wire: &mut Wire, rounds: usize) -> Result<Reached> {
    let id = create(wire, &json!({})).await?;
    run(wire, &id, HOLD).await?;
    let fork = request("POST", &format!("/v1/sessions/{id}/fork"), &json!({}));
    let mut samples = Samples::default();
    // The first writes everything down; the others what changed.
    for round in 0..=rounds {
        server.pool_full(wire, POOL_SIZE).await?;
        tokio::time::sleep(PAUSE).await;
        let begun = Instant::now();
        let forked = wire.call(&fork).await?.json()?;
        if round > 0 {
            samples.push(begun.elapsed());
        }
        let child = id_of(&forked["sessions"][0])?;
        run(wire, &child, "assert data.nbytes == 100 << 20").await?;
        wire.call(&delete(&child)).await?.json()?;
    }
    wire.call(&delete(&id)).await?.json()?;
    Ok(Reached { took: samples.summary(), reach_p50_ms: 25.0 })
}

async fn measure_sleep(
    server: &Server,
    wire: &mut Wire,
    rounds: usize,
) -> Result<(Summary, Reached)> {
    let id = create(wire, &json!({})).await?;
    run(wire, &id, FIRST).await?;
    run(wire, &id, "frame = pandas.DataFrame({'a': range(1000)})").await?;
    let hibernate = request("POST", &format!("/v1/sessions/{id}/hibernate"), &json!({}));
    let (mut slept, mut woke) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        let begun = Instant::now();
        wire.call(&hibernate).await?.json()?;
        slept.push(begun.elapsed());
        server.pool_full(wire, POOL_SIZE).await?;
        tokio::time::sleep(PAUSE).await;
        let begun = Instant::now();
        run(wire, &id, "assert len(frame) == 1000").await?;
        woke.push(begun.elapsed());
    }
    wire.call(&delete(&id)).await?.json()?;
    Ok((slept.summary(), Reached { took: woke.summary(), reach_p50_ms: 50.0 }))
}

async fn measure_checkpoints(wire: &mut Wire, rounds: usize) -> Result<Checkpoint> {
    let ids = [
        create(wire, &json!({ "checkpoints": { "max": 1000, "max_bytes": "1G" } })).await?,
        create(wire, &json!({})).await?,
    ];
    let mut samples = [Samples::default(), Samples::default()];
    for id in &ids {
        run(wire, id, FIRST).await?;
    }
    for round in 0..rounds {
        for (id, samples) in ids.iter().zip(&mut samples) {
            let begun = Instant::now();
            run(wire, id, &format!("n = {round}")).await?;
            samples.push(begun.elapsed());
        }
    }
    let list = request("GET", &format!("/v1/sessions/{}/checkpoints", ids[0]), &Value::Null);
    let listed = wire.call(&list).await?.json()?;
    let listed = listed["checkpoints"].as_array().context("no list of checkpoints")?;
    ensure!(listed.len() > rounds, "not every execution left a checkpoint: {}", listed.len());
    // The first has everything.
    let mut bytes: Vec<u64> = listed[1..].iter().filter_map(|one| one["bytes"].as_u64()).collect();
    bytes.sort_unstable();
    for id in &ids {
        wire.call(&delete(id)).await?.json()?;
    }
    let [with, without] = samples.map(|samples| samples.summary());
    let bytes_p50 = bytes[bytes.len() / 2];
    Ok(Checkpoint { with, without, reach_ms: 10.0, bytes_p50, reach_bytes: 2 << 20 })
}

/// First those that are to sleep, a wave at a time, then those that stay awake.
async fn measure_many(server: &Server, wire: &mut Wire, most: usize) -> Result<Many> {
    let begun = Instant::now();
    let asleep = most * ASLEEP_PERCENT / 100;
    server.pool_full(wire, POOL_SIZE).await?;
    let before = (server.rss().unwrap_or(0), processes(server));
    let mut ids = Vec::new();
    while ids.len() < asleep {
        let wave = make(server, ids.len(), (asleep - ids.len()).min(WAVE)).await?;
        let rests = wave
            .iter()
            .map(|id| request("POST", &format!("/v1/sessions/{id}/hibernate"), &json!({})));
        for slept in wire::all(server.address, rests.collect(), CONNECTIONS).await? {
            slept.context("a session did not sleep")?;
        }
        ids.extend(wave);
    }
    // The server hangs up on who says nothing for as long as that took.
    *wire = Wire::connect(server.address).await?;
    server.pool_full(wire, POOL_SIZE).await?;
    tokio::time::sleep(PAUSE * 10).await;
    let after = (server.rss().context("the server has no memory")?, processes(server));
    while ids.len() < most {
        let wave = make(server, ids.len(), (most - ids.len()).min(WAVE)).await?;
        ids.extend(wave);
    }
    let mut remembered = 0;
    let asked: Vec<usize> = (0..most).step_by((most / ASKED).max(1)).collect();
    for n in &asked {
        match run(wire, &ids[*n], &format!("assert n == {n}")).await {
            Ok(_) => remembered += 1,
            Err(error) => tracing::warn!("session {n} of {most} did not remember: {error:#}"),
        }
    }
    Ok(Many {
        sessions: most,
        asleep,
        processes_asleep: after.1.saturating_sub(before.1),
        asleep_kib_each: mib(after.0.saturating_sub(before.0)) * 1024.0 / count(asleep),
        reach_kib: 1024.0,
        server_rss_mib: mib(after.0),
        asked: asked.len(),
        remembered,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Makes sessions, each with its number in a variable.
async fn make(server: &Server, first: usize, wave: usize) -> Result<Vec<String>> {
    let asks = vec![request("POST", "/v1/sessions", &json!({})); wave];
    let mut ids = Vec::new();
    for made in wire::all(server.address, asks, CONNECTIONS).await? {
        ids.push(id_of(&made.context("a session was refused")?)?);
    }
    let tell = ids.iter().enumerate().map(|(n, id)| exec(id, &format!("n = {}", first + n)));
    for told in wire::all(server.address, tell.collect(), CONNECTIONS).await? {
        ensure!(told?["status"] == "ok", "a session did not take its variable");
    }
    Ok(ids)
}

/// The server's processes: the zygote, the pool, and every sandbox.
fn processes(server: &Server) -> usize {
    procfs::descendants(&procfs::parents(), server.pid()).len()
}

impl Report {
    fn print(&self) {
        println!("{}, sessions as files\n", self.machine);
        let Report { fork, hibernate, wake, checkpoint, many, .. } = self;
        let met = |met: bool| if met { "met" } else { "MISSED" };
        let p50 = |reached: &Reached| {
            let reach = reached.reach_p50_ms;
            format!("p50 <= {reach} ms: {}", met(reached.took.p50_ms <= reach))
        };
        let extra = checkpoint.with.p50_ms - checkpoint.without.p50_ms;
        let rows = [
            fork.took.row("fork, 100 MiB of data".into(), p50(fork)),
            hibernate.row("fall asleep, stack loaded".into(), String::new()),
            wake.took.row("wake -> result, stack loaded".into(), p50(wake)),
            checkpoint.with.row(
                "exec with a checkpoint".into(),
                format!("{extra:.1} ms more, <= 10: {}", met(extra <= checkpoint.reach_ms)),
            ),
            checkpoint.without.row("the same without".into(), String::new()),
        ];
        print!("{}", table::render(&HEADER, &rows));
        let kib = checkpoint.bytes_p50 / 1024;
        println!(
            "\nA checkpoint where little changed takes {kib} KiB (<= 2048: {}).",
            met(checkpoint.bytes_p50 <= checkpoint.reach_bytes)
        );
        println!(
            "{} sessions, {} of them asleep with {} processes and {:.0} KiB of memory each \
             (<= 1024: {}); {} of {} remembered; server {:.0} MiB; {:.0} s in all.",
            many.sessions,
            many.asleep,
            many.processes_asleep,
            many.asleep_kib_each,
            met(many.asleep_kib_each <= many.reach_kib && many.processes_asleep == 0),
            many.remembered,
            many.asked,
            many.server_rss_mib,
            many.seconds,
        );
    }
}
