//! `belljar bench --life`: hibernation, forks and checkpoints of sessions on a temporary server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar_sys::procfs;
use serde::Serialize;
use serde_json::{Value, json};

use crate::connection::{Connection, call_all, delete, exec, id_of, request};
use crate::figures::{Figures, Machine, verdict};
use crate::samples::{HEADER, Samples, Summary, Timed, count, mib};
use crate::scratch_host::{ScratchHost, Server};
use crate::workload::{FIRST, POOL_SIZE};
use crate::{BenchArgs, BenchConfig, progress};

/// Code that creates 100 MiB of random numbers in a session that is forked.
const MAKE_DATA: &str = "import numpy as np; data = np.random.default_rng(1).random(13_107_200)";

/// Connections over which many sessions are created and hibernated.
const CONNECTIONS: usize = 8;

/// How many sessions are created before they hibernate; all sessions together may not fit into
/// memory.
const WAVE: usize = 32;

/// Percentage of the sessions that hibernate.
const ASLEEP_PERCENT: usize = 95;

/// How many sessions are checked for their variable.
const ASKED: usize = 50;

/// Time for the machine to clean up after a session.
const PAUSE: Duration = Duration::from_millis(100);

/// Results of hibernation, forks and checkpoints.
#[derive(Debug, Serialize)]
pub(crate) struct LifeFigures {
    machine: Machine,
    /// A fork of a session with 100 MiB of random numbers.
    fork: Timed,
    /// From the request to hibernate to its response. Then everything is on disk, and the sandbox
    /// is removed.
    hibernate: Summary,
    /// From a request to execute a cell in a hibernated session to its result. The session has
    /// imported all packages.
    wake: Timed,
    checkpoint: Checkpoint,
    many: Many,
}

/// A cell followed by a checkpoint, and the same cell without one.
#[derive(Debug, Serialize)]
struct Checkpoint {
    with: Summary,
    without: Summary,
    target_ms: f64,
    bytes_p50: u64,
    target_bytes: u64,
}

/// Many sessions, most of them hibernated.
#[derive(Debug, Serialize)]
struct Many {
    sessions: usize,
    asleep: usize,
    /// Processes of hibernated sessions.
    processes_asleep: usize,
    /// Memory of the server for each hibernated session.
    asleep_kib_each: f64,
    target_kib: f64,
    server_rss_mib: f64,
    /// How many sessions were checked for their variable, and how many had it.
    asked: usize,
    remembered: usize,
    seconds: f64,
}

pub(crate) async fn measure(args: &BenchArgs, config: &BenchConfig) -> Result<LifeFigures> {
    let progress = progress();
    let say = |text: &str| progress.set_message(text.to_owned());
    let rounds = if args.quick { 10 } else { 50 };
    let host = ScratchHost::new(config, vec![("BELLJAR_HIBERNATE_SEC", "0".into())])?;
    say("starting a server");
    let server = Server::start(&host, POOL_SIZE)?;
    let mut connection = Connection::connect(server.address).await?;
    server.settled(&mut connection).await?;
    say("forks");
    let fork = measure_fork(&server, &mut connection, rounds).await?;
    say("hibernation");
    let (hibernate, wake) = measure_sleep(&server, &mut connection, rounds).await?;
    say("checkpoints");
    let checkpoint = measure_checkpoints(&mut connection, rounds).await?;
    let most = if args.quick { args.sessions.min(40) } else { args.sessions };
    say(&format!("{most} sessions, most of them hibernated"));
    let many = measure_many(&server, &mut connection, most).await?;
    say("stopping the server");
    server.stop()?;
    progress.finish_and_clear();
    Ok(LifeFigures { machine: Machine::of_this(), fork, hibernate, wake, checkpoint, many })
}

async fn create(connection: &mut Connection, ask: &Value) -> Result<String> {
    id_of(&connection.call(&request("POST", "/v1/sessions", ask)).await?.json()?)
}

async fn run(connection: &mut Connection, id: &str, code: &str) -> Result<()> {
    let response = connection.call(&exec(id, code)).await?;
    ensure!(response.is_ok(), "`{code}` failed: {}", response.json()?);
    Ok(())
}

