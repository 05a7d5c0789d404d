//! `belljar bench --browser`: screenshots with a running browser, and the memory of a session after
//! its browser was stopped.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use crate::connection::{Connection, delete, exec, id_of, request};
use crate::figures::{Figures, Machine, plain_row, target_row};
use crate::samples::{Samples, Summary, mib};
use crate::scratch_host::{ScratchHost, Server};
use crate::{BenchArgs, BenchConfig, progress};

/// A page without other resources.
const PAGE: &str = "<title>Fruit</title><h1>Fruit</h1><ul><li>apples<li>pears<li>plums</ul>";

/// Seconds without use after which the server stops the browser.
const IDLE_S: u64 = 2;

/// How long to wait until the browser is stopped, and how often to check.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(200);

/// Requests before the measurement, while caches are cold; they are not counted.
const COLD: usize = 5;

const TARGET_P50_MS: f64 = 150.0;
const TARGET_IDLE_MIB: f64 = 6.0;

/// Results of the browser benchmark.
#[derive(Debug, Serialize)]
pub(crate) struct BrowserFigures {
    machine: Machine,
    /// The first screenshot, which starts the browser.
    first_ms: f64,
    /// A screenshot of a page in the session; the page is loaded each time.
    screenshot_url: Summary,
    /// A screenshot of the page that is already loaded.
    screenshot_current: Summary,
    snapshot: Summary,
    running_mib: f64,
    stopped_mib: f64,
    /// From a request to a stopped browser until it returns the text of its last page.
    restored_ms: f64,
}

pub(crate) async fn measure(args: &BenchArgs, config: &BenchConfig) -> Result<BrowserFigures> {
    let progress = progress();
    let rounds = if args.quick { 20 } else { 100 };
    let host = ScratchHost::new(config, vec![("BELLJAR_BROWSER_IDLE", IDLE_S.to_string())])?;
    let server = Server::start(&host, 0)?;
    let mut connection = Connection::connect(server.address).await?;
    server.settled(&mut connection).await?;
    let id = id_of(&connection.call(&request("POST", "/v1/sessions", &json!({}))).await?.json()?)?;
    let write = format!("open('index.html', 'w').write({PAGE:?})");
    ensure!(connection.call(&exec(&id, &write)).await?.is_ok(), "failed to write the page");

    progress.set_message("the first screenshot");
    let url = json!({"url": "/session/index.html"});
    let action = |name: &str, body: &Value| {
        request("POST", &format!("/v1/sessions/{id}/browser/{name}"), body)
    };
    let begun = Instant::now();
    connection.call(&action("screenshot", &url)).await?.json()?;
    let first_ms = begun.elapsed().as_secs_f64() * 1000.0;
    connection.call(&action("goto", &url)).await?.json()?;

    progress.set_message("screenshots");
    let screenshot_url = repeat(&mut connection, &action("screenshot", &url), rounds).await?;
    let screenshot_current =
        repeat(&mut connection, &action("screenshot", &json!({})), rounds).await?;
    let snapshot = repeat(&mut connection, &action("snapshot", &json!({})), rounds).await?;
    let running_mib = memory(&mut connection, &id).await?;

    progress.set_message("waiting until the browser is stopped");
    let stopped_mib = wait_until_small(&mut connection, &id).await?;
    let begun = Instant::now();
    let restored = connection.call(&action("text", &json!({}))).await?.json()?;
    ensure!(restored["browser"] == "restored", "the browser was not stopped: {restored}");
    ensure!(restored["title"] == "Fruit", "the page was not restored: {restored}");
    let restored_ms = begun.elapsed().as_secs_f64() * 1000.0;
    connection.call(&delete(&id)).await?.json()?;
    server.stop()?;
    progress.finish_and_clear();
    let machine = Machine::of_this();
    Ok(BrowserFigures {
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

async fn repeat(connection: &mut Connection, request: &[u8], rounds: usize) -> Result<Summary> {
    let mut samples = Samples::default();
    for round in 0..rounds + COLD {
        let begun = Instant::now();
        connection.call(request).await?.json()?;
        if round >= COLD {
            samples.push(begun.elapsed());
        }
    }
    Ok(samples.summary())
}

/// Waits until the session uses little memory. Returns its memory then, or at the timeout.
async fn wait_until_small(connection: &mut Connection, id: &str) -> Result<f64> {
    let deadline = Instant::now() + STOP_TIMEOUT;
    loop {
        tokio::time::sleep(POLL).await;
        let now = memory(connection, id).await?;
        if now < TARGET_IDLE_MIB || Instant::now() > deadline {
            return Ok(now);
        }
    }
}

async fn memory(connection: &mut Connection, id: &str) -> Result<f64> {
    let session = connection
        .call(&request("GET", &format!("/v1/sessions/{id}"), &Value::Null))
        .await?
        .json()?;
    let bytes = session["memory_used"].as_u64();
    Ok(mib(bytes.context("the memory of sessions is not known on this machine")?))
}

impl Figures for BrowserFigures {
    fn heading(&self) -> String {
        format!("{}, browser", self.machine)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let times =
            |took: &Summary| format!("p50 {:.0} ms, p99 {:.0} ms", took.p50_ms, took.p99_ms);
        let url = &self.screenshot_url;
        vec![
            plain_row("first screenshot, browser not started", format!("{:.0} ms", self.first_ms)),
            target_row(
                "screenshot of a URL, browser warm",
                times(url),
                format!("p50 <= {TARGET_P50_MS} ms"),
                url.p50_ms <= TARGET_P50_MS,
            ),
            plain_row("screenshot of the current page", times(&self.screenshot_current)),
            plain_row("accessibility snapshot", times(&self.snapshot)),
            plain_row("session, browser runs", format!("{:.0} MiB", self.running_mib)),
            target_row(
                "session, browser stopped",
                format!("{:.1} MiB", self.stopped_mib),
                format!("< {TARGET_IDLE_MIB} MiB"),
                self.stopped_mib < TARGET_IDLE_MIB,
            ),
            plain_row("stopped -> page restored", format!("{:.0} ms", self.restored_ms)),
        ]
    }
}
