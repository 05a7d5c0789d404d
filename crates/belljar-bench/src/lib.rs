//! `belljar bench`: latency, memory and density on this machine, compared with other programs in the same run.
//!
//! Absolute figures of a shared machine vary from run to run. Ratios of operations that are
//! measured in turns vary less, so each line names what it was compared with.

#![forbid(unsafe_code)]

mod browser;
mod connection;
mod docker;
mod figures;
mod files;
mod http;
mod life;
mod native;
mod peers;
mod samples;
mod scratch_host;
mod terminal_echo;
mod workload;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use belljar_runtime::Limits;
use belljar_runtime::docker::DockerConfig;
use belljar_sys::privileges;
use clap::Args;
use indicatif::ProgressBar;

use figures::Figures;
pub use figures::Measured;

/// The flags of `belljar bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Measure a server over HTTP; a temporary server is started for this
    #[arg(long)]
    pub http: bool,
    /// Measure artifacts and datasets: files out of sessions and into them, compared with sha256sum
    /// and, where it is installed, nginx; needs 10 GB in the directory for temporary files
    #[arg(long, conflicts_with = "http")]
    pub files: bool,
    /// Measure a session's browser; needs Chromium
    #[arg(long, conflicts_with_all = ["http", "files"])]
    pub browser: bool,
    /// Measure hibernation, forks and checkpoints; 95 % of `--sessions` hibernate
    #[arg(long, conflicts_with_all = ["http", "files"])]
    pub life: bool,
    /// Print the figures as JSON
    #[arg(long)]
    pub json: bool,
    /// Fewer rounds, fewer live sessions and smaller files, for a first impression
    #[arg(long)]
    pub quick: bool,
    /// The largest number of live sessions
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub sessions: usize,
}

/// What the benchmarks need from the program and its settings.
#[derive(Debug, Clone)]
pub struct BenchConfig {
    /// The belljar binary; servers to measure are started from it.
    pub program: PathBuf,
    /// Limits of the measured sandboxes.
    pub limits: Limits,
    /// The interpreter of the sandboxes' environment, as the host starts it.
    pub python: PathBuf,
    /// An image for `docker run` with the same packages.
    pub peer_image: Option<String>,
    /// The runtime for `docker run`.
    pub docker_runtime: Option<String>,
}

/// The backend whose sandboxes are measured.
#[derive(Debug)]
pub enum Backend {
    Native(Box<belljar_runtime::native::Prepared>),
    Docker(Box<DockerConfig>),
}

/// Runs the benchmark that `args` selects. `backend` is called only by benchmarks that make
/// sandboxes in this process, and before any thread is started.
pub fn bench(
    args: &BenchArgs,
    config: &BenchConfig,
    backend: impl FnOnce() -> Result<Backend>,
) -> Result<Measured> {
    privileges::raise_open_files();
    if args.http {
        return complete(http::measure(args, config));
    }
    if args.files {
        return complete(files::measure(args, config));
    }
    if args.browser {
        return complete(browser::measure(args, config));
    }
    if args.life {
        return complete(life::measure(args, config));
    }
    match backend()? {
        Backend::Native(prepared) => complete(native::measure(args, config, *prepared)),
        Backend::Docker(docker) => complete(docker::measure(args, config, *docker)),
    }
}

fn complete<F: Figures>(measuring: impl Future<Output = Result<F>>) -> Result<Measured> {
    let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let figures = event_loop.context("failed to start the event loop")?.block_on(measuring)?;
    Measured::of(&figures)
}

fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