async fn measure_fork(
    server: &Server,
    connection: &mut Connection,
    rounds: usize,
) -> Result<Timed> {
    let id = create(connection, &json!({})).await?;
    run(connection, &id, MAKE_DATA).await?;
    let fork = request("POST", &format!("/v1/sessions/{id}/fork"), &json!({}));
    let mut samples = Samples::default();
    // The first fork writes the whole snapshot; later forks write only what changed.
    for round in 0..=rounds {
        server.pool_full(connection, POOL_SIZE).await?;
        tokio::time::sleep(PAUSE).await;
        let begun = Instant::now();
        let forked = connection.call(&fork).await?.json()?;
        if round > 0 {
            samples.push(begun.elapsed());
        }
        let child = id_of(&forked["sessions"][0])?;
        run(connection, &child, "assert data.nbytes == 100 << 20").await?;
        connection.call(&delete(&child)).await?.json()?;
    }
    connection.call(&delete(&id)).await?.json()?;
    Ok(Timed { took: samples.summary(), target_p50_ms: 25.0 })
}

async fn measure_sleep(
    server: &Server,
    connection: &mut Connection,
    rounds: usize,
) -> Result<(Summary, Timed)> {
    let id = create(connection, &json!({})).await?;
    run(connection, &id, FIRST).await?;
    run(connection, &id, "frame = pandas.DataFrame({'a': range(1000)})").await?;
    let hibernate = request("POST", &format!("/v1/sessions/{id}/hibernate"), &json!({}));
    let (mut slept, mut woke) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        let begun = Instant::now();
        connection.call(&hibernate).await?.json()?;
        slept.push(begun.elapsed());
        server.pool_full(connection, POOL_SIZE).await?;
        tokio::time::sleep(PAUSE).await;
        let begun = Instant::now();
        run(connection, &id, "assert len(frame) == 1000").await?;
        woke.push(begun.elapsed());
    }
    connection.call(&delete(&id)).await?.json()?;
    Ok((slept.summary(), Timed { took: woke.summary(), target_p50_ms: 50.0 }))
}

async fn measure_checkpoints(connection: &mut Connection, rounds: usize) -> Result<Checkpoint> {
    let ids = [
        create(connection, &json!({ "checkpoints": { "max": 1000, "max_bytes": "1G" } })).await?,
        create(connection, &json!({})).await?,
    ];
    let mut samples = [Samples::default(), Samples::default()];
    for id in &ids {
        run(connection, id, FIRST).await?;
    }
    for round in 0..rounds {
        for (id, samples) in ids.iter().zip(&mut samples) {
            let begun = Instant::now();
            run(connection, id, &format!("n = {round}")).await?;
            samples.push(begun.elapsed());
        }
    }
    let list = request("GET", &format!("/v1/sessions/{}/checkpoints", ids[0]), &Value::Null);
    let listed = connection.call(&list).await?.json()?;
    let listed = listed["checkpoints"].as_array().context("no list of checkpoints")?;
    ensure!(listed.len() > rounds, "not every execution left a checkpoint: {}", listed.len());
    // The first checkpoint is complete; later ones contain only what changed.
    let mut bytes: Vec<u64> = listed[1..].iter().filter_map(|one| one["bytes"].as_u64()).collect();
    bytes.sort_unstable();
    for id in &ids {
        connection.call(&delete(id)).await?.json()?;
    }
    let [with, without] = samples.map(|samples| samples.summary());
    let bytes_p50 = bytes[bytes.len() / 2];
    Ok(Checkpoint { with, without, target_ms: 10.0, bytes_p50, target_bytes: 2 << 20 })
}

