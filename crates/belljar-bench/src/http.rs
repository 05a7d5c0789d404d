//! `belljar bench --http`: a temporary server, measured by its clients.
//!
//! The clients are in this process and use the same processors as the server and the sandboxes. The
//! figures include the processor time of the clients.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar_sys::procfs;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::connection::{Connection, call_all, delete, exec, id_of, request};
use crate::figures::{Figures, Machine, plain_row, target_row};
use crate::samples::{Samples, Summary, Timed, count, mib};
use crate::scratch_host::{ScratchHost, Server};
use crate::workload::{FIRST, POOL_SIZE};
use crate::{BenchArgs, BenchConfig, progress, terminal_echo};

/// Number of clients; each has its own session.
const CLIENTS: usize = 64;

/// Sessions that a killed server leaves for the next one.
const LEFT: usize = 500;

/// Connections over which many sessions are created, used and stopped.
const CONNECTIONS: usize = 16;

/// How long the sessions are idle before the server's memory is read.
const IDLE: Duration = Duration::from_secs(1);

/// Executions before the measurement, while caches are cold; they are not counted.
const COLD: usize = 50;

/// Results of a server over HTTP.
#[derive(Debug, Serialize)]
pub(crate) struct HttpFigures {
    machine: Machine,
    /// From the execution of the binary to the first 200 of `/readyz`.
    start: Timed,
    /// From the request for a session to its first result, with a full pool.
    create: Timed,
    warm_exec: WarmExec,
    /// An execution of `command: true`.
    command: Timed,
    /// From a key at a terminal to its echo.
    terminal_echo: Timed,
    load: Load,
    live: Live,
    adoption: Adoption,
}

#[derive(Debug, Serialize)]
struct WarmExec {
    #[serde(flatten)]
    took: Summary,
    target_p50_ms: f64,
    target_p99_ms: f64,
}

