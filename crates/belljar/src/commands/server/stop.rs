//! When a server stops: on a signal, or after its idle time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use belljar_api::App;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::super::EXIT_FAILED;
use crate::logging;

/// How often a server with `--idle-exit` checks whether it is idle.
const IDLE_PACE: Duration = Duration::from_secs(1);

/// Becomes true on the first SIGTERM or SIGINT. A second signal ends the process at once; sessions survive that.
pub(crate) fn on_signals() -> Result<watch::Sender<bool>> {
    let sender = watch::Sender::new(false);
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let mut signals = signal(kind).context("failed to listen for signals")?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if sender.send_replace(true) {
                    std::process::exit(EXIT_FAILED.into());
                }
            }
        });
    }
    Ok(sender)
}

/// Stops the server when nothing was asked of it for `patience` and no session is alive.
pub(crate) fn when_idle(patience: Duration, app: &Arc<App>, stop: &watch::Sender<bool>) {
    let (stop, app) = (stop.clone(), Arc::clone(app));
    tokio::spawn(async move {
        while app.idle().is_none_or(|idle| idle < patience) {
            tokio::time::sleep(patience.min(IDLE_PACE)).await;
        }
        logging::announce("belljar: nobody needs this server any more");
        stop.send_replace(true);
    });
}
