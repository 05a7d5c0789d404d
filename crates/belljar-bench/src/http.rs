//! `belljar bench --http`: a server of our own, measured as its clients see it.
//!
//! The load comes from this process, on the same processors as the server and the sandboxes; how
//! much of them it took for itself is said beside the figures.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar_sys::{privileges, procfs};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::samples::{Samples, Summary};
use super::server::{Corner, Server};
use super::wire::{self, Wire, delete, exec, id_of, request};
use super::{FIRST, Machine, POOL_SIZE, count, mib, progress};
use crate::cli::BenchArgs;
use crate::table;

/// Clients, each with a session of its own.
const CLIENTS: usize = 64;

/// Sessions that a killed server leaves to the next.
const LEFT: usize = 500;

/// Connections over which many sessions are made, asked and stopped.
const CONNECTIONS: usize = 16;

/// How long idle sessions are left alone before the server's memory is read.
const REST: Duration = Duration::from_secs(1);

pub(super) fn bench(args: &BenchArgs) -> Result<ExitCode> {
    privileges::raise_open_files();
    let report = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the event loop")?
        .block_on(measure(args))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    start: Start,
    create: Create,
    warm_exec: WarmExec,
    command: Prompt,
    terminal_echo: Prompt,
    load: Load,
    live: Live,
    adoption: Adoption,
}

/// From the execution of the binary to the first 200 of `/readyz`.
#[derive(Debug, Serialize)]
struct Start {
    #[serde(flatten)]
    took: Summary,
    reach_p50_ms: f64,
}

/// From the request for a session to its first result, with a pool that is full.
#[derive(Debug, Serialize)]
struct Create {
    #[serde(flatten)]
    took: Summary,
    reach_p50_ms: f64,
}

#[derive(Debug, Serialize)]
struct WarmExec {
    #[serde(flatten)]
    took: Summary,
    reach_p50_ms: f64,
    reach_p99_ms: f64,
}

/// Something small that a session does at once: `command: true`, or a key at a terminal.
#[derive(Debug, Serialize)]
struct Prompt {
    #[serde(flatten)]
    took: Summary,
    reach_p50_ms: f64,
}