/// Many clients, each of which sends one request after another.
#[derive(Debug, Serialize)]
struct Load {
    clients: usize,
    seconds: f64,
    execs: usize,
    errors: usize,
    execs_per_second: f64,
    each: Summary,
    /// Processors used by the clients, and by the server itself.
    generator_cpus: Option<f64>,
    server_cpus: Option<f64>,
    target_execs_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Live {
    sessions: usize,
    answered: usize,
    /// Time of all creates together.
    create_seconds: f64,
    server_rss_mib: f64,
    target_server_rss_mib: f64,
}

/// A server killed and started again.
#[derive(Debug, Serialize)]
struct Adoption {
    sessions: usize,
    /// Sessions that still had their variable.
    remembered: usize,
    ready_ms: f64,
    all_answered_ms: f64,
    target_ms: f64,
}

pub(crate) async fn measure(args: &BenchArgs, config: &BenchConfig) -> Result<HttpFigures> {
    let progress = progress();
    let say = |text: &str| progress.set_message(text.to_owned());
    let quick = args.quick;
    let host = ScratchHost::new(config, Vec::new())?;

    say("starting servers");
    let start = measure_start(&host, if quick { 3 } else { 10 }).await?;

    say("starting a server");
    let server = Server::start(&host, POOL_SIZE)?;
    let mut connection = Connection::connect(server.address).await?;
    server.settled(&mut connection).await?;
    say("creating from the pool");
    let create = measure_create(&server, &mut connection, if quick { 20 } else { 100 }).await?;
    say("warm executions");
    let warm_exec = measure_warm(&mut connection, if quick { 500 } else { 5000 }).await?;

    say("commands and keys");
    let command = measure_command(&mut connection, if quick { 200 } else { 2000 }).await?;
    let terminal_echo =
        measure_echo(&server, &mut connection, if quick { 500 } else { 5000 }).await?;

    say("many clients");
    let mut sessions = make(&server, CLIENTS).await?;
    let load = measure_load(&server, &sessions, Duration::from_secs(if quick { 2 } else { 10 }));
    let load = load.await?;

    let most = if quick { args.sessions.min(100) } else { args.sessions };
    say(&format!("{most} live sessions"));
    let live = measure_live(&server, &mut sessions, most).await?;

    let left = sessions.split_off(LEFT.min(sessions.len()));
    say("a server killed and started again");
    stop(&server, &left).await?;
    let (server, adoption) = measure_adoption(&host, server, &sessions).await?;

    say("stopping the server");
    server.stop()?;
    progress.finish_and_clear();
    let machine = Machine::of_this();
    Ok(HttpFigures {
        machine,
        start,
        create,
        warm_exec,
        command,
        terminal_echo,
        load,
        live,
        adoption,
    })
}

async fn measure_start(host: &ScratchHost, rounds: usize) -> Result<Timed> {
    // The first server probes the limits of this machine; the others read the stored result.
    let first = Server::start(host, 0)?;
    first.settled(&mut Connection::connect(first.address).await?).await?;
    first.stop()?;
    let mut samples = Samples::default();
    for _ in 0..rounds {
        let server = Server::start(host, POOL_SIZE)?;
        server.ready().await?;
        samples.push(server.started.elapsed());
        server.stop()?;
    }
    Ok(Timed { took: samples.summary(), target_p50_ms: 150.0 })
}

async fn measure_create(
    server: &Server,
    connection: &mut Connection,
    rounds: usize,
) -> Result<Timed> {
    let create = request("POST", "/v1/sessions", &json!({}));
    let mut samples = Samples::default();
    for _ in 0..rounds {
        // The pool is full and idle when a session is created.
        server.pool_full(connection, POOL_SIZE).await?;
        let begun = Instant::now();
        let id = id_of(&connection.call(&create).await?.json()?)?;
        ensure!(connection.call(&exec(&id, FIRST)).await?.is_ok(), "the first code failed");
        samples.push(begun.elapsed());
        connection.call(&delete(&id)).await?.json()?;
    }
    Ok(Timed { took: samples.summary(), target_p50_ms: 5.0 })
}

async fn measure_warm(connection: &mut Connection, rounds: usize) -> Result<WarmExec> {
    let took = repeat_exec(connection, &json!({ "code": "1 + 1" }), rounds).await?;
    Ok(WarmExec { took, target_p50_ms: 0.6, target_p99_ms: 5.0 })
}

async fn measure_command(connection: &mut Connection, rounds: usize) -> Result<Timed> {
    let took = repeat_exec(connection, &json!({ "command": "true" }), rounds).await?;
    Ok(Timed { took, target_p50_ms: 3.0 })
}

/// Executes the same code repeatedly, in a new session.
async fn repeat_exec(connection: &mut Connection, exec: &Value, rounds: usize) -> Result<Summary> {
    let create = request("POST", "/v1/sessions", &json!({}));
    let id = id_of(&connection.call(&create).await?.json()?)?;
    let request = request("POST", &format!("/v1/sessions/{id}/exec"), exec);
    let mut samples = Samples::default();
    for round in 0..rounds + COLD {
        let begun = Instant::now();
        ensure!(connection.call(&request).await?.is_ok(), "`{exec}` failed");
        if round >= COLD {
            samples.push(begun.elapsed());
        }
    }
    connection.call(&delete(&id)).await?.json()?;
    Ok(samples.summary())
}

async fn measure_echo(
    server: &Server,
    connection: &mut Connection,
    rounds: usize,
) -> Result<Timed> {
    let create = request("POST", "/v1/sessions", &json!({}));
    let id = id_of(&connection.call(&create).await?.json()?)?;
    let took = terminal_echo::measure(server.address, &id, rounds).await?;
    connection.call(&delete(&id)).await?.json()?;
    Ok(Timed { took, target_p50_ms: 2.0 })
}

async fn measure_load(server: &Server, sessions: &[String], time: Duration) -> Result<Load> {
    let mut connections = Vec::new();
    for id in sessions {
        let (mut connection, request) =
            (Connection::connect(server.address).await?, exec(id, "1 + 1"));
        ensure!(connection.call(&request).await?.is_ok(), "the code failed");
        connections.push((connection, request));
    }
    let own_pid = std::process::id();
    let before = (procfs::cpu_time(own_pid), server.cpu_time());
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for (connection, request) in connections {
        clients.spawn(call_until(connection, request, begun + time));
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
        target_execs_per_second: 3000.0,
    })
}

/// Sends one request after another until `end`. Returns how long each took, and how many failed.
async fn call_until(
    mut connection: Connection,
    request: Vec<u8>,
    end: Instant,
) -> (Vec<Duration>, usize) {
    let (mut samples, mut errors) = (Vec::new(), 0);
    while Instant::now() < end {
        let sent = Instant::now();
        match connection.call(&request).await {
            Ok(response) if response.is_ok() => samples.push(sent.elapsed()),
            Ok(_) => errors += 1,
            // A broken connection stays broken.
            Err(_) => return (samples, errors + 1),
        }
    }
    (samples, errors)
}

/// Creates sessions until this many are live, sets a variable in each, and reads it.
async fn measure_live(server: &Server, sessions: &mut Vec<String>, most: usize) -> Result<Live> {
    let begun = Instant::now();
    sessions.extend(make(server, most.saturating_sub(sessions.len())).await?);
    let create_seconds = begun.elapsed().as_secs_f64();
    let assigned = execute_in_all(server, sessions, |n| format!("n = {n}")).await?;
    ensure!(assigned.iter().all(Result::is_ok), "a session did not take its variable");
    let answered = remembered(server, sessions).await?;
    tokio::time::sleep(IDLE).await;
    let rss = server.rss().context("the memory of the server is not known")?;
    Ok(Live {
        sessions: sessions.len(),
        answered,
        create_seconds,
        server_rss_mib: mib(rss),
        target_server_rss_mib: 150.0,
    })
}

