//! `belljar bench --browser`: pictures of a page by a browser that runs, and what a session weighs
//! when its browser has been stopped.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar_sys::privileges;
use serde::Serialize;
use serde_json::{Value, json};

use super::samples::{Samples, Summary};
use super::server::{Corner, Server};
use super::wire::{Wire, delete, exec, id_of, request};
use super::{Machine, conclude, mib, progress};
use crate::cli::BenchArgs;
use crate::table;

/// A page that needs nothing else.
const PAGE: &str = "<title>Fruit</title><h1>Fruit</h1><ul><li>apples<li>pears<li>plums</ul>";

/// Seconds without use after which the browser is stopped, and how long that is waited for.
const IDLE_S: u64 = 2;
const STOP_PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(200);

const REACH_P50_MS: f64 = 150.0;
const REACH_IDLE_MIB: f64 = 6.0;

pub(super) fn bench(args: &BenchArgs) -> Result<ExitCode> {
    privileges::raise_open_files();
    conclude(args, measure(args), Report::print)
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    /// From nothing to the first picture.
    first_ms: f64,
    /// Of a page of the session, which is loaded each time.
    screenshot_url: Summary,
    /// Of the page that is there.
    screenshot_current: Summary,
    snapshot: Summary,
    running_mib: f64,
    stopped_mib: f64,
    /// From stopped to the page that was there.
    restored_ms: f64,
}

async fn measure(args: &BenchArgs) -> Result<Report> {
    let progress = progress();
    let rounds = if args.quick { 20 } else { 100 };
    let corner = Corner::new(vec![("BELLJAR_BROWSER_IDLE", IDLE_S.to_string())])?;
    let server = Server::start(&corner, 0)?;
    let mut wire = Wire::connect(server.address).await?;
    server.at_rest(&mut wire).await?;
    let id = id_of(&wire.call(&request("POST", "/v1/sessions", &json!({}))).await?.json()?)?;
    let write = format!("open('index.html', 'w').write({PAGE:?})");
    ensure!(wire.call(&exec(&id, &write)).await?.is_ok(), "the page is not written");

    progress.set_message("the first picture");
    let url = json!({"url": "/session/index.html"});
    let action = |name: &str, body: &Value| {
        request("POST", &format!("/v1/sessions/{id}/browser/{name}"), body)
    };
    let begun = Instant::now();
    wire.call(&action("screenshot", &url)).await?.json()?;
    let first_ms = begun.elapsed().as_secs_f64() * 1000.0;
    wire.call(&action("goto", &url)).await?.json()?;

    progress.set_message("pictures");
    let screenshot_url = repeat(&mut wire, &action("screenshot", &url), rounds).await?;
    let screenshot_current = repeat(&mut wire, &action("screenshot", &json!({})), rounds).await?;
    let snapshot = repeat(&mut wire, &action("snapshot", &json!({})), rounds).await?;
    let running_mib = memory(&mut wire, &id).await?;

    progress.set_message("a browser that nobody uses");
    let deadline = Instant::now() + STOP_PATIENCE;
    let stopped_mib = loop {
        tokio::time::sleep(LOOK).await;
        let now = memory(&mut wire, &id).await?;
        if now < REACH_IDLE_MIB || Instant::now() > deadline {
            break now;
        }
    };
    let begun = Instant::now();
    let restored = wire.call(&action("text", &json!({}))).await?.json()?;
    ensure!(restored["browser"] == "restored", "the browser was not stopped: {restored}");
    ensure!(restored["title"] == "Fruit", "the page did not come back: {restored}");
    let restored_ms = begun.elapsed().as_secs_f64() * 1000.0;
    wire.call(&delete(&id)).await?.json()?;
    server.stop()?;
    progress.finish_and_clear();
    let machine = Machine::of_this();
    Ok(Report {
        machine,
        first_ms,
        screenshot_url,
        screenshot_current,
        snapshot,
        running_mib,
        stopped_mib,
        restored_ms,
    })
}

async fn repeat(wire: &mut Wire, request: &[u8], rounds: usize) -> Result<Summary> {
    let mut samples = Samples::default();
    // The first ones find caches cold.
    for round in 0..rounds + 5 {
        let begun = Instant::now();
        wire.call(request).await?.json()?;
        if round >= 5 {
            samples.push(begun.elapsed());
        }
    }
    Ok(samples.summary())
}

async fn memory(wire: &mut Wire, id: &str) -> Result<f64> {
    let session =
        wire.call(&request("GET", &format!("/v1/sessions/{id}"), &Value::Null)).await?.json()?;
    let bytes = session["memory_used"].as_u64();
    Ok(mib(bytes.context("what a session weighs is not known here")?))
}

impl Report {
    fn print(&self) {
        println!("{}, browser\n", self.machine);
        print!("{}", table::render(&["what", "measured", "reach", ""], &self.rows()));
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let spoken =
            |took: &Summary| format!("p50 {:.0} ms, p99 {:.0} ms", took.p50_ms, took.p99_ms);
        let verdict = |met: bool| if met { "met" } else { "MISSED" };
        let row = |what: &str, measured: String, reach: String, met: &str| {
            vec![what.to_owned(), measured, reach, met.to_owned()]
        };
        let plain = |what: &str, measured: String| row(what, measured, String::new(), "");
        let url = &self.screenshot_url;
        vec![
            plain("first picture, browser started", format!("{:.0} ms", self.first_ms)),
            row(
                "picture of a URL, browser warm",
                spoken(url),
                format!("p50 <= {REACH_P50_MS} ms"),
                verdict(url.p50_ms <= REACH_P50_MS),
            ),
            plain("picture of the page that is there", spoken(&self.screenshot_current)),
            plain("accessibility snapshot", spoken(&self.snapshot)),
            plain("session, browser runs", format!("{:.0} MiB", self.running_mib)),
            row(
                "session, browser stopped",
                format!("{:.1} MiB", self.stopped_mib),
                format!("< {REACH_IDLE_MIB} MiB"),
                verdict(self.stopped_mib < REACH_IDLE_MIB),
            ),
            plain("stopped -> page is back", format!("{:.0} ms", self.restored_ms)),
        ]
    }
}