/// Many clients at once, as fast as they can.
#[derive(Debug, Serialize)]
struct Load {
    clients: usize,
    seconds: f64,
    execs: usize,
    errors: usize,
    execs_per_second: f64,
    each: Summary,
    /// Processors used by those who ask, and by the server itself.
    generator_cpus: Option<f64>,
    server_cpus: Option<f64>,
    reach_execs_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Live {
    sessions: usize,
    answered: usize,
    /// Of all creates together.
    create_seconds: f64,
    server_rss_mib: f64,
    reach_server_rss_mib: f64,
}

/// A server killed and started again.
#[derive(Debug, Serialize)]
struct Adoption {
    sessions: usize,
    /// Those that still knew their variable.
    remembered: usize,
    ready_ms: f64,
    all_answered_ms: f64,
    reach_ms: f64,
}

async fn measure(args: &BenchArgs) -> Result<Report> {
    let progress = progress();
    let say = |text: &str| progress.set_message(text.to_owned());
    let quick = args.quick;
    let corner = Corner::new(Vec::new())?;

    say("starting servers");
    let start = measure_start(&corner, if quick { 3 } else { 10 }).await?;

    say("waiting for a server to come to rest");
    let server = Server::start(&corner, POOL_SIZE)?;
    let mut wire = Wire::connect(server.address).await?;
    server.at_rest(&mut wire).await?;
    say("creating from the pool");
    let create = measure_create(&server, &mut wire, if quick { 20 } else { 100 }).await?;
    say("warm executions");
    let warm_exec = measure_warm(&mut wire, if quick { 500 } else { 5000 }).await?;

    say("commands and keys");
    let command = measure_command(&mut wire, if quick { 200 } else { 2000 }).await?;
    let terminal_echo = measure_echo(&server, &mut wire, if quick { 500 } else { 5000 }).await?;

    say("64 clients");
    let mut sessions = make(&server, CLIENTS).await?;
    let load = measure_load(&server, &sessions, Duration::from_secs(if quick { 2 } else { 10 }));
    let load = load.await?;

    let most = if quick { args.sessions.min(100) } else { args.sessions };
    say(&format!("{most} live sessions"));
    let live = measure_live(&server, &mut sessions, most).await?;

    let left = sessions.split_off(LEFT.min(sessions.len()));
    say("a server killed and started again");
    stop(&server, &left).await?;
    let (server, adoption) = measure_adoption(&corner, server, &sessions).await?;

    say("ending them all");
    server.stop()?;
    progress.finish_and_clear();
    let machine = Machine::of_this();
    Ok(Report { machine, start, create, warm_exec, command, terminal_echo, load, live, adoption })
}

async fn measure_start(corner: &Corner, rounds: usize) -> Result<Start> {
    // The first one tries the limits of this machine, which the others remember.
    let first = Server::start(corner, 0)?;
    first.at_rest(&mut Wire::connect(first.address).await?).await?;
    first.stop()?;
    let mut samples = Samples::default();
    for _ in 0..rounds {
        let server = Server::start(corner, POOL_SIZE)?;
        server.ready().await?;
        samples.push(server.started.elapsed());
        server.stop()?;
    }
    Ok(Start { took: samples.summary(), reach_p50_ms: 150.0 })
}

async fn measure_create(server: &Server, wire: &mut Wire, rounds: usize) -> Result<Create> {
    let create = request("POST", "/v1/sessions", &json!({}));
    let mut samples = Samples::default();
    for _ in 0..rounds {
        // The pool is full and at rest when a session is asked for.
        server.pool_full(wire, POOL_SIZE).await?;
        let begun = Instant::now();
        let id = id_of(&wire.call(&create).await?.json()?)?;
        ensure!(wire.call(&exec(&id, FIRST)).await?.is_ok(), "the first code failed");
        samples.push(begun.elapsed());
        wire.call(&delete(&id)).await?.json()?;
    }
    Ok(Create { took: samples.summary(), reach_p50_ms: 5.0 })
}

async fn measure_warm(wire: &mut Wire, rounds: usize) -> Result<WarmExec> {
    let create = request("POST", "/v1/sessions", &json!({}));
    let id = id_of(&wire.call(&create).await?.json()?)?;
    let request = exec(&id, "1 + 1");
    let mut samples = Samples::default();
    // The first ones find caches cold.
    for round in 0..rounds + 50 {
        let begun = Instant::now();
        ensure!(wire.call(&request).await?.is_ok(), "the code failed");
        if round >= 50 {
            samples.push(begun.elapsed());
        }
    }
    wire.call(&delete(&id)).await?.json()?;
    Ok(WarmExec { took: samples.summary(), reach_p50_ms: 0.6, reach_p99_ms: 5.0 })
}

async fn measure_command(wire: &mut Wire, rounds: usize) -> Result<Prompt> {
    let create = request("POST", "/v1/sessions", &json!({}));
    let id = id_of(&wire.call(&create).await?.json()?)?;
    let path = format!("/v1/sessions/{id}/exec");
    let request = request("POST", &path, &json!({ "command": "true" }));
    let mut samples = Samples::default();
    for round in 0..rounds + 50 {
        let begun = Instant::now();
        ensure!(wire.call(&request).await?.is_ok(), "the command failed");
        if round >= 50 {
            samples.push(begun.elapsed());
        }
    }
    wire.call(&delete(&id)).await?.json()?;
    Ok(Prompt { took: samples.summary(), reach_p50_ms: 3.0 })
}

async fn measure_echo(server: &Server, wire: &mut Wire, rounds: usize) -> Result<Prompt> {
    let create = request("POST", "/v1/sessions", &json!({}));
    let id = id_of(&wire.call(&create).await?.json()?)?;
    let took = super::echo::measure(server.address, &id, rounds).await?;
    wire.call(&delete(&id)).await?.json()?;
    Ok(Prompt { took, reach_p50_ms: 2.0 })
}

async fn measure_load(server: &Server, sessions: &[String], time: Duration) -> Result<Load> {
    let mut wires = Vec::new();
    for id in sessions {
        let (mut wire, request) = (Wire::connect(server.address).await?, exec(id, "1 + 1"));
        ensure!(wire.call(&request).await?.is_ok(), "the code failed");
        wires.push((wire, request));
    }
    let own_pid = std::process::id();
    let before = (procfs::cpu_time(own_pid), server.cpu_time());
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for (mut wire, request) in wires {
        clients.spawn(async move {
            let (mut samples, mut errors) = (Vec::new(), 0);
            while begun.elapsed() < time {
                let asked = Instant::now();
                match wire.call(&request).await {
                    Ok(answer) if answer.is_ok() => samples.push(asked.elapsed()),
                    Ok(_) => errors += 1,
                    // A connection that is broken stays so.
                    Err(_) => return (samples, errors + 1),
                }
            }
            (samples, errors)
        });
    }
    let (mut all, mut errors) = (Samples::default(), 0);
    while let Some(client) = clients.join_next().await {
        let (samples, failed) = client?;
        samples.into_iter().for_each(|sample| all.push(sample));
        errors += failed;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let share = |before: Option<Duration>, after: Option<Duration>| {
        Some(after?.saturating_sub(before?).as_secs_f64() / seconds)
    };
    let each = all.summary();
    Ok(Load {
        clients: sessions.len(),
        seconds,
        execs: each.rounds,
        errors,
        execs_per_second: count(each.rounds) / seconds,
        each,
        generator_cpus: share(before.0, procfs::cpu_time(own_pid)),
        server_cpus: share(before.1, server.cpu_time()),
        reach_execs_per_second: 3000.0,
    })
}

/// Makes sessions until this many live, gives each a variable, and asks for it.
async fn measure_live(server: &Server, sessions: &mut Vec<String>, most: usize) -> Result<Live> {
    let begun = Instant::now();
    sessions.extend(make(server, most.saturating_sub(sessions.len())).await?);
    let create_seconds = begun.elapsed().as_secs_f64();
    let told = ask_all(server, sessions, |n| format!("n = {n}")).await?;
    ensure!(told.iter().all(Result::is_ok), "not every session took its variable");
    let answered = remembered(server, sessions).await?;
    tokio::time::sleep(REST).await;
    let rss = server.rss().context("the server has no memory")?;
    Ok(Live {
        sessions: sessions.len(),
        answered,
        create_seconds,
        server_rss_mib: mib(rss),
        reach_server_rss_mib: 150.0,
    })
}

async fn measure_adoption(
    corner: &Corner,
    server: Server,
    sessions: &[String],
) -> Result<(Server, Adoption)> {
    server.kill()?;
    let server = Server::start(corner, POOL_SIZE)?;
    server.ready().await?;
    let ready = server.started.elapsed();
    let remembered = remembered(&server, sessions).await?;
    let all_answered = server.started.elapsed();
    let adoption = Adoption {
        sessions: sessions.len(),
        remembered,
        ready_ms: ready.as_secs_f64() * 1000.0,
        all_answered_ms: all_answered.as_secs_f64() * 1000.0,
        reach_ms: 3000.0,
    };
    Ok((server, adoption))
}

async fn make(server: &Server, sessions: usize) -> Result<Vec<String>> {
    let create = request("POST", "/v1/sessions", &json!({}));
    let made = wire::all(server.address, vec![create; sessions], CONNECTIONS).await?;
    made.into_iter().map(|session| id_of(&session?)).collect()
}

async fn stop(server: &Server, sessions: &[String]) -> Result<()> {
    let requests = sessions.iter().map(|id| delete(id)).collect();
    let stopped = wire::all(server.address, requests, CONNECTIONS).await?;
    stopped.into_iter().try_for_each(|session| session.map(drop))
}

/// How many sessions know the variable they were given.
async fn remembered(server: &Server, sessions: &[String]) -> Result<usize> {
    let answers = ask_all(server, sessions, |_| "n".to_owned()).await?;
    let is_right = |(n, answer): &(usize, Result<Value>)| {
        let expected = Value::from(n.to_string());
        answer.as_ref().is_ok_and(|it| it["results"][0]["data"]["text/plain"] == expected)
    };
    Ok(answers.into_iter().enumerate().filter(is_right).count())
}

async fn ask_all(
    server: &Server,
    sessions: &[String],
    code: impl Fn(usize) -> String,
) -> Result<Vec<Result<Value>>> {
    let requests = sessions.iter().enumerate().map(|(n, id)| exec(id, &code(n))).collect();
    wire::all(server.address, requests, CONNECTIONS).await
}

impl Report {
    fn print(&self) {
        println!("{}, over HTTP\n", self.machine);
        let header = ["what", "measured", "reach", ""];
        print!("{}", table::render(&header, &self.rows()));
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let mut row = |what: String, measured: String, reach: String, met: bool| {
            rows.push(vec![what, measured, reach, if met { "met" } else { "MISSED" }.into()]);
        };
        let Report { start, create, warm_exec, load, live, adoption, .. } = self;
        let prompt = [("`command: true`", &self.command), ("terminal echo", &self.terminal_echo)];
        row(
            "server start -> ready".into(),
            spoken(&start.took),
            format!("p50 <= {} ms", start.reach_p50_ms),
            start.took.p50_ms <= start.reach_p50_ms,
        );
        row(
            "create -> first result, pool".into(),
            spoken(&create.took),
            format!("p50 <= {} ms", create.reach_p50_ms),
            create.took.p50_ms <= create.reach_p50_ms,
        );
        row(
            "warm exec, keep-alive".into(),
            spoken(&warm_exec.took),
            format!("p50 <= {} ms, p99 <= {} ms", warm_exec.reach_p50_ms, warm_exec.reach_p99_ms),
            warm_exec.took.p50_ms <= warm_exec.reach_p50_ms
                && warm_exec.took.p99_ms <= warm_exec.reach_p99_ms,
        );
        for (what, Prompt { took, reach_p50_ms }) in prompt {
            let reach = format!("p50 <= {reach_p50_ms} ms");
            row(what.into(), spoken(took), reach, took.p50_ms <= *reach_p50_ms);
        }
        row(
            format!("{0} clients on {0} sessions", load.clients),
            format!("{:.0} execs/s, {} errors", load.execs_per_second, load.errors),
            format!(">= {:.0} execs/s, 0 errors", load.reach_execs_per_second),
            load.execs_per_second >= load.reach_execs_per_second && load.errors == 0,
        );
        row(
            format!("{} live sessions", live.sessions),
            format!(
                "server RSS {:.0} MiB, {}/{} answer",
                live.server_rss_mib, live.answered, live.sessions
            ),
            format!("<= {} MiB, all answer", live.reach_server_rss_mib),
            live.server_rss_mib <= live.reach_server_rss_mib && live.answered == live.sessions,
        );
        row(
            format!("adoption of {} after kill -9", adoption.sessions),
            format!(
                "ready in {:.0} ms, {}/{} with their variables in {:.0} ms",
                adoption.ready_ms, adoption.remembered, adoption.sessions, adoption.all_answered_ms
            ),
            format!("<= {:.0} ms, all of them", adoption.reach_ms),
            adoption.all_answered_ms <= adoption.reach_ms
                && adoption.remembered == adoption.sessions,
        );
        let cpus = |cpus: Option<f64>| cpus.map_or("?".into(), |cpus| format!("{cpus:.2}"));
        let aside = |what: &str, measured: String| {
            vec![what.to_owned(), measured, String::new(), String::new()]
        };
        rows.insert(6, aside("... each", spoken(&load.each)));
        let used = format!(
            "generator {} CPU, server {} CPU of {}",
            cpus(load.generator_cpus),
            cpus(load.server_cpus),
            self.machine.processors
        );
        rows.insert(7, aside("... used", used));
        rows
    }
}

fn spoken(summary: &Summary) -> String {
    let ms = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
    let Summary { rounds, p50_ms, p99_ms, max_ms } = summary;
    format!("p50 {} ms, p99 {} ms, max {} ms ({rounds})", ms(*p50_ms), ms(*p99_ms), ms(*max_ms))
}
