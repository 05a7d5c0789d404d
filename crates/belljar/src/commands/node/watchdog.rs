//! `belljar lease-watchdog`: freezes the sandboxes of a node when its lease ends, also if the node hangs.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_cluster::watchdog::{self, Watchdog, WatchdogConfig};
use belljar_sys::cgroup::{Freezer, Parent};
use belljar_sys::privileges;
use clap::Args;

use crate::settings::{Choice, Settings};

#[derive(Debug, Args)]
pub(crate) struct LeaseWatchdogArgs {
    /// Where the deadline and the generation are kept
    #[arg(long)]
    file: PathBuf,
    /// The generation of this watchdog
    #[arg(long)]
    generation: String,
    /// The cgroup above all sandboxes
    #[arg(long)]
    cgroup: PathBuf,
}

pub(crate) fn lease_watchdog(args: &LeaseWatchdogArgs) -> Result<ExitCode> {
    let freezer = Freezer::open(&args.cgroup).context("failed to open the cgroup")?;
    let freezer = CgroupFreezer(freezer);
    watchdog::watch(&args.file, &args.generation, io::stdin(), &freezer)
        .context("the lease watchdog failed")?;
    Ok(ExitCode::SUCCESS)
}

struct CgroupFreezer(Freezer);

impl watchdog::Freezer for CgroupFreezer {
    fn set(&self, frozen: bool) -> io::Result<()> {
        if frozen { self.0.freeze() } else { self.0.thaw() }
    }
}

/// Starts the watchdog. Without one, the node freezes its sandboxes itself, as long as it runs.
pub(super) fn start(settings: &Settings) -> Option<Watchdog> {
    if settings.backend.choice == Choice::Docker {
        tracing::warn!(
            "with containers there is no lease watchdog: a node that hangs freezes none"
        );
        return None;
    }
    match try_start(settings) {
        Ok(watchdog) => Some(watchdog),
        Err(error) => {
            tracing::error!(
                "there is no lease watchdog, so a node that hangs freezes nothing: {error:#}"
            );
            None
        }
    }
}

fn try_start(settings: &Settings) -> Result<Watchdog> {
    let parent = Parent::prepare(&settings.cgroup_parent, privileges::is_root())?;
    let config = WatchdogConfig {
        executable: "/proc/self/exe".into(),
        file: settings.run_dir.join("lease"),
        cgroup: parent.freezer()?.directory().to_owned(),
    };
    std::fs::create_dir_all(&settings.run_dir)?;
    Watchdog::start(config).context("failed to start the lease watchdog")
}