async fn measure_adoption(
    host: &ScratchHost,
    server: Server,
    sessions: &[String],
) -> Result<(Server, Adoption)> {
    server.kill()?;
    let server = Server::start(host, POOL_SIZE)?;
    server.ready().await?;
    let ready = server.started.elapsed();
    let remembered = remembered(&server, sessions).await?;
    let all_answered = server.started.elapsed();
    let adoption = Adoption {
        sessions: sessions.len(),
        remembered,
        ready_ms: ready.as_secs_f64() * 1000.0,
        all_answered_ms: all_answered.as_secs_f64() * 1000.0,
        target_ms: 3000.0,
    };
    Ok((server, adoption))
}

async fn make(server: &Server, sessions: usize) -> Result<Vec<String>> {
    let create = request("POST", "/v1/sessions", &json!({}));
    let made = call_all(server.address, vec![create; sessions], CONNECTIONS).await?;
    made.into_iter().map(|session| id_of(&session?)).collect()
}

async fn stop(server: &Server, sessions: &[String]) -> Result<()> {
    let requests = sessions.iter().map(|id| delete(id)).collect();
    let stopped = call_all(server.address, requests, CONNECTIONS).await?;
    stopped.into_iter().try_for_each(|session| session.map(drop))
}

/// How many sessions still have the variable that was set in them.
async fn remembered(server: &Server, sessions: &[String]) -> Result<usize> {
    let responses = execute_in_all(server, sessions, |_| "n".to_owned()).await?;
    let is_right = |(n, response): &(usize, Result<Value>)| {
        let expected = Value::from(n.to_string());
        response.as_ref().is_ok_and(|it| it["results"][0]["data"]["text/plain"] == expected)
    };
    Ok(responses.into_iter().enumerate().filter(is_right).count())
}

async fn execute_in_all(
    server: &Server,
    sessions: &[String],
    code: impl Fn(usize) -> String,
) -> Result<Vec<Result<Value>>> {
    let requests = sessions.iter().enumerate().map(|(n, id)| exec(id, &code(n))).collect();
    call_all(server.address, requests, CONNECTIONS).await
}

impl Figures for HttpFigures {
    fn heading(&self) -> String {
        format!("{}, over HTTP", self.machine)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![
            self.start.row("server start -> ready"),
            self.create.row("create -> first result, pool"),
            self.warm_exec.row(),
            self.command.row("`command: true`"),
            self.terminal_echo.row("terminal echo"),
        ];
        rows.extend(self.load.rows(self.machine.processors));
        rows.push(self.live.row());
        rows.push(self.adoption.row());
        rows
    }
}

impl Timed {
    fn row(&self, what: &str) -> Vec<String> {
        let Timed { took, target_p50_ms } = self;
        let target = format!("p50 <= {target_p50_ms} ms");
        target_row(what, took.to_string(), target, took.p50_ms <= *target_p50_ms)
    }
}

impl WarmExec {
    fn row(&self) -> Vec<String> {
        let WarmExec { took, target_p50_ms, target_p99_ms } = self;
        target_row(
            "warm exec, keep-alive",
            took.to_string(),
            format!("p50 <= {target_p50_ms} ms, p99 <= {target_p99_ms} ms"),
            took.p50_ms <= *target_p50_ms && took.p99_ms <= *target_p99_ms,
        )
    }
}

impl Load {
    fn rows(&self, processors: usize) -> [Vec<String>; 3] {
        let cpus = |cpus: Option<f64>| cpus.map_or("?".into(), |cpus| format!("{cpus:.2}"));
        let used = format!(
            "clients {} CPU, server {} CPU of {processors}",
            cpus(self.generator_cpus),
            cpus(self.server_cpus),
        );
        [
            target_row(
                &format!("{0} clients on {0} sessions", self.clients),
                format!("{:.0} execs/s, {} errors", self.execs_per_second, self.errors),
                format!(">= {:.0} execs/s, 0 errors", self.target_execs_per_second),
                self.execs_per_second >= self.target_execs_per_second && self.errors == 0,
            ),
            plain_row("... each", self.each.to_string()),
            plain_row("... used", used),
        ]
    }
}

impl Live {
    fn row(&self) -> Vec<String> {
        let Live { sessions, answered, server_rss_mib, target_server_rss_mib, .. } = self;
        target_row(
            &format!("{sessions} live sessions"),
            format!("server RSS {server_rss_mib:.0} MiB, {answered}/{sessions} answer"),
            format!("<= {target_server_rss_mib} MiB, all answer"),
            server_rss_mib <= target_server_rss_mib && answered == sessions,
        )
    }
}

impl Adoption {
    fn row(&self) -> Vec<String> {
        let Adoption { sessions, remembered, ready_ms, all_answered_ms, target_ms } = self;
        target_row(
            &format!("adoption of {sessions} after kill -9"),
            format!(
                "ready in {ready_ms:.0} ms, {remembered}/{sessions} with their variables in \
                 {all_answered_ms:.0} ms"
            ),
            format!("<= {target_ms:.0} ms, all of them"),
            all_answered_ms <= target_ms && remembered == sessions,
        )
    }
}