/// Creates first the sessions that hibernate, in waves, then those that stay live.
async fn measure_many(server: &Server, connection: &mut Connection, most: usize) -> Result<Many> {
    let begun = Instant::now();
    let asleep = most * ASLEEP_PERCENT / 100;
    server.pool_full(connection, POOL_SIZE).await?;
    let before = (server.rss().unwrap_or(0), processes(server));
    let mut ids = Vec::new();
    while ids.len() < asleep {
        let wave = make(server, ids.len(), (asleep - ids.len()).min(WAVE)).await?;
        let requests = wave
            .iter()
            .map(|id| request("POST", &format!("/v1/sessions/{id}/hibernate"), &json!({})));
        for hibernated in call_all(server.address, requests.collect(), CONNECTIONS).await? {
            hibernated.context("a session did not hibernate")?;
        }
        ids.extend(wave);
    }
    // The server has closed the connection, because it was idle for too long.
    *connection = Connection::connect(server.address).await?;
    server.pool_full(connection, POOL_SIZE).await?;
    tokio::time::sleep(PAUSE * 10).await;
    let after = (server.rss().context("the memory of the server is not known")?, processes(server));
    while ids.len() < most {
        let wave = make(server, ids.len(), (most - ids.len()).min(WAVE)).await?;
        ids.extend(wave);
    }
    let mut remembered = 0;
    let asked: Vec<usize> = (0..most).step_by((most / ASKED).max(1)).collect();
    for n in &asked {
        match run(connection, &ids[*n], &format!("assert n == {n}")).await {
            Ok(_) => remembered += 1,
            Err(error) => tracing::warn!("session {n} of {most} did not remember: {error:#}"),
        }
    }
    Ok(Many {
        sessions: most,
        asleep,
        processes_asleep: after.1.saturating_sub(before.1),
        asleep_kib_each: mib(after.0.saturating_sub(before.0)) * 1024.0 / count(asleep),
        target_kib: 1024.0,
        server_rss_mib: mib(after.0),
        asked: asked.len(),
        remembered,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Creates sessions and stores in each its number, in a variable.
async fn make(server: &Server, first: usize, wave: usize) -> Result<Vec<String>> {
    let requests = vec![request("POST", "/v1/sessions", &json!({})); wave];
    let mut ids = Vec::new();
    for made in call_all(server.address, requests, CONNECTIONS).await? {
        ids.push(id_of(&made.context("a session was not created")?)?);
    }
    let assign = ids.iter().enumerate().map(|(n, id)| exec(id, &format!("n = {}", first + n)));
    for assigned in call_all(server.address, assign.collect(), CONNECTIONS).await? {
        ensure!(assigned?["status"] == "ok", "a session did not take its variable");
    }
    Ok(ids)
}

/// The number of the server's processes: the zygote, the pool, and every sandbox.
fn processes(server: &Server) -> usize {
    procfs::descendants(&procfs::parents(), server.pid()).len()
}

impl Figures for LifeFigures {
    fn heading(&self) -> String {
        format!("{}, hibernation, forks and checkpoints", self.machine)
    }

    fn header(&self) -> Vec<&'static str> {
        HEADER.to_vec()
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let LifeFigures { fork, hibernate, wake, checkpoint, .. } = self;
        let p50 = |timed: &Timed| {
            let target = timed.target_p50_ms;
            format!("p50 <= {target} ms: {}", verdict(timed.took.p50_ms <= target))
        };
        let extra = checkpoint.with.p50_ms - checkpoint.without.p50_ms;
        let extra_met = verdict(extra <= checkpoint.target_ms);
        vec![
            fork.took.row("fork, 100 MiB of data", p50(fork)),
            hibernate.row("hibernate, packages imported", String::new()),
            wake.took.row("wake -> result, packages imported", p50(wake)),
            checkpoint.with.row(
                "exec with a checkpoint",
                format!("{extra:.1} ms more, <= {}: {extra_met}", checkpoint.target_ms),
            ),
            checkpoint.without.row("exec without a checkpoint", String::new()),
        ]
    }

    fn remarks(&self) -> Vec<String> {
        let (checkpoint, many) = (&self.checkpoint, &self.many);
        vec![
            format!(
                "A checkpoint after a small change takes {} KiB (<= {}: {}).",
                checkpoint.bytes_p50 / 1024,
                checkpoint.target_bytes / 1024,
                verdict(checkpoint.bytes_p50 <= checkpoint.target_bytes)
            ),
            format!(
                "{} sessions, {} of them hibernated with {} processes and {:.0} KiB of memory each \
                 (<= {}: {}); {} of {} remembered; server {:.0} MiB; {:.0} s in all.",
                many.sessions,
                many.asleep,
                many.processes_asleep,
                many.asleep_kib_each,
                many.target_kib,
                verdict(many.asleep_kib_each <= many.target_kib && many.processes_asleep == 0),
                many.remembered,
                many.asked,
                many.server_rss_mib,
                many.seconds,
            ),
        ]
    }
}
